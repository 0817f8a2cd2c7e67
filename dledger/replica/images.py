"""State images in the log: writing one on the leader, and knowing the newest complete one.

See Retention in docs/guarantees.md.

An image is the state after all entries before its begin mark: the sessions, and what the state machine gives.
It travels as internal entries among the others, so a node that was given a base finds all it needs in its own
log. Pure bookkeeping; who reads state machines and disks is the shell.
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
class Image:
    """A complete image, put together again."""

    image_index: int
    sessions: bytes
    state: bytes  # of the state machine; empty without one


@dataclass(slots=True)
class ImageWriter:
    """The leader's image under way: begin mark, chunks as there is room for them, end mark."""

    image_index: int
    sessions: bytes  # the table to the end of the log before the begin mark
    chunk_bytes: int = CHUNK_BYTES
    chunks: list[bytes] | None = None  # None: the state machine has not been asked yet, or has not answered
    written: int = 0
    crc: int = 0
    ended: bool = False

    def provide(self, state: Iterable[bytes]) -> None:
        """What the state machine gave, as of image_index."""
        whole = b"".join([_SESSIONS_LENGTH.pack(len(self.sessions)), self.sessions, *state])
        size = self.chunk_bytes
        self.chunks = [whole[at : at + size] for at in range(0, len(whole), size)]

    def next_entry(self) -> Internal | None:
        """The next internal entry to append, until `advance`; None when there is none (yet)."""
        if self.chunks is None or self.ended:
            return None
        if self.written == len(self.chunks):
            return ImageEnd(self.image_index, len(self.chunks), self.crc)
        return ImageChunk(self.image_index, self.written, self.chunks[self.written])

    def advance(self) -> None:
        """The next entry was appended."""
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

    newest: Image | None = None
    _open: dict[int, list[bytes]] = field(default_factory=dict)

    def see(self, index: int, value: Internal) -> None:
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
        at = _SESSIONS_LENGTH.size + length
        if at <= len(whole):
            self.newest = Image(image_index, whole[_SESSIONS_LENGTH.size : at], whole[at:])


def find_image(heads: Iterable[tuple[int, Internal]]) -> Image | None:
    """The newest complete image among (index, internal entry) pairs in log order."""
    collector = ImageCollector()
    for index, value in heads:
        collector.see(index, strip_stamp(value)[1])
    return collector.newest
