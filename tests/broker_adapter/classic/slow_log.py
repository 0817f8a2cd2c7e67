"""Where a CommitLog ends, told as slowly and as plainly as can be: the oracle of recovery.

It shares no code with it, and takes a record apart field by field.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

_BLANK = 0xCBD43194
_LARGEST = (64 << 20) + (1 << 16)


def number(stream: bytes, at: int, size: int) -> int:
    return int.from_bytes(stream[at : at + size], "big")


def record_at(stream: bytes, at: int, begin: int, file_size: int) -> bytes | None:
    """The record that is whole at `at` of a stream of files, the first of which begins at `begin`."""
    size = number(stream, at, 4)
    magic = number(stream, at + 4, 4)
    if magic not in (0xDAA320A7, 0xDAA320AB) or not 91 < size <= _LARGEST:
        return None
    if size > file_size - at % file_size or number(stream, at + 28, 8) != begin + at:
        return None
    record = stream[at : at + size]
    sys_flag = number(record, 36, 4)
    place = 48
    place += 20 if sys_flag & 0x10 else 8  # born host
    place += 8  # store timestamp
    place += 20 if sys_flag & 0x20 else 8  # store host
    place += 4 + 8  # times, offset of the prepared message
    body_size = number(record, place, 4)
    body = record[place + 4 : place + 4 + body_size]
    place += 4 + body_size
    if place >= size:
        return None
    if magic == 0xDAA320A7:
        place += 1 + number(record, place, 1)
    else:
        place += 2 + number(record, place, 2)
    if place + 2 > size:
        return None
    place += 2 + number(record, place, 2)
    if place != size:
        return None
    if body and zlib.crc32(body) & 0x7FFFFFFF != number(record, 8, 4):
        return None
    return record


def records_of(stream: bytes, begin: int, file_size: int) -> tuple[list[tuple[int, bytes]], int]:
    """(physical offset, record) of all up to the end of the log, and where that is."""
    found = []
    at = 0
    while at < len(stream):
        left = file_size - at % file_size
        if left < 8 or number(stream, at + 4, 4) == _BLANK:
            at += left
            continue
        record = record_at(stream, at, begin, file_size)
        if record is None:
            break
        found.append((begin + at, record))
        at += len(record)
    return found, begin + at


def records_behind(stream: bytes, begin: int, end: int, file_size: int) -> Sequence[tuple[int, int]]:
    """(physical offset, its end) of whole records at any byte behind the end that do not overlap."""
    found = []
    at = end - begin
    while at < len(stream):
        record = record_at(stream, at, begin, file_size)
        if record is None:
            at += 1
            continue
        found.append((begin + at, begin + at + len(record)))
        at += len(record)
    return found
