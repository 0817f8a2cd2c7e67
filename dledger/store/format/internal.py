"""Bodies of INTERNAL entries, told apart by a two-byte tag. Pure.

An empty body is the no-op of a new leader. A tag that is not known here decodes to `Unknown`: a newer peer
may write it, and an older one has to carry it along all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from dledger.core.values import Base

TAG_SESSION_OPEN = b"SO"
TAG_SESSION_BATCH = b"SB"
TAG_IMAGE_BEGIN = b"IB"
TAG_IMAGE_CHUNK = b"IC"
TAG_IMAGE_END = b"IE"
TAG_PURGE = b"PU"
TAG_STAMP = b"T1"  # cluster time; another internal body follows

_SESSION_BATCH = struct.Struct(">2sQQII")
_IMAGE_CHUNK = struct.Struct(">2sQI")
_IMAGE_END = struct.Struct(">2sQII")
_PURGE = struct.Struct(">2sqqqI")
_STAMP = struct.Struct(">2sq")
#: The year 10889: what is made of a stamp fits into its field.
MAX_STAMP_MS = 1 << 48
_U8_MAX = (1 << 64) - 1
_U4_MAX = (1 << 32) - 1


@dataclass(slots=True)
class NoOp:
    """Written by every new leader."""


@dataclass(slots=True)
class SessionOpen:
    """Opens a session whose id is the index of this entry."""


@dataclass(slots=True)
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


@dataclass(slots=True)
class ImageBegin:
    """A state image begins: the state after all entries before this one. Its id is this entry's index."""


@dataclass(slots=True)
class ImageChunk:
    """Part `number` (from 0) of the image that began at image_index."""

    image_index: int
    number: int
    data: bytes


@dataclass(slots=True)
class ImageEnd:
    """The image that began at image_index is complete: `chunks` parts, `crc` over their data in order."""

    image_index: int
    chunks: int
    crc: int


@dataclass(slots=True)
class Purge:
    """Once committed, every node forgets what is not after `base`."""

    base: Base


@dataclass(slots=True)
class Stamped:
    """An internal body with the cluster time of its batch, in milliseconds since the Unix epoch."""

    stamp_ms: int
    inner: Internal


@dataclass(slots=True)
class Unknown:
    """A body that this version does not know, or one of a known tag with a shape that it does not know."""

    body: bytes


Internal = NoOp | SessionOpen | SessionBatch | ImageBegin | ImageChunk | ImageEnd | Purge | Stamped | Unknown


def encode_internal(value: Internal) -> bytes:
    """The body of an INTERNAL entry."""
    match value:  # what is frequent comes first
        case SessionBatch():
            return _SESSION_BATCH.pack(TAG_SESSION_BATCH, value.session_id, value.seq, value.count, value.crc)
        case Stamped():
            return _STAMP.pack(TAG_STAMP, value.stamp_ms) + encode_internal(value.inner)
        case NoOp():
            return b""
        case SessionOpen():
            return TAG_SESSION_OPEN
        case ImageBegin():
            return TAG_IMAGE_BEGIN
        case ImageChunk(image_index, number, data):
            return _IMAGE_CHUNK.pack(TAG_IMAGE_CHUNK, image_index, number) + data
        case ImageEnd(image_index, chunks, crc):
            return _IMAGE_END.pack(TAG_IMAGE_END, image_index, chunks, crc)
        case Purge(base):
            return _PURGE.pack(TAG_PURGE, base.index, base.term, base.pos, base.chain_crc)
        case Unknown(body):
            return body


def decode_internal(body: bytes) -> Internal:
    """The value of an INTERNAL entry's body. Never raises."""
    tag, size = body[:2], len(body)
    if tag == TAG_SESSION_BATCH and size == _SESSION_BATCH.size:
        _, session_id, seq, count, crc = _SESSION_BATCH.unpack(body)
        return SessionBatch(session_id, seq, count, crc)
    if not body:
        return NoOp()
    if body == TAG_SESSION_OPEN:
        return SessionOpen()
    if tag == TAG_STAMP and size >= _STAMP.size:
        inner = decode_internal(body[_STAMP.size :])
        stamp_ms = _STAMP.unpack_from(body)[1]
        if isinstance(inner, Stamped) or not 0 <= stamp_ms <= MAX_STAMP_MS:
            return Unknown(body)
        return Stamped(stamp_ms, inner)
    if body == TAG_IMAGE_BEGIN:
        return ImageBegin()
    if tag == TAG_IMAGE_CHUNK and size >= _IMAGE_CHUNK.size:
        _, image_index, number = _IMAGE_CHUNK.unpack_from(body)
        return ImageChunk(image_index, number, body[_IMAGE_CHUNK.size :])
    if tag == TAG_IMAGE_END and size == _IMAGE_END.size:
        return ImageEnd(*_IMAGE_END.unpack(body)[1:])
    if tag == TAG_PURGE and size == _PURGE.size:
        return Purge(Base(*_PURGE.unpack(body)[1:]))
    return Unknown(body)


def strip_stamp(value: Internal) -> tuple[int | None, Internal]:
    """The cluster time of a batch, if its head carries one, and what the head says otherwise."""
    return (value.stamp_ms, value.inner) if isinstance(value, Stamped) else (None, value)


def bodies_crc(bodies: Sequence[bytes], sums: Sequence[int]) -> int:
    """CRC32 over the count, the lengths of the bodies and then their CRC32s (`sums`), in order, each number
    in 4 bytes, big endian.

    The lengths are there so that no other division of the same bytes into bodies has the same sum.
    """
    count = len(bodies)
    return crc32(struct.pack(f">{2 * count + 1}I", count, *map(len, bodies), *sums))
