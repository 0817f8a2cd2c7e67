"""Finds runs of consecutive messages of one topic whose fields have equal sizes and whose tags are equal.

Numeric fields, bodies, keys and values of other properties may differ. Producers send such messages in
batches. Comparing the columns of a batch costs a fraction of dispatching each message. All other messages are
dispatched one by one (`dispatching.place`).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_adapter.log.protocol import Piece
from broker_adapter.store.index_files import KeyedRun
from broker_adapter.wire.delay_levels import DELAY_LEVEL
from broker_adapter.wire.message import Version
from broker_adapter.wire.properties import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, TAGS, UNIQ_KEY
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
# Bytes from here on are not ASCII. As the least value, it permits no other value than the first message's.
_FIXED = 0x80
# Values contain no separators, and keys no blanks.
_FIRST_OF_VALUES, _FIRST_OF_KEYS = 0x20, 0x21
_NAME_VALUE_SEPARATOR, _PROPERTY_SEPARATOR = NAME_VALUE_SEPARATOR.encode(), PROPERTY_SEPARATOR.encode()
_UNIQ_KEY, _KEYS = UNIQ_KEY.encode(), KEYS.encode()
_INDEXED = (_UNIQ_KEY, _KEYS)
_AFFECTING = (TAGS.encode(), DELAY_LEVEL.encode())
# Minimum length of a run whose tails are equal, and of another one, which takes more work for each queue.
_LEAST, _LEAST_DIFFERENT = 16, 32
# Number of entries compared in one search: minimum and maximum. It grows while all compared entries match.
_FIRST_LOOK, _LONGEST_LOOK = 64, 4096
# After an unsuccessful search, this many entries are dispatched one by one. The number doubles each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 4096


class MessageRun(NamedTuple):
    """A run of `count` entries of `entry_size` bytes each.

    `tail`: topic and properties of the first message, with their lengths. The others have the same topic and
    tag. `physical_offset`: offset of the first message. `keys`: a matrix with a row for each message, for
    each of its keys in the index; None: a message may have other keys than its matrices contain.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count
    entry_size: int
    record_size: int
    tail: bytes
    physical_offset: int
    queue_ids: Column
    queue_offsets: Column
    stamps: Column
    keys: tuple[Column, ...] | None

    def parts(self) -> list[tuple[int, Column]]:
        """Return (queue id, numbers of its messages in the run) for each queue, by first message."""
        ids = self.queue_ids
        if (ids == ids[0]).all():
            return [(int(ids[0]), np.arange(self.count))]
        parts: dict[int, list[int]] = {}  # faster than columns, because most parts are short
        for number, queue_id in enumerate(ids.tolist()):
            parts.setdefault(queue_id, []).append(number)
        return [(queue_id, np.array(numbers)) for queue_id, numbers in parts.items()]

    def count_expected(self, numbers: Column, first: int) -> int:
        """Return how many messages precede the first one of `numbers` whose queue offset is not the next one.

        `first`: expected queue offset of the first one.
        """
        offsets = self.queue_offsets[numbers].tolist()
        expected = range(first, first + len(numbers))
        if offsets == list(expected):
            return self.count
        return next(int(numbers[at]) for at, offset in enumerate(offsets) if offset != expected[at])

    def units(self, tag_code: int) -> Column:
        """Return the ConsumeQueue units of the messages."""
        units = np.empty(self.count, dtype=_UNIT)
        units["physical_offset"] = self._physical_offsets(self.count)
        units["size"] = self.record_size
        units["tag_code"] = tag_code
        return units

    def keyed(self, topic: str, count: int) -> KeyedRun:
        """Return the keys of the first `count` messages. The result does not refer to the piece."""
        keys = tuple(rows[:count].copy() for rows in self.keys or ())
        return KeyedRun(topic, keys, self._physical_offsets(count), self.stamps[:count].astype(np.int64))

    def _physical_offsets(self, count: int) -> npt.NDArray[np.int64]:
        return self.physical_offset + self.entry_size * np.arange(count, dtype=np.int64)


class TailShape(NamedTuple):
    """The shape of a message's topic and properties, which the other messages of its run have, too.

    `least`: for each byte its least value if it differs from the first message's; never above 0x7F. `keys`:
    positions of the keys to be indexed, or None if these cannot be found by position.
    """

    least: npt.NDArray[np.uint8]
    keys: list[slice] | None

    @classmethod
    def of(cls, tail: bytes) -> TailShape:
        """Return the shape of a message with this tail.

        Values may differ, because they do not affect the dispatch, except for the tag and the delay.
        """
        least = np.full(len(tail), _FIXED, dtype=np.uint8)
        found: dict[bytes, slice] = {}
        at = 1 + tail[0] + 2
        for item in tail[at:].split(_PROPERTY_SEPARATOR):
            name, _, value = item.partition(_NAME_VALUE_SEPARATOR)
            end = at + len(item)
            if name and value and name not in _AFFECTING:
                is_indexed = name in _INDEXED
                if is_indexed and (name in found or not value.isascii()):
                    return cls(np.full(len(tail), _FIXED, dtype=np.uint8), None)
                found[name] = slice(end - len(value), end)
                least[found[name]] = _FIRST_OF_KEYS if is_indexed else _FIRST_OF_VALUES
            at = end + 1
        least[np.frombuffer(tail, np.uint8) >= _FIXED] = _FIXED  # bytes of one character depend on each other
        keys = [found[_UNIQ_KEY]] if _UNIQ_KEY in found else []
        if _KEYS in found:
            at = found[_KEYS].start
            for key in tail[found[_KEYS]].split(b" "):
                end = at + len(key)
                keys += [slice(at, end)] if key else []
                least[end : end + 1] = _FIXED  # the blank, or the end of the property
                at = end + 1
        return cls(least, keys)

    def count_alike(self, tails: Column) -> int:
        """Return the number of leading rows of `tails` that have this shape. The first row always has it."""
        return _leading(((tails == tails[0]) | ((tails >= self.least) & (tails < _FIXED))).all(axis=1))


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
        end = at + entry_size
        is_equal = piece[end - tail_size : end] == piece[end + entry_size - tail_size : end + entry_size]
        least = _LEAST if is_equal else _LEAST_DIFFERENT
        if most < least:
            return None
        self.looks += 1
        rows = np.frombuffer(piece, dtype=_layout(header, entry_size, tail_size), count=most, offset=at)
        tail = rows["tail"][0].tobytes()
        shape = TailShape.of(tail)
        count = _alike(rows, entry_size, shape)
        self._search_length = min(4 * self._search_length, _LONGEST_LOOK) if count == most else _FIRST_LOOK
        # Entries are contiguous. If the first and the last entry are at their stated positions, so are all
        # others.
        if count < least or not (
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
            tail,
            int(rows["physical_offset"][0]),
            rows["queue_id"][:count],
            rows["queue_offset"][:count],
            rows["stamp"][:count],
            None if shape.keys is None else tuple(rows["tail"][:count, key] for key in shape.keys),
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
        "stamp": (">i8", header + 56),
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


def _alike(rows: Column, entry_size: int, shape: TailShape) -> int:
    """Return the length of the longest uniform prefix of `rows`."""
    physical_offsets = rows["physical_offset"]
    count = _leading(physical_offsets == physical_offsets[0] + entry_size * np.arange(len(rows)))
    for name in ("begin", "record_begin", "sys_flag", "body_size"):
        column = rows[name][:count]
        count = _leading(column == column[0])
    return shape.count_alike(rows["tail"][:count])


def _leading(alike: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading true values."""
    return len(alike) if alike.all() else int(alike.argmin())
