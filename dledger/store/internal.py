"""Bodies of INTERNAL entries, told apart by a two-byte tag. Pure.

An empty body is the no-op of a new leader. A tag that is not known here decodes to `Unknown`: a newer peer
may write it, and an older one has to carry it along all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

TAG_SESSION_OPEN = b"SO"
TAG_SESSION_BATCH = b"SB"

_SESSION_BATCH = struct.Struct(">2sQQII")
_U8_MAX = (1 << 64) - 1
_U4_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class NoOp:
    """Written by every new leader."""


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """Opens a session whose id is the index of this entry."""


@dataclass(frozen=True, slots=True)
class SessionBatch:
    """Leads a batch of a session: the `count` entries after it are number `seq` of the session."""

    session_id: int
    seq: int
    count: int
    crc: int  # bodies_crc of the entries that follow

    def __post_init__(self) -> None:
        if not (0 <= self.session_id <= _U8_MAX and 0 <= self.seq <= _U8_MAX):
            raise ValueError(f"session {self.session_id}, seq {self.seq}: out of range")
        if not (0 <= self.count <= _U4_MAX and 0 <= self.crc <= _U4_MAX):
            raise ValueError(f"count {self.count}, crc {self.crc}: out of range")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A body that this version does not know, or one of a known tag with a shape that it does not know."""

    body: bytes


Internal = NoOp | SessionOpen | SessionBatch | Unknown


def encode_internal(value: Internal) -> bytes:
    """The body of an INTERNAL entry."""
    match value:
        case NoOp():
            return b""
        case SessionOpen():
            return TAG_SESSION_OPEN
        case SessionBatch(session_id, seq, count, crc):
            return _SESSION_BATCH.pack(TAG_SESSION_BATCH, session_id, seq, count, crc)
        case Unknown(body):
            return body


def decode_internal(body: bytes) -> Internal:
    """The value of an INTERNAL entry's body. Never raises."""
    if not body:
        return NoOp()
    if body == TAG_SESSION_OPEN:
        return SessionOpen()
    if body[:2] == TAG_SESSION_BATCH and len(body) == _SESSION_BATCH.size:
        _, session_id, seq, count, crc = _SESSION_BATCH.unpack(body)
        return SessionBatch(session_id, seq, count, crc)
    return Unknown(body)


def bodies_crc(bodies: Sequence[bytes]) -> int:
    """CRC32 over the count, the lengths (4 bytes, big endian, each) and then the bodies, in order.

    The lengths come first so that no other division of the same bytes into bodies has the same sum.
    """
    count = len(bodies)
    crc = crc32(struct.pack(f">{count + 1}I", count, *map(len, bodies)))
    for body in bodies:
        crc = crc32(body, crc)
    return crc
