"""A CommitLog in memory, with what master and slave use of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from broker_adapter.errors import Status, error_for
from broker_adapter.log.classic.shipped_units import UnitRun
from broker_adapter.wire.message import BLANK_MAGIC, MessageRecord, encode

FILE_SIZE = 4_096
_RESERVED = 8


class MemoryLog:
    """`begin`: where retention lets it begin, if it has anything."""

    def __init__(self, begin: int = 0, file_size: int = FILE_SIZE) -> None:
        self.begin_offset = begin
        self.file_size = file_size
        self.flushed_offset = begin
        self.data = bytearray()
        self.count = 0
        #: Of `append_bytes`, as they came.
        self.appends: list[tuple[int, int]] = []
        self.reads = 0

    @property
    def end_offset(self) -> int:
        return self.begin_offset + len(self.data)

    @property
    def complete_end_offset(self) -> int:
        return self.end_offset

    @property
    def last_file_offset(self) -> int:
        return self.end_offset - self.end_offset % self.file_size

    @property
    def last_record_offset(self) -> int:
        at, found = 0, -1
        while at < len(self.data):
            size, magic = struct.unpack_from(">II", self.data, at)
            found = found if magic == BLANK_MAGIC else self.begin_offset + at
            at += size
        return found

    def read(self, offset: int, most: int) -> bytes:
        self.reads += 1
        if offset < self.begin_offset:
            raise error_for(Status.OFFSET_BELOW_MINIMUM, f"{offset} is gone")
        most = min(most, self.file_size - offset % self.file_size)
        at = offset - self.begin_offset
        return bytes(self.data[at : at + most])

    def append_bytes(self, offset: int, data: memoryview, units: Sequence[UnitRun]) -> None:
        assert sum(unit.total_bytes for unit in units) == len(data)
        if not self.data and offset % self.file_size == 0:
            self.begin_offset = offset
        assert offset == self.end_offset, "bytes of another place"
        self.data += data
        self.appends.append((offset, len(data)))

    def cut_incomplete(self) -> int:
        return 0

    def flush(self) -> int:
        self.flushed_offset = self.end_offset
        return self.flushed_offset

    def truncate(self, offset: int) -> None:
        del self.data[offset - self.begin_offset :]

    def purge_below(self, offset: int) -> None:
        assert offset % self.file_size == 0
        del self.data[: offset - self.begin_offset]
        self.begin_offset = offset

    def put(self, body: bytes, **fields: Any) -> int:
        """A record, and a blank before it where a file ends. Returns its end."""
        message = MessageRecord("t", body, queue_offset=self.count, store_timestamp=1, **fields)
        left = self.file_size - self.end_offset % self.file_size
        if len(encode(message)) + _RESERVED > left:
            self.data += blank(left)
        self.data += encode(message._replace(physical_offset=self.end_offset))
        self.count += 1
        return self.end_offset

    def fill(self, count: int, size: int = 100) -> int:
        for number in range(count):
            self.put(b"%d." % number + b"x" * (size + number % 7))
        return self.end_offset


def blank(size: int) -> bytes:
    """RocketMQ leaves whatever there was behind its head."""
    return struct.pack(">II", size, BLANK_MAGIC) + bytes(number % 251 for number in range(size - 8))
