"""State images in the log: the leader writes them, every node finds the newest complete one.

See Retention in docs/guarantees.md.

An image is the state after all entries before its start mark: the sessions and the saved state machine. It
consists of internal entries between the other entries, so a node that installed a base finds everything that
it needs in its own log. This module is pure bookkeeping; the shell accesses state machines and disks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zlib_ng.zlib_ng import crc32

from dledger.store.format.internal import ImageBegin, ImageChunk, ImageEnd, Internal, strip_stamp

_SESSIONS_LENGTH = struct.Struct(">I")
CHUNK_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class StateImage:
    """A complete, reassembled image."""

    image_index: int
    sessions: bytes
    state: bytes  # saved state machine; empty if there is none


@dataclass(slots=True)
class ImageWriter:
    """Writes an image on the leader: a start mark, chunks as disk space permits, and an end mark."""

    image_index: int
    sessions: bytes  # the session table at the end of the log before the start mark
    chunk_bytes: int = CHUNK_BYTES
    chunks: list[bytes] | None = None  # None until the state machine has saved
    written: int = 0
    crc: int = 0
    ended: bool = False

    def provide(self, state: Iterable[bytes]) -> None:
        """Set the saved state machine as of image_index."""
        whole = b"".join([_SESSIONS_LENGTH.pack(len(self.sessions)), self.sessions, *state])
        size = self.chunk_bytes
        self.chunks = [whole[start : start + size] for start in range(0, len(whole), size)]

    def next_entry(self) -> Internal | None:
        """Return the next internal entry to append, or None if there is none yet. Returns the same entry
        until `advance` is called.
        """
        if self.chunks is None or self.ended:
            return None
        if self.written == len(self.chunks):
            return ImageEnd(self.image_index, len(self.chunks), self.crc)
        return ImageChunk(self.image_index, self.written, self.chunks[self.written])

    def advance(self) -> None:
        """Mark the next entry as appended."""
        assert self.chunks is not None
        if self.written == len(self.chunks):
            self.ended = True
        else:
            self.crc = crc32(self.chunks[self.written], self.crc)
            self.chunks[self.written] = b""  # it is in the log now
            self.written += 1


@dataclass(slots=True)
class ImageCollector:
    """Finds the newest complete image in a run of internal entries, in log order."""

    newest: StateImage | None = None
    _open: dict[int, list[bytes]] = field(default_factory=dict)

    def add(self, index: int, value: Internal) -> None:
        match value:
            case ImageBegin():
                # Only the newest can still be completed: a leader writes one at a time.
                self._open = {index: []}
            case ImageChunk(image_index, number, data):
                parts = self._open.get(image_index)
                if parts is not None and len(parts) == number:
                    parts.append(data)
            case ImageEnd(image_index, chunks, crc):
                parts = self._open.pop(image_index, None)
                if parts is not None and len(parts) == chunks:
                    self._complete(image_index, parts, crc)
            case _:
                pass

    def _complete(self, image_index: int, parts: Sequence[bytes], crc: int) -> None:
        whole = b"".join(parts)
        if crc32(whole) != crc or len(whole) < _SESSIONS_LENGTH.size:
            return
        (length,) = _SESSIONS_LENGTH.unpack_from(whole)
        offset = _SESSIONS_LENGTH.size + length
        if offset <= len(whole):
            self.newest = StateImage(image_index, whole[_SESSIONS_LENGTH.size : offset], whole[offset:])


def find_image(heads: Iterable[tuple[int, Internal]]) -> StateImage | None:
    """Return the newest complete image among (index, internal entry) pairs in log order."""
    collector = ImageCollector()
    for index, value in heads:
        collector.add(index, strip_stamp(value)[1])
    return collector.newest
