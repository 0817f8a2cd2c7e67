"""Finds runs of consecutive messages that differ only in numeric fields and body.

Producers send such messages in batches. Comparing the columns of a batch costs a fraction of dispatching each
message. All other messages are dispatched one by one (`dispatching.place`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_adapter.log.protocol import Piece
from broker_adapter.wire.message import Version
from broker_adapter.wire.sys_flag import HOST_BITS, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE

Column = npt.NDArray[Any]

# Magic and size of an entry or a record, as one number.
_begin = Struct(">Q").unpack_from
# Fields of a record (V1, IPv4 hosts): size, magic, sys_flag, size of the body.
_record = Struct(">II28xi44xi").unpack_from
_BODY_AT = 88  # position in such a record
_V1 = int(Version.V1)
_DISPATCHED = (TRANSACTION_NONE, TRANSACTION_COMMIT)
_UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
# Minimum length of a run.
_LEAST = 16
# Number of entries compared in one search: minimum and maximum. It grows while all compared entries match.
_FIRST_LOOK, _LONGEST_LOOK = 64, 4096
# After an unsuccessful search, this many entries are dispatched one by one. The number doubles each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 4096


class MessageRun(NamedTuple):
    """A run of `count` entries of `entry_size` bytes each.

    `tail`: the topic and properties that all messages share, with their lengths. `physical_offset`: offset of
    the first message.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count
    entry_size: int
    record_size: int
    tail: bytes
    physical_offset: int
    queue_ids: Column
    queue_offsets: Column

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (queue id, start, end) for each part of the run in one queue, in log order."""
        ids = self.queue_ids
        borders = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), self.count]
        for begin, end in pairwise(borders):
            yield int(ids[begin]), begin, end

    def has_offsets_from(self, first: int, begin: int, end: int) -> bool:
        """True if the queue offsets in this part of the run are consecutive and start at `first`."""
        return np.array_equal(self.queue_offsets[begin:end], np.arange(first, first + end - begin))

    def units(self, begin: int, end: int, tag_code: int) -> bytes:
        """Return the ConsumeQueue units of the messages in this part of the run."""
        units = np.empty(end - begin, dtype=_UNIT)
        units["physical_offset"] = self.physical_offset + self.entry_size * np.arange(begin, end)
        units["size"] = self.record_size
        units["tag_code"] = tag_code
        return units.tobytes()


class RunFinder:
    """Finds runs in one piece of the log, which contains verified records with their headers."""

    def __init__(self, piece: Piece, header_size: int) -> None:
        """Create a finder. `header_size` is the number of bytes before each record."""
        self._piece = piece
        self._header_size = header_size
        self._search_length = _FIRST_LOOK
        self._singly = 0  # entries to dispatch one by one before the next search
        self._pause = _FIRST_PAUSE
        self.looks = 0

    def find(self, at: int, entry_size: int) -> MessageRun | None:
        """Return the run that starts at `at`, or None if this entry must be dispatched alone."""
        if self._singly:
            self._singly -= 1
            return None
        piece, header = self._piece.data, self._header_size
        most = min((len(piece) - at) // entry_size, self._search_length)
        if most < _LEAST or entry_size < header + _BODY_AT:
            return None
        begin = _begin(piece, at)
        if begin != _begin(piece, at + entry_size) or begin != _begin(piece, at + (_LEAST - 1) * entry_size):
            return None
        record_size, magic, sys_flag, body_size = _record(piece, at + header)
        tail_size = record_size - _BODY_AT - body_size
        if (
            record_size != entry_size - header
            or magic != _V1
            or body_size < 0
            or tail_size < 1
            or sys_flag & HOST_BITS
            or sys_flag & TRANSACTION_MASK not in _DISPATCHED
        ):
            return None
        self.looks += 1
        rows = np.frombuffer(piece, dtype=_layout(header, entry_size, tail_size), count=most, offset=at)
        count = _alike(rows, entry_size)
        self._search_length = min(4 * self._search_length, _LONGEST_LOOK) if count == most else _FIRST_LOOK
        # Entries are contiguous. If the first and the last entry are at their stated positions, so are all
        # others.
        if count < _LEAST or not (
            self._is_in_place(at, rows[0])
            and self._is_in_place(at + (count - 1) * entry_size, rows[count - 1])
        ):
            self._singly, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return None
        self._pause = _FIRST_PAUSE
        return MessageRun(
            count,
            entry_size,
            record_size,
            rows["tail"][0].tobytes(),
            int(rows["physical_offset"][0]),
            rows["queue_id"][:count],
            rows["queue_offset"][:count],
        )

    def _is_in_place(self, at: int, row: Any) -> bool:
        return bool(row["physical_offset"] == self._piece.physical_offset(at))


@lru_cache(maxsize=1024)
def _layout(header: int, entry_size: int, tail_size: int) -> np.dtype[Any]:
    """Return the layout for comparing entries. Fields that must be equal have native byte order."""
    fields: dict[str, tuple[Any, int]] = {
        "begin": ("u8", 0),
        "record_begin": ("u8", header),
        "queue_id": (">i4", header + 12),
        "queue_offset": (">i8", header + 20),
        "physical_offset": (">i8", header + 28),
        "sys_flag": ("u4", header + 36),
        "body_size": ("u4", header + 84),
        "tail": (("u1", (tail_size,)), entry_size - tail_size),
    }
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": entry_size,
        }
    )


def _alike(rows: Column, entry_size: int) -> int:
    """Return the length of the longest uniform prefix of `rows`."""
    physical_offsets = rows["physical_offset"]
    count = _leading(physical_offsets == physical_offsets[0] + entry_size * np.arange(len(rows)))
    for name in ("begin", "record_begin", "sys_flag", "body_size"):
        column = rows[name][:count]
        count = _leading(column == column[0])
    tails = rows["tail"][:count]
    return _leading((tails == tails[0]).all(axis=1))


def _leading(alike: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading true values."""
    return len(alike) if alike.all() else int(alike.argmin())
