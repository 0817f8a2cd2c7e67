"""Records out of pieces of a CommitLog. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from broker_adapter.classic.commit_log import MAX_BODY_BYTES, StoredMessage
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.message import BLANK_MAGIC, decode, record_size_at

_SIZE_AND_MAGIC = struct.Struct(">II")


class RecordReader:
    """Holds one record that is not complete, and nothing else. `position`: the physical offset behind all
    records that were taken, and the blanks between them."""

    def __init__(self, position: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`position`: the physical offset of the first byte that is fed, where a record begins."""
        self.position = position
        self._max_body_bytes = max_body_bytes
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
        left = len(self._buffer) - at
        if left < _SIZE_AND_MAGIC.size:
            return 0
        size, magic = _SIZE_AND_MAGIC.unpack_from(self._buffer, at)
        if magic == BLANK_MAGIC:
            if size < _SIZE_AND_MAGIC.size:
                raise StoredDataDamaged(Status.RECORD_LENGTHS, f"a blank of {size} bytes at {self.position}")
            self._blank = size
            return 0
        try:
            return record_size_at(self._buffer, at, max_body_bytes=self._max_body_bytes)
        except StoredDataDamaged as error:
            if error.status is Status.RECORD_TRUNCATED:
                return 0
            raise

    def _record(self, at: int, size: int) -> StoredMessage:
        record = bytes(memoryview(self._buffer)[at : at + size])
        message = decode(record, max_body_bytes=self._max_body_bytes)
        if message.physical_offset != self.position:
            text = f"a record of offset {message.physical_offset} at {self.position}"
            raise StoredDataDamaged(Status.RECORD_FIELD, text)
        return StoredMessage(record, message)
