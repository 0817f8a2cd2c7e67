"""Zeros behind the end of a log. Files keep their sizes meanwhile: RocketMQ refuses shorter ones."""

from __future__ import annotations

from collections.abc import Iterator

from dledger.platform import Disk, read_around, write_all

_CHUNK = 1 << 20


def zero(disk: Disk, handle: int, begin: int, end: int) -> None:
    """Overwrite what is none between these bytes of a file, or cannot be read. OSError."""
    for at, data in _dirty(disk, handle, begin, end):
        write_all(disk, handle, [bytes(len(data))], at)


def dirty_end(disk: Disk, handle: int, begin: int, end: int) -> int:
    """Behind the last byte between these that is no zero; `begin` if all are. OSError."""
    found = begin
    for at, data in _dirty(disk, handle, begin, end):
        found = at + len(data.rstrip(b"\0"))
    return found


def _dirty(disk: Disk, handle: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of a file that are not all zeros, with their places."""
    for low, high in disk.data_ranges(handle):
        for at in range(max(low, begin), min(high, end), _CHUNK):
            data = read_around(disk, handle, min(_CHUNK, high - at, end - at), at)
            if data.strip(b"\0"):
                yield at, data
