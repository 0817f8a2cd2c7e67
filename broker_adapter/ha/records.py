"""Records out of pieces of a CommitLog. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from broker_adapter.classic.commit_log import MAX_BODY_BYTES, StoredMessage
from broker_adapter.classic.record_check import check_record
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.message import BLANK_MAGIC, MIN_RECORD_SIZE, Version, decode, max_record_size

_SIZE_AND_MAGIC = struct.Struct(">II")
_MAGICS = frozenset(int(version) for version in Version)


class RecordReader:
    """Holds one record that is not complete, and nothing else. `position`: the physical offset behind all
    records that were taken, and the blanks between them."""

    def __init__(self, position: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`position`: the physical offset of the first byte that is fed, where a record begins."""
        self.position = position
        self._max_body_bytes = max_body_bytes
        self._most = max_record_size(max_body_bytes)
        self._buffer = bytearray()
        self._blank = 0  # bytes up to the next file

    def feed(self, data: bytes) -> Iterator[StoredMessage]:
        """Take all of it. StoredDataDamaged for what is no record, or one of another place."""
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
        """Of the next record, all of which is there; 0: more has to come, or a blank begins."""
        size = unit_size_at(self._buffer, at, self.position, self._most)
        if size < 0:
            self._blank = -size
            return 0
        return size if size <= len(self._buffer) - at else 0

    def _record(self, at: int, size: int) -> StoredMessage:
        record = bytes(memoryview(self._buffer)[at : at + size])
        message = decode(record, max_body_bytes=self._max_body_bytes)
        if message.physical_offset != self.position:
            text = f"a record of offset {message.physical_offset} at {self.position}"
            raise _damaged(Status.RECORD_FIELD, text)
        return StoredMessage(record, message)


class WholeRecords:
    """What a slave may store: whole records and blanks, each checked, byte by byte as they came.

    Holds one that is not complete, and what was not taken yet. `position`: behind all that is complete."""

    def __init__(self, position: int, file_size: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`position`: as for RecordReader. `file_size`: of the files of the CommitLog, in bytes."""
        self.position = position
        self._file_size = file_size
        self._most = max_record_size(max_body_bytes)
        self._buffer = bytearray()
        self._complete = 0  # bytes of it

    def feed(self, data: bytes) -> None:
        """StoredDataDamaged for what is no record of this place: what was complete before may be taken."""
        self._buffer += data
        while (size := self._complete_size()) != 0:
            self.position += size
            self._complete += size

    def take(self) -> tuple[int, bytes]:
        """All that is complete and was not taken yet, and its physical offset."""
        if not self._complete:
            return self.position, b""
        taken = bytes(memoryview(self._buffer)[: self._complete])
        # A new one: the traceback of an error may look at the old one, which cannot be cut then.
        self._buffer = self._buffer[self._complete :]
        self._complete = 0
        return self.position - len(taken), taken

    @property
    def incomplete_bytes(self) -> int:
        return len(self._buffer) - self._complete

    def _complete_size(self) -> int:
        """Of the next record or blank; 0: more has to come."""
        at = self._complete
        size = unit_size_at(self._buffer, at, self.position, self._most)
        left = self._file_size - self.position % self._file_size
        if size < 0:
            size = -size
            if size != left or size > self._most + _SIZE_AND_MAGIC.size:
                raise self._does_not_fit("blank", size, left)
            return size if size <= len(self._buffer) - at else 0
        if size > left:
            raise self._does_not_fit("record", size, left)
        if not size or size > len(self._buffer) - at:
            return 0
        check_record(self._buffer, at, self.position, left)
        return size

    def _does_not_fit(self, what: str, size: int, left: int) -> StoredDataDamaged:
        text = f"a {what} of {size} bytes at {self.position}, where a file has {left} left"
        return _damaged(Status.RECORD_LENGTHS, text)


def unit_size_at(data: bytearray, at: int, position: int, most: int) -> int:
    """The size of the record that begins at `at`, negative that of a blank; 0: not even that is there.

    StoredDataDamaged for what is neither. `position`: physical offset, for messages. `most`: bytes that a
    record may have."""
    if len(data) - at < _SIZE_AND_MAGIC.size:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic in _MAGICS and MIN_RECORD_SIZE < size <= most:
        return int(size)
    if magic != BLANK_MAGIC:
        status = Status.RECORD_LENGTHS if magic in _MAGICS else Status.RECORD_MAGIC
        raise _damaged(status, f"{size} bytes with magic {magic:#010x} at {position} are no record")
    if size < _SIZE_AND_MAGIC.size:
        raise _damaged(Status.RECORD_LENGTHS, f"a blank of {size} bytes at {position}")
    return -int(size)


def _damaged(status: Status, problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(status, problem)
