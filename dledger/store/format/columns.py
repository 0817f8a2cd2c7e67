"""Verification and indexing of many entries at once, with their headers as columns of an array. Pure.

Checking entries one by one costs three times as much as the checksums of their bodies. Entries accepted here
need no further check. Callers check the first rejected entry and all later ones one by one, to name the fault
and to distinguish entries of original DLedger from damage.
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

RECORD_SIZE = 32  # size of an index record, in bytes
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
#: The header fields that a walk reads: magic, size and channel.
_unpack_step = Struct(">ii24xi").unpack_from
_unpack_size = Struct(">4xi").unpack_from
#: Fewer entries are checked one by one: 256 take about as long either way.
MIN_ENTRIES = 256
#: Fewer entry sizes are compared one by one.
_MIN_SIZES = 16


class Columns:
    """Consecutive entries in a buffer. Only their sizes are known to be consistent."""

    def __init__(self, data: bytes | memoryview, offsets: list[int], end: int) -> None:
        """`offsets`: start of each entry; `end`: end of the last one."""
        self._data = data
        self._borders = [*offsets, end]
        # `anywhere` is a view of the headers at all byte offsets. Selecting the entries' headers copies them.
        anywhere: Column = np.ndarray(
            (len(data) - ENTRY_HEADER_SIZE + 1, ENTRY_HEADER_SIZE), np.uint8, data, strides=(1, 1)
        )
        self._offsets = np.frombuffer(array("q", offsets), np.int64)
        self._raw = anywhere[self._offsets]
        self._headers = self._raw.view(_HEADER)[:, 0]

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, number: int) -> int:
        """Return the start of an entry or, for the number of entries, the end of the last one."""
        return self._borders[number]

    def chain_crc(self, number: int) -> bytes:
        """Return the stored chain_crc of an entry."""
        return bytes(self._raw[number, 36:40])

    def last_of_batch(self, count: int | None = None) -> int:
        """Return the number of the last entry, among the first `count`, that ends a batch; -1 if there is
        none."""
        ends = np.flatnonzero(self._headers["channel"][:count] == 0)
        return int(ends[-1]) if len(ends) else -1

    def sound(self, index: int, pos: int, previous_chain: bytes, limit: int) -> int:
        """Count the leading entries, up to `limit`, that may follow an entry with chain_crc `previous_chain`.

        Checks index, position, sizes, magic, body_crc and chain. `index` and `pos`: expected values of the
        first entry."""
        headers = self._headers
        good = headers["index"] == np.arange(index, index + len(self))
        good &= headers["pos"] == self._offsets + (pos - self._borders[0])
        good &= headers["size"] == headers["body_size"] + ENTRY_HEADER_SIZE
        good &= (headers["magic"] == 1) | (headers["magic"] == 2)
        good &= headers["chain_crc"] == self._chain(previous_chain)
        plausible = min(_leading(good), limit)
        return _leading(headers["body_crc"][:plausible] == self._body_sums(plausible))

    def one_batch(self, term: int, remaining: int) -> int:
        """Count the leading entries that belong to one batch of this term which starts with them, when
        `remaining` entries follow the first."""
        headers = self._headers
        good = headers["channel"] == np.arange(remaining, remaining - len(self), -1)
        good &= headers["term"] == term
        good[1:] &= headers["magic"][1:] == 1
        return _leading(good)

    def batches(self, count: int) -> list[int]:
        """Return the number of the last entry of each whole batch among the first `count` entries. A batch
        has one term, counts its channel down to 0, and may have an INTERNAL entry only at its start."""
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
        whole: list[int] = lasts[lasts < _leading(good)].tolist()
        return whole

    def index_records(self) -> bytes:
        """Return the index records of all entries."""
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
        # Converting a list with numpy would take a third of the time of the checksums.
        return np.frombuffer(array("I", sums), np.uint32)

    def _chain(self, previous: bytes) -> Column:
        """Compute the expected chain_crc of each entry, assuming that all preceding ones are valid."""
        raw = self._raw.T
        summed = np.empty((ENTRY_HEADER_SIZE, len(self)), np.uint8)
        summed[:36] = raw[:36]
        summed[36:44] = raw[40:48]
        summed[44:, 0] = np.frombuffer(previous, np.uint8)
        summed[44:, 1:] = raw[36:40, :-1]
        expected = crc32_columns(summed)
        expected[expected == 0] = 1
        return expected


def lay_out(data: bytes | memoryview, offset: int, limit: int) -> Columns | None:
    """Return up to `limit` complete entries starting at `offset`. Returns None if there are too few for
    columns."""
    if limit < MIN_ENTRIES or len(data) - offset < MIN_ENTRIES * ENTRY_HEADER_SIZE:
        return None
    offsets: list[int] = []
    at, end = offset, len(data)
    while len(offsets) < limit and at + ENTRY_HEADER_SIZE <= end:
        magic, size, channel = _unpack_step(data, at)
        if magic <= 0 or size < ENTRY_HEADER_SIZE or at + size > end:
            break
        # The remaining entries of a batch usually have the same size.
        count = _of_equal_size(data, at, size, min(channel + 1, (end - at) // size, limit - len(offsets)))
        offsets.extend(range(at, at + count * size, size))
        at += count * size
    return Columns(data, offsets, at) if len(offsets) >= MIN_ENTRIES else None


def is_long(data: bytes | memoryview, offset: int) -> bool:
    """Return True if a batch with enough entries for columns seems to start at `offset`."""
    return (
        len(data) - offset >= MIN_ENTRIES * ENTRY_HEADER_SIZE
        and _unpack_step(data, offset)[2] + 1 >= MIN_ENTRIES
    )


def may_be_many(data: bytes | memoryview, offset: int) -> bool:
    """Return True if the data suffices for columns, if all entries are as large as the first."""
    size = len(data) - offset
    return size >= MIN_ENTRIES * ENTRY_HEADER_SIZE and size >= MIN_ENTRIES * _unpack_size(data, offset)[0]


def _of_equal_size(data: bytes | memoryview, at: int, size: int, limit: int) -> int:
    """Count the consecutive entries of `size` bytes at `at`, including the first."""
    if limit < _MIN_SIZES:
        return 1
    last = at + (limit - 1) * size
    if _unpack_size(data, at + size)[0] != size or _unpack_size(data, last)[0] != size:
        return 1
    sizes: Column = np.ndarray(limit, ">i4", data, at + 4, (size,))
    return _leading(sizes == size)


def _leading(good: Column) -> int:
    """Count the leading true values."""
    return len(good) if good.all() else int(good.argmin())


def _crc32_tables() -> Column:
    """Return the contribution of each value of each of 48 bytes to a crc32, which is linear: [place * 256 +
    value]."""
    last = np.array([crc32(bytes([value])) ^ crc32(b"\0") for value in range(256)], np.uint32)
    tables = [last]
    for _ in range(ENTRY_HEADER_SIZE - 1):
        later = tables[-1]  # one byte further from the end, as if a zero followed
        tables.append((later >> 8) ^ last[later & 0xFF])
    return np.concatenate(tables[::-1])


_TABLES = _crc32_tables()
_PLACES = np.arange(ENTRY_HEADER_SIZE)[:, None] * 256


def crc32_columns(columns: Column) -> Column:
    """Compute the crc32 of each column of 48 bytes. Looks up only the bytes that vary between columns."""
    varying = np.flatnonzero((columns != columns[:, :1]).any(axis=1))
    sums: Column = np.bitwise_xor.reduce(_TABLES.take(columns[varying] + _PLACES[varying]), axis=0)
    return sums ^ np.uint32(int(sums[0]) ^ crc32(columns[:, 0].tobytes()))
