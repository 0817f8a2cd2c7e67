"""Many entries at once: their headers side by side, verified and indexed in columns. Pure.

One by one, checking an entry costs three times what its body's checksum does. What is found sound here is
sound; where that ends, callers go on one by one: there faults get their names, and entries of original
DLedger are told from damage.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE

Column = npt.NDArray[Any]

RECORD_SIZE = 32  # of an index record
#: The header of an entry; see dledger.store.format.batch.
_HEADER = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_size", ">i4"),
    ]
)
#: What a walk along headers looks at: magic, size and channel.
_unpack_step = Struct(">ii24xi").unpack_from
_unpack_size = Struct(">4xi").unpack_from
#: Fewer entries are looked at sooner one by one: 256 take about as long.
LEAST = 256
#: Fewer sizes are.
_LEAST_SIZES = 16


class Columns:
    """Entries that follow each other in a buffer, of which only sizes have been looked at."""

    def __init__(self, data: bytes | memoryview, offsets: list[int], end: int) -> None:
        """`offsets`: where each begins. `end`: where the last one ends."""
        self._data = data
        self._borders = [*offsets, end]
        # The headers at any offset, without a copy; those of these entries, with one.
        anywhere: Column = np.ndarray(
            (len(data) - ENTRY_HEADER_SIZE + 1, ENTRY_HEADER_SIZE), np.uint8, data, strides=(1, 1)
        )
        self._offsets = np.frombuffer(array("q", offsets), np.int64)
        self._raw = anywhere[self._offsets]
        self._headers = self._raw.view(_HEADER)[:, 0]

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, number: int) -> int:
        """Where an entry begins, or, with the count of entries, where the last one ends."""
        return self._borders[number]

    def chain_crc(self, number: int) -> bytes:
        """As it is stored."""
        return bytes(self._raw[number, 36:40])

    def last_of_batch(self, count: int | None = None) -> int:
        """The number of the last entry, of the first `count`, that ends a batch; -1: none does."""
        ends = np.flatnonzero(self._headers["channel"][:count] == 0)
        return int(ends[-1]) if len(ends) else -1

    def sound(self, index: int, pos: int, previous_chain: bytes, most: int) -> int:
        """How many entries from the first on, at most `most`, are what follows an entry with this chain_crc,
        at this index and position: by index, position, sizes, magic, body_crc and chain."""
        found = self._headers
        good = found["index"] == np.arange(index, index + len(self))
        good &= found["pos"] == self._offsets + (pos - self._borders[0])
        good &= found["size"] == found["body_size"] + ENTRY_HEADER_SIZE
        good &= (found["magic"] == 1) | (found["magic"] == 2)
        good &= found["chain_crc"] == self._chain(previous_chain)
        plausible = min(_leading(good), most)
        return _leading(found["body_crc"][:plausible] == self._body_sums(plausible))

    def one_batch(self, term: int, left: int) -> int:
        """How many entries from the first on can be of a batch of this term that begins with them, where
        `left` follow the first."""
        found = self._headers
        good = found["channel"] == np.arange(left, left - len(self), -1)
        good &= found["term"] == term
        good[1:] &= found["magic"][1:] == 1
        return _leading(good)

    def batches(self, count: int) -> list[int]:
        """The number of the last entry of each batch, as far as the first `count` entries make up whole ones:
        of one term, counting down to 0, and with only the first one internal, if any is."""
        channel, term = self._headers["channel"][:count], self._headers["term"]
        lasts = np.flatnonzero(channel == 0)
        if not len(lasts):
            return []
        end = int(lasts[-1]) + 1
        is_first = np.zeros(end, np.bool_)
        is_first[0] = True
        is_first[lasts[:-1] + 1] = True
        good = channel[:end] == np.repeat(lasts, np.diff(lasts, prepend=-1)) - np.arange(end)
        good[1:] &= is_first[1:] | (term[1:end] == term[: end - 1])
        good &= is_first | (self._headers["magic"][:end] == 1)
        found: list[int] = lasts[lasts < _leading(good)].tolist()
        return found

    def index_records(self) -> bytes:
        """The index record of each."""
        records = np.empty((len(self), RECORD_SIZE), np.uint8)
        raw = self._raw
        records[:, :4] = raw[:, :4]  # magic
        records[:, 4:12] = raw[:, 24:32]  # pos
        records[:, 12:16] = raw[:, 4:8]  # size
        records[:, 16:] = raw[:, 8:24]  # index, term
        return records.tobytes()

    def _body_sums(self, count: int) -> Column:
        data = memoryview(self._data)
        sums = [
            crc32(data[begin + ENTRY_HEADER_SIZE : end])
            for begin, end in pairwise(self._borders[: count + 1])
        ]
        return np.frombuffer(
            array("I", sums), np.uint32
        )  # a list would take numpy a third as long as the sums

    def _chain(self, previous: bytes) -> Column:
        """The chain_crc that each has to have, if those before it are right."""
        raw = self._raw.T
        summed = np.empty((ENTRY_HEADER_SIZE, len(self)), np.uint8)
        summed[:36] = raw[:36]
        summed[36:44] = raw[40:48]
        summed[44:, 0] = np.frombuffer(previous, np.uint8)
        summed[44:, 1:] = raw[36:40, :-1]
        found = crc32_columns(summed)
        found[found == 0] = 1
        return found


def lay_out(data: bytes | memoryview, offset: int, most: int) -> Columns | None:
    """Up to `most` entries from `offset` on, as far as they are whole. None if they are too few."""
    if most < LEAST or len(data) - offset < LEAST * ENTRY_HEADER_SIZE:
        return None
    offsets: list[int] = []
    at, end = offset, len(data)
    while len(offsets) < most and at + ENTRY_HEADER_SIZE <= end:
        magic, size, channel = _unpack_step(data, at)
        if magic <= 0 or size < ENTRY_HEADER_SIZE or at + size > end:
            break
        # Mostly, what is left of a batch is of one size.
        count = _of_equal_size(data, at, size, min(channel + 1, (end - at) // size, most - len(offsets)))
        offsets.extend(range(at, at + count * size, size))
        at += count * size
    return Columns(data, offsets, at) if len(offsets) >= LEAST else None


def is_long(data: bytes | memoryview, offset: int) -> bool:
    """Whether a batch begins there, it seems, that is worth laying out."""
    return len(data) - offset >= LEAST * ENTRY_HEADER_SIZE and _unpack_step(data, offset)[2] + 1 >= LEAST


def may_be_many(data: bytes | memoryview, offset: int) -> bool:
    """Whether what begins there are enough entries to be laid out, if they are as large as the first one."""
    left = len(data) - offset
    return left >= LEAST * ENTRY_HEADER_SIZE and left >= LEAST * _unpack_size(data, offset)[0]


def _of_equal_size(data: bytes | memoryview, at: int, size: int, most: int) -> int:
    """How many entries of `size` bytes stand there one after the other: at least the first."""
    if most < _LEAST_SIZES:
        return 1
    last = at + (most - 1) * size
    if _unpack_size(data, at + size)[0] != size or _unpack_size(data, last)[0] != size:
        return 1
    sizes: Column = np.ndarray(most, ">i4", data, at + 4, (size,))
    return _leading(sizes == size)


def _leading(good: Column) -> int:
    """How many are true before the first that is not."""
    return len(good) if good.all() else int(good.argmin())


def _crc32_tables() -> Column:
    """What each value of each of 48 bytes adds to a crc32, which is linear: [place * 256 + value]."""
    last = np.array([crc32(bytes([value])) ^ crc32(b"\0") for value in range(256)], np.uint32)
    tables = [last]
    for _ in range(ENTRY_HEADER_SIZE - 1):
        later = tables[-1]  # one byte further from the end: as if a zero came after it
        tables.append((later >> 8) ^ last[later & 0xFF])
    return np.concatenate(tables[::-1])


_TABLES = _crc32_tables()
_PLACES = np.arange(ENTRY_HEADER_SIZE)[:, None] * 256


def crc32_columns(columns: Column) -> Column:
    """The crc32 of each column of 48 bytes. Only bytes that differ from column to column are looked up."""
    varying = np.flatnonzero((columns != columns[:, :1]).any(axis=1))
    found: Column = np.bitwise_xor.reduce(_TABLES.take(columns[varying] + _PLACES[varying]), axis=0)
    return found ^ np.uint32(int(found[0]) ^ crc32(columns[:, 0].tobytes()))
