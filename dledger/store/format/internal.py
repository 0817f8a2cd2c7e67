"""Bodies of INTERNAL entries, distinguished by a two-byte tag. Pure.

An empty body is the no-op of a new leader. An unknown tag decodes to `UnknownInternal`, because a newer peer
may write it and an older node must store it nevertheless.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from dledger.core.cluster_clock import ClockChange, Stamp
from dledger.core.membership_json import decode_membership, encode_membership
from dledger.core.values import Base, Membership

TAG_SESSION_OPEN = b"SO"
TAG_SESSION_BATCH = b"SB"
TAG_IMAGE_BEGIN = b"IB"
TAG_IMAGE_CHUNK = b"IC"
TAG_IMAGE_END = b"IE"
TAG_PURGE = b"PU"
TAG_MEMBERS = b"CF"
TAG_STAMP = b"T1"  # cluster time; another internal body follows
TAG_CHANGE = b"T2"  # cluster time with a change of its rate or offset; another internal body follows

_SESSION_BATCH = struct.Struct(">2sQQII")
_IMAGE_CHUNK = struct.Struct(">2sQI")
_IMAGE_END = struct.Struct(">2sQII")
_PURGE = struct.Struct(">2sqqqI")
_STAMP = struct.Struct(">2sq")
_CHANGE = struct.Struct(">2sqqqqq")
#: The year 10889: values derived from a stamp still fit into their fields.
MAX_STAMP_MS = 1 << 48
_U8_MAX = (1 << 64) - 1
_U4_MAX = (1 << 32) - 1


@dataclass(slots=True)
class NoOp:
    """The first entry of each new leader."""


@dataclass(slots=True)
class SessionOpen:
    """Opens a session whose id is the index of this entry."""


@dataclass(slots=True)
class SessionBatch:
    """Precedes a batch of a session: the next `count` entries are batch number `seq` of the session."""

    session_id: int
    seq: int
    count: int
    crc: int  # bodies_crc of the following entries

    def __post_init__(self) -> None:
        if not (0 <= self.session_id <= _U8_MAX and 0 <= self.seq <= _U8_MAX):
            raise ValueError(f"session {self.session_id}, seq {self.seq}: out of range")
        if not (0 <= self.count <= _U4_MAX and 0 <= self.crc <= _U4_MAX):
            raise ValueError(f"count {self.count}, crc {self.crc}: out of range")


@dataclass(slots=True)
class ImageBegin:
    """Start of a state image: the state after all entries before this one. Its id is this entry's index."""


@dataclass(slots=True)
class ImageChunk:
    """Part `number` (from 0) of the image that started at image_index."""

    image_index: int
    number: int
    data: bytes


@dataclass(slots=True)
class ImageEnd:
    """End of the image that started at image_index: `chunks` parts, `crc` over their data in order."""

    image_index: int
    chunks: int
    crc: int


@dataclass(slots=True)
class Purge:
    """Makes every node discard the entries up to `base` once this entry is committed."""

    base: Base


@dataclass(slots=True)
class Configuration:
    """The members from this entry on (rule 15), as JSON."""

    membership: Membership


@dataclass(slots=True)
class StampedInternal:
    """An internal body with the cluster time of its batch, in milliseconds since the Unix epoch."""

    stamp_ms: int
    inner: Internal
    change: ClockChange | None = None

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.stamp_ms, self.change)


@dataclass(slots=True)
class UnknownInternal:
    """A body whose tag this version does not know, or a body with a known tag and an unknown layout."""

    body: bytes


Internal = (
    NoOp
    | SessionOpen
    | SessionBatch
    | ImageBegin
    | ImageChunk
    | ImageEnd
    | Purge
    | Configuration
    | StampedInternal
    | UnknownInternal
)


def encode_internal(value: Internal) -> bytes:
    """Encode the body of an INTERNAL entry."""
    match value:  # frequent cases first
        case SessionBatch():
            return _SESSION_BATCH.pack(TAG_SESSION_BATCH, value.session_id, value.seq, value.count, value.crc)
        case StampedInternal():
            if value.change is None:
                return _STAMP.pack(TAG_STAMP, value.stamp_ms) + encode_internal(value.inner)
            return _CHANGE.pack(TAG_CHANGE, value.stamp_ms, *value.change) + encode_internal(value.inner)
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
        case Configuration(membership):
            return TAG_MEMBERS + encode_membership(membership)
        case UnknownInternal(body):
            return body


def decode_internal(body: bytes) -> Internal:
    """Decode the body of an INTERNAL entry. Never raises."""
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
        if isinstance(inner, StampedInternal) or not 0 <= stamp_ms <= MAX_STAMP_MS:
            return UnknownInternal(body)
        return StampedInternal(stamp_ms, inner)
    if tag == TAG_CHANGE and size >= _CHANGE.size:
        return _decode_change(body)
    if body == TAG_IMAGE_BEGIN:
        return ImageBegin()
    if tag == TAG_IMAGE_CHUNK and size >= _IMAGE_CHUNK.size:
        _, image_index, number = _IMAGE_CHUNK.unpack_from(body)
        return ImageChunk(image_index, number, body[_IMAGE_CHUNK.size :])
    if tag == TAG_IMAGE_END and size == _IMAGE_END.size:
        return ImageEnd(*_IMAGE_END.unpack(body)[1:])
    if tag == TAG_PURGE and size == _PURGE.size:
        return Purge(Base(*_PURGE.unpack(body)[1:]))
    if tag == TAG_MEMBERS:
        membership = decode_membership(body[2:])
        return UnknownInternal(body) if membership is None else Configuration(membership)
    return UnknownInternal(body)


def _decode_change(body: bytes) -> Internal:
    inner = decode_internal(body[_CHANGE.size :])
    _, stamp_ms, *fields = _CHANGE.unpack_from(body)
    change = ClockChange(*fields)
    durations = (change.step_ms, abs(change.slew_ms), change.steps_ms, change.pause_ms)
    if isinstance(inner, StampedInternal) or not all(
        0 <= ms <= MAX_STAMP_MS for ms in (stamp_ms, *durations)
    ):
        return UnknownInternal(body)
    return StampedInternal(stamp_ms, inner, change)


def membership_in(head: bytes) -> Membership | None:
    """Return the configuration that the body of an INTERNAL entry contains, if any. Cheap for all others."""
    if TAG_MEMBERS not in (
        head[:2],
        head[_STAMP.size : _STAMP.size + 2],
        head[_CHANGE.size : _CHANGE.size + 2],
    ):
        return None
    value = strip_stamp(decode_internal(head))[1]
    return value.membership if isinstance(value, Configuration) else None


def strip_stamp(value: Internal) -> tuple[int | None, Internal]:
    """Split the head of a batch into its cluster time, if present, and the inner body."""
    return (value.stamp_ms, value.inner) if isinstance(value, StampedInternal) else (None, value)


def bodies_crc(bodies: Sequence[bytes], sums: Sequence[int]) -> int:
    """Compute a CRC32 over the count, the lengths of the bodies and then their CRC32s (`sums`), in order,
    each as 4 bytes, big endian.

    The lengths ensure that another division of the same bytes into bodies has a different sum.
    """
    count = len(bodies)
    return crc32(struct.pack(f">{2 * count + 1}I", count, *map(len, bodies), *sums))
