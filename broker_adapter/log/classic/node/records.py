"""Records of a classic CommitLog in their raw form, for the Dispatcher and for readers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, overload

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.log.classic.alike_records import count_equal_sizes
from broker_adapter.log.classic.append_heads import head_at
from broker_adapter.log.classic.record_check import MAX_RECORD_BYTES
from broker_adapter.log.classic.shipped_units import UnitRun
from broker_adapter.log.protocol import Piece
from broker_adapter.wire.message import BLANK_MAGIC, MIN_RECORD_SIZE, MessageRecord
from broker_adapter.wire.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED
from dledger import AppliedEntry, Code, StorageError
from dledger import ReadFailed as LogReadFailed

_SIZE_AND_MAGIC = struct.Struct(">II")
_SIZE_AND_OFFSET = struct.Struct(">I24xq")
_HEAD_BYTES = _SIZE_AND_MAGIC.size
# Only the replicated log has terms.
TERM = 0
# Maximum bytes of adjacent records read together.
_RUN_BYTES = 1 << 20


class ReadableFiles(Protocol):
    """The part of `CommitLogFiles` that readers need."""

    @property
    def begin_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def complete_end_offset(self) -> int: ...

    @property
    def file_size(self) -> int: ...

    def read(self, offset: int, limit: int) -> bytes: ...


class RecordPiece:
    """Whole records and blanks, starting at a physical offset. Implements Piece."""

    __slots__ = ("_base", "data")

    def __init__(self, base: int, data: bytes) -> None:
        self._base = base
        self.data = data

    def begin(self, at: int) -> tuple[bool, int, int, int, int]:
        size, magic = _SIZE_AND_MAGIC.unpack_from(self.data, at)
        offset = self._base + at
        return magic != BLANK_MAGIC, size, offset, TERM, offset

    def physical_offset(self, at: int) -> int:
        return self._base + at


class RecordRun(Sequence[AppliedEntry]):
    """The entries of a piece. The Dispatcher uses the piece itself."""

    def __init__(self, piece: RecordPiece) -> None:
        self.piece = piece

    def __bool__(self) -> bool:
        return len(self.piece.data) > 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AppliedEntry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, at: int) -> AppliedEntry: ...

    @overload
    def __getitem__(self, at: slice) -> list[AppliedEntry]: ...

    def __getitem__(self, at: int | slice) -> AppliedEntry | list[AppliedEntry]:
        return self._entries[at]

    @cached_property
    def _entries(self) -> list[AppliedEntry]:
        piece, found, at = self.piece, [], 0
        while at < len(piece.data):
            is_record, size, index, term, pos = piece.begin(at)
            if is_record:
                found.append(AppliedEntry(index, term, bytes(piece.data[at : at + size]), pos))
            at += size
        return found


class RawRecords:
    """Record format of a classic log. Implements RecordFormat; queue starts follow only from the log."""

    header_size = 0
    begins_queues = True

    def pieces(self, entries: Sequence[AppliedEntry]) -> Sequence[Piece] | None:
        return [entries.piece] if isinstance(entries, RecordRun) else None

    def is_command(self, message: MessageRecord) -> bool:
        """True if the record is a command that a broker of this project wrote.

        RocketMQ clients may send to reserved topics and set the flag, too. However, RocketMQ stores the
        client's address as the born host, which is never the broker's own address.
        """
        is_prepared = message.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        return is_prepared and message.born_host == message.store_host


RECORDS = RawRecords()


def whole_units(data: bytes, base: int, file_size: int) -> list[UnitRun]:
    """Return the whole records and blanks at the start of `data`, which is at offset `base`.

    Raises StoredDataDamaged if the data is neither.
    """
    at, end, units = 0, len(data), list[UnitRun]()
    while end - at >= _HEAD_BYTES:
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
        left = file_size - (base + at) % file_size
        is_blank = magic == BLANK_MAGIC
        least, most = (_HEAD_BYTES, left) if is_blank else (MIN_RECORD_SIZE, min(MAX_RECORD_BYTES, left))
        if not least <= size <= most:
            text = f"neither a record nor a blank of {size} bytes at {base + at}"
            raise StoredDataDamaged(Status.STORE_DAMAGED, text)
        if size > end - at:
            break
        unit = UnitRun(size, 0)
        if not is_blank:
            # A record that would cross the file's end is reported in its place.
            unit = UnitRun(size, min(count_equal_sizes(data, at, size), left // size))
        units.append(unit)
        at += unit.total_bytes
    return units


def whole_appends(data: bytes, units: Sequence[UnitRun]) -> tuple[int, int]:
    """Find the last end of an append in the first bytes of `data`, which consist of `units`.

    Returns the number of bytes up to that end, and the size of the next append according to its head, or 0 if
    there is no head.
    """
    at, begin, size, records = 0, -1, 0, 0
    for unit in units:
        if not unit.records:
            records = 0
        elif (head := head_at(data, at, unit.size)) is not None:
            begin, size, records = at, head.size, len(head.sums)
        else:
            records = max(0, records - unit.records)
        at += unit.total_bytes
    return (begin, size) if records else (at, 0)


def size_at(log: ReadableFiles, offset: int) -> int:
    """Return the size field of the record or blank at `offset`."""
    return int(_SIZE_AND_MAGIC.unpack(log.read(offset, _HEAD_BYTES))[0])


class ClassicRecords:
    """The reading side of a classic log, whose positions are physical offsets. Implements RecordLog.

    Call `open` before reading.
    """

    _log: ReadableFiles

    def open(self, log: ReadableFiles) -> None:
        self._log = log

    @property
    def begin_offset(self) -> int:
        return self._log.begin_offset

    def read_records(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        found: list[bytes] = []
        at = 0
        while at < len(places):
            begin, size = places[at]
            end, number = begin + size, at + 1
            while number < len(places) and places[number][0] == end and end - begin < _RUN_BYTES:
                end += places[number][1]
                number += 1
            data = self._read(begin, end - begin)
            for offset, size in places[at:number]:
                found.append(_checked(data[offset - begin : offset - begin + size], offset, size))
            at = number
        return found

    def record_at(self, physical_offset: int) -> bytes:
        if physical_offset + MIN_RECORD_SIZE > self._log.complete_end_offset:
            raise LogReadFailed(f"the log ends before offset {physical_offset}", code=Code.INDEX_OUT_OF_RANGE)
        head = self._read(physical_offset, _SIZE_AND_OFFSET.size)
        size, offset = _SIZE_AND_OFFSET.unpack(head)
        left = self._log.file_size - physical_offset % self._log.file_size
        if offset != physical_offset or not MIN_RECORD_SIZE <= size <= min(MAX_RECORD_BYTES, left):
            raise LogReadFailed(f"no record starts at offset {physical_offset}", code=Code.INDEX_OUT_OF_RANGE)
        return self._read(physical_offset, size)

    def read_positions(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.read_records(places)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = self._log.read(offset, size)
        except BrokerError as error:
            if error.status is Status.OFFSET_BELOW_MINIMUM:
                raise LogReadFailed(error.message, code=Code.INDEX_LESS_THAN_LOCAL_BEGIN) from error
            if error.status is Status.OFFSET_ABOVE_MAXIMUM:
                raise LogReadFailed(error.message, code=Code.INDEX_OUT_OF_RANGE) from error
            raise StorageError(error.message, code=Code.DATA_DAMAGED) from error
        if len(data) < size:
            raise LogReadFailed(
                f"only {len(data)} of {size} bytes are available at offset {offset}",
                code=Code.INDEX_OUT_OF_RANGE,
            )
        return data


def _checked(record: bytes, offset: int, size: int) -> bytes:
    found = _SIZE_AND_OFFSET.unpack_from(record) if len(record) >= _SIZE_AND_OFFSET.size else (0, 0)
    if found != (size, offset):
        text = f"the record of {size} bytes at {offset} states {found[0]} bytes at {found[1]}"
        raise StorageError(text, code=Code.DATA_DAMAGED)
    return record
