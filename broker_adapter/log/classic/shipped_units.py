"""Units of a CommitLog in the bytes that a slave receives: runs of records, and blanks. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_adapter.log.classic.alike_records import count_alike
from broker_adapter.log.classic.append_heads import AppendTracker
from broker_adapter.log.classic.layout import MIN_BLANK
from broker_adapter.log.classic.record_check import HEAD_SIZE, MAX_HEAD_SIZE, is_blank, store_timestamp

_SIZE_AND_MAGIC = struct.Struct(">II")
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28

Buffer = bytes | bytearray | memoryview


class UnitRun(NamedTuple):
    """`records` adjacent records of `size` bytes each, or a blank of `size` bytes if `records` is 0.

    Only the first record of a run may be the head of an append, and only if it is the only one.
    """

    size: int
    records: int

    @property
    def total_bytes(self) -> int:
        return self.size * (self.records or 1)


class ShippedState(NamedTuple):
    """State of a slave's log after writing bytes from its master.

    `newest`: timestamp and offset of the last record. `before_append`: the same values for the last record
    before an incomplete append.
    """

    newest: tuple[int, int]
    appends: AppendTracker
    before_append: tuple[int, int]

    def after(self, offset: int, data: Buffer, units: Iterable[UnitRun]) -> ShippedState:
        """Return the state after `data`, which is at `offset` and consists of `units`."""
        at, last = 0, -1
        newest, before, appends = self.newest, self.before_append, AppendTracker(self.appends)
        for unit in units:
            size, records = unit
            if not records:
                appends.close()
            else:
                appends.add(data, at, size, offset + at)
                if appends.begin == offset + at:
                    before = newest if last < 0 else _newest(offset, data, last)
                appends.add_plain(data, at + size, size, records - 1)
                last = at + (records - 1) * size
            at += unit.total_bytes
        return ShippedState(newest if last < 0 else _newest(offset, data, last), appends, before)


def _newest(offset: int, data: Buffer, last: int) -> tuple[int, int]:
    """Return timestamp and offset of the record at `last` in `data`."""
    return store_timestamp(data[last : last + MAX_HEAD_SIZE]), offset + last


def find_units(offset: int, data: bytes | bytearray, file_size: int) -> Iterator[UnitRun]:
    """Yield the units of `data`, which is at `offset`.

    Raises ValueError unless it consists of whole records at their offsets and whole blanks.
    """
    at, end = 0, len(data)
    left = file_size - offset % file_size
    while at < end:
        rest = end - at
        if rest < min(left, MIN_BLANK):
            raise ValueError(f"the {rest} bytes at offset {offset + at} are neither a record nor a blank")
        size, is_gap = left, is_blank(data, at, left)
        if not is_gap:
            check_place(data, offset + at, at)
            size, _ = _SIZE_AND_MAGIC.unpack_from(data, at)
        if size > rest:
            raise ValueError(f"the unit at offset {offset + at} is truncated: {rest} of {size} bytes")
        unit = UnitRun(size, 0 if is_gap else count_alike(data, at, size, offset + at, left))
        yield unit
        at += unit.total_bytes
        left = left - unit.total_bytes or file_size


def check_place(data: bytes | bytearray, place: int, at: int = 0) -> None:
    """Raise ValueError unless the record at byte `at` of `data` has the physical offset `place`."""
    if len(data) - at < HEAD_SIZE:
        raise ValueError(f"the remaining {len(data) - at} bytes are too short for a record")
    (offset,) = _PHYSICAL_OFFSET.unpack_from(data, at + _PHYSICAL_OFFSET_AT)
    if offset != place:
        raise ValueError(f"the record at offset {place} states offset {offset}")
