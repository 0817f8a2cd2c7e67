"""Messages that follow each other in the log and differ in nothing that dispatching asks but their numbers.

Producers send batches of them, and one unpack for all, in C, costs a third of one for each. What is not alike
is nobody's loss: it is read one by one (`records.place`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Any, NamedTuple

from broker_adapter.message import ENTRY_HEADER_SIZE, Version
from broker_adapter.sys_flag import HOST_BITS, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE

#: Of an entry of the log: magic and size together. Of the record in it (V1, IPv4 hosts): size and magic
#: together, queue id, queue offset, physical offset, sys_flag, size of the body.
_FIXED = ">Q40xQ4xi4xqqi44xi"
_fixed = Struct(_FIXED)
_begin = Struct(">Q").unpack_from
_position = Struct(">24xq").unpack_from
_BODY_AT = _fixed.size - ENTRY_HEADER_SIZE
_V1 = int(Version.V1)
_DISPATCHED = (TRANSACTION_NONE, TRANSACTION_COMMIT)
#: How many entries are looked at for a run: more and more as long as all of them belong to it.
_FIRST_LOOK, _LONGEST_LOOK = 16, 1024
#: After a look that was not worth it, so many entries are taken one by one.
_PAUSE = 32


class MessageRun(NamedTuple):
    """`count` entries of `entry_size` bytes each. `tail`: topic and properties of each, with lengths."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    entry_size: int
    record_size: int
    tail: bytes
    physical_offset: int  # of the first; the others follow at a distance of entry_size
    queue_ids: tuple[int, ...]
    queue_offsets: tuple[int, ...]

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """(queue id, number of its first message in the run, one behind its last), as in the log."""
        begin = 0
        for queue_id, group in groupby(self.queue_ids[: self.count]):
            end = begin + sum(1 for _ in group)
            yield queue_id, begin, end
            begin = end


class RunFinder:
    """Of one piece of the log: entries with their headers, verified."""

    def __init__(self, piece: bytes | memoryview) -> None:
        self._piece = memoryview(piece)
        self._look = _FIRST_LOOK
        self._pause = 0

    def find(self, at: int, entry_size: int) -> MessageRun | None:
        """The run that begins with the entry at `at`; None: take this one by itself."""
        if self._pause:
            self._pause -= 1
            return None
        piece = self._piece
        most = min((len(piece) - at) // entry_size, self._look)
        if most < 2 or entry_size < _fixed.size or _begin(piece, at) != _begin(piece, at + entry_size):
            return None
        _, record_begin, _, _, physical_offset, sys_flag, body_size = _fixed.unpack_from(piece, at)
        record_size = entry_size - ENTRY_HEADER_SIZE
        tail_size = record_size - _BODY_AT - body_size
        if (
            record_begin != record_size << 32 | _V1
            or body_size < 0
            or tail_size < 1
            or sys_flag & HOST_BITS
            or sys_flag & TRANSACTION_MASK not in _DISPATCHED
        ):
            return None
        rows = _rows(body_size, tail_size).iter_unpack(piece[at : at + most * entry_size])
        begins, record_begins, queue_ids, offsets, physicals, flags, body_sizes, tails = zip(
            *rows, strict=True
        )
        alike = min(map(_alike, (begins, record_begins, flags, body_sizes, tails)))
        places = range(physical_offset, physical_offset + most * entry_size, entry_size)
        alike = min(alike, _equal(physicals, tuple(places)))
        if alike == most:
            self._look = min(4 * self._look, _LONGEST_LOOK)
        else:
            self._look = _FIRST_LOOK
        if alike < 2:
            self._pause = _PAUSE
            return None
        last = at + (alike - 1) * entry_size
        for one in (at, last):  # then those between are where they say, too: entries lie side by side
            (pos,) = _position(piece, one)
            if physicals[(one - at) // entry_size] != pos + ENTRY_HEADER_SIZE:
                return None
        return MessageRun(alike, entry_size, record_size, tails[0], physical_offset, queue_ids, offsets)


@lru_cache(maxsize=1024)
def _rows(body_size: int, tail_size: int) -> Struct:
    return Struct(f"{_FIXED}{body_size}x{tail_size}s")


def _alike(column: tuple[Any, ...]) -> int:
    """How many of the first values are equal."""
    first = column[0]
    if column.count(first) == len(column):
        return len(column)
    return next(at for at, value in enumerate(column) if value != first)


def _equal(column: tuple[int, ...], expected: tuple[int, ...]) -> int:
    """How many of the first values are as expected."""
    if column == expected:
        return len(column)
    return next(at for at, (value, other) in enumerate(zip(column, expected, strict=True)) if value != other)
