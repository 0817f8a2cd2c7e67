"""Fill the bytes after the end of a log with zeros.

Files keep their sizes, because RocketMQ refuses shorter files.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.infra.files.disk import Disk, read_around, write_all

_CHUNK = 1 << 20


def zero(disk: Disk, handle: int, begin: int, end: int) -> None:
    """Overwrite non-zero or unreadable bytes in a range of a file. Raises OSError."""
    for at, data in _dirty(disk, handle, begin, end):
        write_all(disk, handle, [bytes(len(data))], at)


def dirty_end(disk: Disk, handle: int, begin: int, end: int) -> int:
    """Return the offset after the last non-zero byte in a range, or the start of the range if there is none.

    Raises OSError.
    """
    last = begin
    for at, data in _dirty(disk, handle, begin, end):
        last = at + len(data.rstrip(b"\0"))
    return last


def _dirty(disk: Disk, handle: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) for chunks of a file that are not all zeros."""
    for low, high in disk.data_ranges(handle):
        for at in range(max(low, begin), min(high, end), _CHUNK):
            data = read_around(disk, handle, min(_CHUNK, high - at, end - at), at)
            if data.strip(b"\0"):
                yield at, data
