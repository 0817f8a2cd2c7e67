"""Encoding of a client's append directly as bytes. This takes 0.05 µs per body, instead of 1 µs with a
message object.

The layout is defined by `AppendRequest` in proto/dledger/v1/log.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.infra.transport.wire import BYTES, VARINT, read_varint, tag, varint
from dledger.v1 import log_pb2 as pb

_BODY_TAG = tag(pb.AppendRequest, "bodies")
_MAX_HEAD_FIELDS = 16


_GREATEST_MS = (1 << 32) - 1  # the maximum of a uint32 field: 49 days, far above the limit of servers


def wire_ms(seconds: float) -> int:
    """Convert a timeout for the wire: at least one millisecond, at most the maximum of the field."""
    return max(1, int(min(seconds * 1000, _GREATEST_MS)))


class SessionMark(NamedTuple):
    """The identity of a batch: it is stored once per (session_id, seq)."""

    session_id: int
    seq: int


def encode_append_request(
    group: str, request_id: int, bodies: Sequence[bytes], mark: SessionMark | None, timeout_ms: int
) -> bytes:
    """Serialize AppendRequest(...) with these fields. The bodies are last."""
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
    """Return the bytes before the first body if these are only numbers and a few fields, or None."""
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
    """Return a message of the append stream, which is already encoded, as its serialized form."""
    return request
