"""Encodes an APPEND of a push stream directly as bytes, without message objects.

Protobuf would copy the frames into its own memory and from there into the message, and do the reverse at the
receiver. At hundreds of MB/s these copies are most of the cost of a push. The layout is defined by
`PushRequest` in proto/dledger/v1/peer.proto.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from dledger.core.messages import Append
from dledger.infra.transport.handlers import parser
from dledger.infra.transport.wire import BYTES, VARINT, read_varint, tag, varint
from dledger.v1 import peer_pb2 as pb

_MAX_FIELDS = 8  # bytes before the field
_APPEND_TAG = tag(pb.PushRequest, "append")
_FRAMES_TAG = tag(pb.Append, "frames")


def encode_append(message: Append, frames: bytes | memoryview) -> bytes:
    """Serialize PushRequest(..., append=Append(..., frames=frames)), copying `frames` once."""
    assert frames, "an Append needs its frames"
    outer = pb.PushRequest(
        term=message.term, stream_id=message.stream_id, committed_index=message.committed_index
    ).SerializeToString()
    inner = pb.Append(
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        first_index=message.first_index,
        last_index=message.last_index,
    ).SerializeToString()
    length = varint(len(frames))
    size = varint(len(inner) + len(_FRAMES_TAG) + len(length) + len(frames))
    return b"".join((outer, _APPEND_TAG, size, inner, _FRAMES_TAG, length, frames))


class AppendEncoder:
    """Encodes APPENDs, and reuses the last result for followers that receive the same message."""

    def __init__(self) -> None:
        self._last: tuple[Append, bytes | memoryview] | None = None
        self._wire = b""

    def encode(self, message: Append, frames: bytes | memoryview) -> bytes:
        """Like `encode_append`, with a cache of the last result."""
        last = self._last
        if last is None or last[1] is not frames or last[0] != message:
            self._wire = encode_append(message, frames)
            self._last = message, frames
        return self._wire


class ReceivedAppend(NamedTuple):
    """A received APPEND: the message without its frames, and a view of the frames in the received bytes."""

    request: pb.PushRequest
    frames: memoryview


#: Smaller frames are copied in about the time it takes to locate them.
_MIN_VIEW_BYTES = 4096
_parse_whole = parser(pb.PushRequest, max_bytes=None)


def parse_push(data: bytes) -> pb.PushRequest | ReceivedAppend | None:
    """Deserialize a message of the push stream. Returns None if the bytes are invalid."""
    if len(data) < _MIN_VIEW_BYTES:
        return _parse_whole(data)
    append = _last_field(data, 0, _APPEND_TAG)
    frames = None if append is None else _last_field(data, append.begin, _FRAMES_TAG)
    if append is None or frames is None:
        return _parse_whole(data)  # written by another implementation: valid, but slower to parse
    try:
        request = pb.PushRequest.FromString(data[: append.at])
        request.append.MergeFromString(data[append.begin : frames.at])
    except DecodeError:
        return None
    request.append.SetInParent()
    return ReceivedAppend(request, memoryview(data)[frames.begin :])


class _Field(NamedTuple):
    """The offset of a field's tag, and of its content, which extends to the end of the message."""

    at: int
    begin: int


def _last_field(data: bytes, offset: int, tag: bytes) -> _Field | None:
    """Return the bytes or message field with the tag `tag` if it is last and only numbers and short fields
    precede it. Returns None if the field is elsewhere; this project does not write such messages."""
    end = len(data)
    for _ in range(_MAX_FIELDS):
        number, begin = read_varint(data, offset)
        kind = number & 7
        value, after = read_varint(data, begin)
        if kind == BYTES:
            if after + value == end:
                return _Field(offset, after) if data[offset:begin] == tag else None
            after += value
        elif kind != VARINT:
            return None
        if after >= end:
            return None
        offset = after
    return None


def serialize_push(request: pb.PushRequest | bytes) -> bytes:
    """Serialize a message of the push stream. An APPEND is already encoded."""
    return request if isinstance(request, bytes) else request.SerializeToString()
