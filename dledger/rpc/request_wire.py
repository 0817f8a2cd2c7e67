"""An append of a client as its bytes on the wire: a message object takes 1 µs for each body, this 0.05.

The layout is that of `AppendRequest` in proto/dledger/v1/log.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.rpc.transport.wire import BYTES, VARINT, read_varint, tag, varint
from dledger.v1 import log_pb2 as pb

_BODY_TAG = tag(pb.AppendRequest, "bodies")
_MAX_HEAD_FIELDS = 16


_GREATEST_MS = (1 << 32) - 1  # of a field uint32: 49 days, and a server waits for less


def wire_ms(seconds: float) -> int:
    """A time-out as it travels: at least one millisecond, at most what the field takes."""
    return max(1, int(min(seconds * 1000, _GREATEST_MS)))


class SessionMark(NamedTuple):
    """What makes a batch unique: it is stored once per (session_id, seq)."""

    session_id: int
    seq: int


def encode_append_request(
    group: str, request_id: int, bodies: Sequence[bytes], mark: SessionMark | None, timeout_ms: int
) -> bytes:
    """What AppendRequest(...) with these fields is serialised to, its bodies at the end."""
    request = pb.AppendRequest(group=group, request_id=request_id, timeout_ms=timeout_ms)
    if mark is not None:
        request.session.session_id = mark.session_id
        request.session.seq = mark.seq
    sizes = [len(body) for body in bodies]
    begins = {size: _BODY_TAG + varint(size) for size in set(sizes)}
    parts = [request.SerializeToString()] * (1 + 2 * len(bodies))
    parts[1::2] = [begins[size] for size in sizes]
    parts[2::2] = bodies
    return b"".join(parts)


def request_head(data: bytes) -> bytes | None:
    """What comes before the first body, if that is only numbers and a few fields. None: it is not."""
    at = 0
    for _ in range(_MAX_HEAD_FIELDS):
        if data.startswith(_BODY_TAG, at):
            return data[:at]
        number, begin = read_varint(data, at)
        value, at = read_varint(data, begin)
        if number & 7 == BYTES:
            at += value
        elif number & 7 != VARINT:
            break
    return None


def serialize_request(request: bytes) -> bytes:
    """The serialiser of the stream of appends, which are put as their bytes."""
    return request
