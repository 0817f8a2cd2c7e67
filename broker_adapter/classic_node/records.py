"""Records of a classic CommitLog, which lie in it as they are: for the Dispatcher, and for readers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, overload

from broker_adapter.classic.record_check import MAX_RECORD_BYTES
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.format.message import BLANK_MAGIC, MIN_RECORD_SIZE
from broker_adapter.log.protocol import Piece
from dledger import AppliedEntry, Code, StorageError
from dledger import ReadFailed as LogReadFailed

_SIZE_AND_MAGIC = struct.Struct(">II")
_SIZE_AND_OFFSET = struct.Struct(">I24xq")
_HEAD_BYTES = _SIZE_AND_MAGIC.size
#: Terms are the replicated log's.
TERM = 0
#: Neighbours are read at once up to here.
_RUN_BYTES = 1 << 20


class ReadableFiles(Protocol):
    """What of `CommitLogFiles` readers need."""

    @property
    def begin_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def file_size(self) -> int: ...

    def read(self, offset: int, most: int) -> bytes: ...


class RecordPiece:
    """Whole records, and blanks, from a physical offset on. Implements Piece."""

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
    """What a piece holds, as the Dispatcher wants it; it takes the piece itself."""

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
    """Implements RecordFormat. Nothing but the log says where a queue begins."""

    header_size = 0
    begins_queues = True

    def pieces(self, entries: Sequence[AppliedEntry]) -> Sequence[Piece] | None:
        return [entries.piece] if isinstance(entries, RecordRun) else None


RECORDS = RawRecords()


def whole_records(data: bytes, base: int, file_size: int) -> int:
    """How many bytes of `data`, which lies at `base`, are whole records and blanks: up to where the next one
    is cut. StoredDataDamaged for what begins like neither."""
    at, end = 0, len(data)
    while end - at >= _HEAD_BYTES:
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
        left = file_size - (base + at) % file_size
        is_blank = magic == BLANK_MAGIC
        least, most = (_HEAD_BYTES, left) if is_blank else (MIN_RECORD_SIZE, min(MAX_RECORD_BYTES, left))
        if not least <= size <= most:
            text = f"no record, and no blank, of {size} bytes is at {base + at}"
            raise StoredDataDamaged(Status.STORE_DAMAGED, text)
        if size > end - at:
            break
        at += size
    return at


def size_at(log: ReadableFiles, offset: int) -> int:
    """Of the record, or blank, that begins there, as it says."""
    return int(_SIZE_AND_MAGIC.unpack(log.read(offset, _HEAD_BYTES))[0])


class ClassicRecords:
    """Implements RecordLog: positions are physical offsets. `open` it before anything is read."""

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
        if physical_offset + MIN_RECORD_SIZE > self._log.end_offset:
            raise LogReadFailed(f"the log ends before {physical_offset}", code=Code.INDEX_OUT_OF_RANGE)
        head = self._read(physical_offset, _SIZE_AND_OFFSET.size)
        size, offset = _SIZE_AND_OFFSET.unpack(head)
        left = self._log.file_size - physical_offset % self._log.file_size
        if offset != physical_offset or not MIN_RECORD_SIZE <= size <= min(MAX_RECORD_BYTES, left):
            raise LogReadFailed(f"no record begins at {physical_offset}", code=Code.INDEX_OUT_OF_RANGE)
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
            raise LogReadFailed(f"{len(data)} bytes of {size} at {offset}", code=Code.INDEX_OUT_OF_RANGE)
        return data


def _checked(record: bytes, offset: int, size: int) -> bytes:
    found = _SIZE_AND_OFFSET.unpack_from(record) if len(record) >= _SIZE_AND_OFFSET.size else (0, 0)
    if found != (size, offset):
        text = f"the record of {size} bytes at {offset} says {found[0]} bytes at {found[1]}"
        raise StorageError(text, code=Code.DATA_DAMAGED)
    return record
