"""An APPEND of a push stream as its bytes on the wire, without a detour through message objects.

Protobuf would copy the frames into its own memory and from there into the message, and the same backwards on
the other side; at hundreds of MB/s that is most of what a push costs. The layout is that of `PushRequest` in
proto/dledger/v1/peer.proto.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from dledger.core.messages import Append
from dledger.rpc.transport.handlers import parser
from dledger.rpc.transport.wire import BYTES, VARINT, read_varint, tag, varint
from dledger.v1 import peer_pb2 as pb

_MAX_FIELDS = 8  # that come before the one in question
_APPEND_TAG = tag(pb.PushRequest, "append")
_FRAMES_TAG = tag(pb.Append, "frames")


def encode_append(message: Append, frames: bytes | memoryview) -> bytes:
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
    length = varint(len(frames))
    size = varint(len(inner) + len(_FRAMES_TAG) + len(length) + len(frames))
    return b"".join((outer, _APPEND_TAG, size, inner, _FRAMES_TAG, length, frames))


class AppendEncoder:
    """Every follower that has all before it is sent the same: it is put together once."""

    def __init__(self) -> None:
        self._last: tuple[Append, bytes | memoryview] | None = None
        self._wire = b""

    def encode(self, message: Append, frames: bytes | memoryview) -> bytes:
        """See `encode_append`. The last one is kept, until there is another."""
        last = self._last
        if last is None or last[1] is not frames or last[0] != message:
            self._wire = encode_append(message, frames)
            self._last = message, frames
        return self._wire


class ReceivedAppend(NamedTuple):
    """An APPEND as it was received: all but its frames, and those where they are in its bytes."""

    request: pb.PushRequest
    frames: memoryview


#: Frames of fewer bytes are copied about as fast as they are found.
_WORTH_FINDING = 4096
_parse_whole = parser(pb.PushRequest, most_bytes=None)


def parse_push(data: bytes) -> pb.PushRequest | ReceivedAppend | None:
    """The deserialiser of the push stream. None: the bytes are no message."""
    if len(data) < _WORTH_FINDING:
        return _parse_whole(data)
    append = _last_field(data, 0, _APPEND_TAG)
    frames = None if append is None else _last_field(data, append.begin, _FRAMES_TAG)
    if append is None or frames is None:
        return _parse_whole(data)  # written by another hand: as good, and slower
    try:
        request = pb.PushRequest.FromString(data[: append.at])
        request.append.MergeFromString(data[append.begin : frames.at])
    except DecodeError:
        return None
    request.append.SetInParent()
    return ReceivedAppend(request, memoryview(data)[frames.begin :])


class _Field(NamedTuple):
    """Where its tag is, and where its content begins, which goes on to the end of the message."""

    at: int
    begin: int


def _last_field(data: bytes, at: int, wanted: bytes) -> _Field | None:
    """The field with the tag `wanted`, of bytes or of a message, if it comes last, and only numbers and short
    fields before it. None: it is not where we write it."""
    end = len(data)
    for _ in range(_MAX_FIELDS):
        number, begin = read_varint(data, at)
        kind = number & 7
        value, after = read_varint(data, begin)
        if kind == BYTES:
            if after + value == end:
                return _Field(at, after) if data[at:begin] == wanted else None
            after += value
        elif kind != VARINT:
            return None
        if after >= end:
            return None
        at = after
    return None


def serialize_push(request: pb.PushRequest | bytes) -> bytes:
    """The serialiser of the push stream: an APPEND is put as its bytes, all else as a message."""
    return request if isinstance(request, bytes) else request.SerializeToString()
