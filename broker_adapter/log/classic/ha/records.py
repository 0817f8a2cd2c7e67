"""Parse records from a stream of CommitLog data. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic.alike_records import count_alike, count_intact
from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES, StoredMessage
from broker_adapter.log.classic.record_check import check_record
from broker_adapter.log.classic.shipped_units import UnitRun
from broker_adapter.wire.message import BLANK_MAGIC, MIN_RECORD_SIZE, Version, decode, max_record_size

_SIZE_AND_MAGIC = struct.Struct(">II")
_MAGICS = frozenset(int(version) for version in Version)


class RecordReader:
    """Splits a stream into records. Buffers at most one incomplete record.

    `position`: physical offset after all complete records and the blanks between them.
    """

    def __init__(self, position: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """Create a reader. `position`: physical offset of the first byte, where a record starts."""
        self.position = position
        self._max_body_bytes = max_body_bytes
        self._most = max_record_size(max_body_bytes)
        self._buffer = bytearray()
        self._blank = 0  # bytes up to the next file

    def feed(self, data: bytes | memoryview) -> Iterator[StoredMessage]:
        """Consume `data` and yield the complete records.

        Raises StoredDataDamaged if a record is invalid or states another offset.
        """
        self._buffer += data
        at = 0
        try:
            while True:
                skipped = min(self._blank, len(self._buffer) - at)
                self._blank -= skipped
                self.position += skipped
                at += skipped
                size = self._record_size(at)
                if size:
                    found = self._record(at, size)
                    self.position += size
                    at += size
                    yield found
                elif not self._blank or at == len(self._buffer):
                    return
        finally:
            del self._buffer[:at]

    def _record_size(self, at: int) -> int:
        """Return the size of a complete record, or 0 if it is incomplete or a blank starts."""
        size = unit_size_at(self._buffer, at, self.position, self._most)
        if size < 0:
            self._blank = -size
            return 0
        return size if size <= len(self._buffer) - at else 0

    def _record(self, at: int, size: int) -> StoredMessage:
        record = bytes(memoryview(self._buffer)[at : at + size])
        message = decode(record, max_body_bytes=self._max_body_bytes)
        if message.physical_offset != self.position:
            text = f"record of offset {message.physical_offset} at {self.position}"
            raise _damaged(Status.RECORD_FIELD, text)
        return StoredMessage(record, message)


class WholeUnits(NamedTuple):
    """Checked, complete records and blanks at a physical offset."""

    offset: int
    data: memoryview
    units: list[UnitRun]


class WholeRecords:
    """Collects checked, complete records and blanks for a slave to store, without changing their bytes.

    Buffers one incomplete record, and complete ones until `take_complete`. `position`: end of the complete
    data.
    """

    def __init__(self, position: int, file_size: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """Create a buffer. `position`: see RecordReader. `file_size`: size of CommitLog files in bytes."""
        self.position = position
        self._file_size = file_size
        self._most = max_record_size(max_body_bytes)
        self._buffer = b""
        self._complete = 0  # bytes of the buffer
        self._units: list[UnitRun] = []

    def feed(self, *pieces: bytes | memoryview) -> None:
        """Add data. Raises StoredDataDamaged if a record is invalid; the data before it remains available."""
        self._buffer = b"".join((self._buffer, *pieces))
        while (unit := self._next_unit()) is not None:
            self._units.append(unit)
            self.position += unit.total_bytes
            self._complete += unit.total_bytes

    def take_complete(self) -> WholeUnits:
        """Remove the complete data and return it."""
        data = memoryview(self._buffer)[: self._complete]
        taken = WholeUnits(self.position - len(data), data, self._units)
        self._buffer, self._complete, self._units = self._buffer[self._complete :], 0, []
        return taken

    @property
    def incomplete_bytes(self) -> int:
        return len(self._buffer) - self._complete

    def _next_unit(self) -> UnitRun | None:
        """Return the next unit, or None if the next record or blank is incomplete."""
        at = self._complete
        size = unit_size_at(self._buffer, at, self.position, self._most)
        left = self._file_size - self.position % self._file_size
        if size < 0:
            size = -size
            if size != left or size > self._most + _SIZE_AND_MAGIC.size:
                raise self._does_not_fit("blank", size, left)
            return UnitRun(size, 0) if size <= len(self._buffer) - at else None
        if size > left:
            raise self._does_not_fit("record", size, left)
        if not size or size > len(self._buffer) - at:
            return None
        check_record(self._buffer, at, self.position, left)
        count = count_alike(self._buffer, at, size, self.position, left)
        return UnitRun(size, count_intact(self._buffer, at, size, count))

    def _does_not_fit(self, what: str, size: int, left: int) -> StoredDataDamaged:
        text = f"a {what} of {size} bytes at {self.position}, but the file has {left} bytes left"
        return _damaged(Status.RECORD_LENGTHS, text)


def unit_size_at(data: bytes | bytearray, at: int, position: int, most: int) -> int:
    """Return the size of the record at `at`, the negative size of a blank, or 0 if size and magic are
    incomplete.

    `position`: physical offset, for error texts. `most`: maximum size of a record. Raises StoredDataDamaged
    if the data is neither a record nor a blank.
    """
    if len(data) - at < _SIZE_AND_MAGIC.size:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic in _MAGICS and MIN_RECORD_SIZE < size <= most:
        return int(size)
    if magic != BLANK_MAGIC:
        status = Status.RECORD_LENGTHS if magic in _MAGICS else Status.RECORD_MAGIC
        raise _damaged(
            status, f"the data at offset {position} is not a record: size {size}, magic {magic:#010x}"
        )
    if size < _SIZE_AND_MAGIC.size:
        raise _damaged(Status.RECORD_LENGTHS, f"the blank at offset {position} has the invalid size {size}")
    return -int(size)


def _damaged(status: Status, problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(status, problem)
