"""An APPEND of a push stream as its bytes on the wire, without a detour through message objects.

Protobuf would copy the frames into its own memory and from there into the message; at hundreds of MB/s that
is most of what a push costs. The layout is that of `PushRequest` in proto/dledger/v1/peer.proto.
"""

from __future__ import annotations

from dledger.core.messages import Append
from dledger.v1 import peer_pb2 as pb


def _tag(message: type, field: str) -> bytes:
    """What goes before the length of a field of bytes or of a message."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    return _varint(number << 3 | 2)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_APPEND_TAG = _tag(pb.PushRequest, "append")
_FRAMES_TAG = _tag(pb.Append, "frames")


def encode_append(message: Append, frames: bytes) -> bytes:
    """What PushRequest(..., append=Append(..., frames=frames)) is serialised to; `frames` is copied once."""
    assert frames, "an Append travels with its frames"
    outer = pb.PushRequest(
        term=message.term, stream_id=message.stream_id, committed_index=message.committed_index
    ).SerializeToString()
    inner = pb.Append(
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        first_index=message.first_index,
        last_index=message.last_index,
    ).SerializeToString()
    length = _varint(len(frames))
    size = _varint(len(inner) + len(_FRAMES_TAG) + len(length) + len(frames))
    return b"".join((outer, _APPEND_TAG, size, inner, _FRAMES_TAG, length, frames))


def serialize_push(request: pb.PushRequest | bytes) -> bytes:
    """The serialiser of the push stream: an APPEND is put as its bytes, all else as a message."""
    return request if isinstance(request, bytes) else request.SerializeToString()
