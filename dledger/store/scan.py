"""Scans a log forward with full verification, and classifies its end. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.store.files import FileSequence
from dledger.store.format.batch import (
    BLANK_SIZE,
    Batch,
    BatchFault,
    DamagedBatch,
    encode_blank,
    parse_batch,
    unpack_header,
)
from dledger.store.format.layout import INDEX_RECORD_SIZE, unpack_record

_WINDOW = 4 << 20  # bytes per read
_SEARCH_WINDOW = 1 << 20
_SECTOR = 512  # bytes that a disk writes atomically
_ZEROS_OF_MAGIC = 3  # leading zeros of every entry
_MAGICS = (b"\x00\x00\x00\x01", b"\x00\x00\x00\x02")


class LogScanner:
    """Iterates over the batches that follow a tail. Afterwards `tail` and `fault` show where and why the
    iteration ended."""

    def __init__(self, data: FileSequence, tail: Tail) -> None:
        self.tail = tail
        self.fault: DamagedBatch | None = None
        self.broken_blanks: list[int] = []  # positions where a file's blank is missing or wrong
        self._data = data
        self._window = b""
        self._window_pos = tail.pos

    def batches(self) -> Iterator[Batch]:
        """Iterate over the verified, whole batches."""
        while True:
            batch = self._next_in_file()
            if batch is None:
                batch = self._first_of_next_file()
            if batch is None:
                return
            self.fault = None
            self.tail = batch.tail
            yield batch

    def _next_in_file(self) -> Batch | None:
        while True:
            offset = self.tail.pos - self._window_pos
            rest = len(self._window) - offset
            fault: DamagedBatch | None = None
            if rest >= ENTRY_HEADER_SIZE:
                try:
                    return self._parse(offset)
                except DamagedBatch as found:
                    fault = found
            if fault is None or fault.fault is BatchFault.INCOMPLETE:
                # The batch may continue after the window: load a window that starts with it, larger if
                # necessary.
                self._load(self.tail.pos, max(_WINDOW, rest * 4 if offset == 0 else 0))
                if len(self._window) > rest:
                    continue
            try:
                return self._parse(self.tail.pos - self._window_pos)
            except DamagedBatch as found:
                self.fault = found
                return None

    def _parse(self, offset: int) -> Batch:
        return parse_batch(self._window, offset, self.tail, data_file_size=self._data.file_size)

    def _load(self, pos: int, size: int) -> None:
        self._window = self._data.read(pos, size)
        self._window_pos = pos

    def _first_of_next_file(self) -> Batch | None:
        """Return the batch at the next file border if its chain proves that it follows the tail."""
        size = self._data.file_size
        border = self._data.start_of(self.tail.pos) + size
        if border >= self._data.end:
            return None
        blank = self._data.read(self.tail.pos, BLANK_SIZE)
        want = _WINDOW
        while True:
            self._load(border, want)
            try:
                batch = self._parse(0)
            except DamagedBatch as fault:
                if fault.fault is BatchFault.INCOMPLETE and want < size:
                    want *= 4
                    continue
                # Report the fault before the border, unless the file ends properly.
                if blank == encode_blank(border - self.tail.pos) and fault.fault is not BatchFault.EMPTY:
                    self.fault = fault
                self._load(self.tail.pos, ENTRY_HEADER_SIZE)
                return None
            if blank != encode_blank(border - self.tail.pos):
                self.broken_blanks.append(self.tail.pos)
            return batch


class LogEndState(Enum):
    """Classification of the end of a log (docs/guarantees.md rule 10)."""

    CLEAN = "clean"  # followed only by zeros
    TORN = "torn"  # followed by remains of an unacknowledged write
    DAMAGED = "damaged"  # durable entries cannot be read


class LogEndCheck(NamedTuple):
    """The classification of the end of a log, with a reason."""

    verdict: LogEndState
    reason: str


def judge_end(
    data: FileSequence, index: FileSequence, tail: Tail, fault: DamagedBatch | None, known_end: int
) -> LogEndCheck:
    """Decide whether the bytes after `tail` were ever durable. `known_end`: an index that was certainly
    durable, or -1."""
    if fault is None:
        fault = DamagedBatch("the log ends", index=tail.index + 1, pos=tail.pos, fault=BatchFault.EMPTY)
    at = f"entry {fault.index}, {data.where(fault.pos)}: {fault.what}"
    if known_end > tail.index:
        return LogEndCheck(LogEndState.DAMAGED, f"{at}, but the checkpoint covers index {known_end}")
    indexed = _indexed_after(index, tail.index)
    if indexed is not None:
        return LogEndCheck(LogEndState.DAMAGED, f"{at}, but there is an index record of entry {indexed}")
    if data.next_data(tail.pos) is None:
        return LogEndCheck(LogEndState.CLEAN, at)
    if data.is_unreadable_after(tail.pos) or index.is_unreadable_after((tail.index + 1) * INDEX_RECORD_SIZE):
        # The unreadable bytes may have been durable. A torn write is always readable.
        return LogEndCheck(LogEndState.DAMAGED, f"{at}, and the disk cannot read what is there")
    # Good entries of the bad batch itself, before its fault, do not prove that it was durable.
    entry_pos = find_entry(data, fault.pos + 1, tail.index)
    if entry_pos is not None and not _has_hole(data, fault.pos, entry_pos):
        return LogEndCheck(LogEndState.DAMAGED, f"{at}, but a valid entry follows at {data.where(entry_pos)}")
    return LogEndCheck(LogEndState.TORN, at)


def _indexed_after(index: FileSequence, end_index: int) -> int | None:
    """Return an index after `end_index` with an index record, which proves that its entry was durable."""
    pos = (end_index + 1) * INDEX_RECORD_SIZE
    while True:
        indexed = index.next_data(pos)
        if indexed is None:
            return None
        number = indexed // INDEX_RECORD_SIZE
        record = index.read(number * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        if len(record) == INDEX_RECORD_SIZE and unpack_record(record).is_plausible(number):
            return number
        pos = (number + 1) * INDEX_RECORD_SIZE


def find_entry(data: FileSequence, pos: int, after_index: int) -> int | None:
    """Return the first position at or after `pos` of a consistent entry above `after_index`."""
    while True:
        start = data.next_data(pos)
        if start is None:
            return None
        # The magic starts with three zeros, which next_data may have skipped.
        start = max(pos, start - 3, data.start_of(start))
        window = data.read(start, _SEARCH_WINDOW)
        for offset in _magic_offsets(window):
            if _is_entry(data, start + offset, after_index):
                return start + offset
        at_file_end = (start + len(window)) % data.file_size == 0 or len(window) < _SEARCH_WINDOW
        pos = data.start_of(start) + data.file_size if at_file_end else start + len(window) - 3


def _magic_offsets(window: bytes) -> list[int]:
    offsets = []
    for magic in _MAGICS:
        at = window.find(magic)
        while at >= 0:
            offsets.append(at)
            at = window.find(magic, at + 1)
    return sorted(offsets)


def _is_entry(data: FileSequence, pos: int, after_index: int) -> bool:
    begin = data.read(pos, ENTRY_HEADER_SIZE)
    if len(begin) < ENTRY_HEADER_SIZE:
        return False
    header = unpack_header(begin)
    if (
        header.pos != pos
        or header.index <= after_index
        or header.size != header.body_size + ENTRY_HEADER_SIZE
    ):
        return False
    if header.body_size < 0 or header.term < 0 or header.channel < 0:
        return False
    body = data.read(pos + ENTRY_HEADER_SIZE, header.body_size)
    return len(body) == header.body_size and crc32(body) == header.body_crc


def _has_hole(data: FileSequence, begin: int, end: int) -> bool:
    """Return True if a sector between these positions, where entries start, is all zeros: its write may be
    lost.

    Unsynced writes reach the disk in any order, so a valid entry after a bad one proves nothing by itself.
    But a lost write leaves whole sectors unchanged, and these contain zeros, because reserved and cut files
    contain zeros. Data that is damaged later does not look like that.

    Zeros at both ends are not evidence. An entry starts with some, and if the sector of the entry at `end`
    was written, so were the earlier bytes in that sector. The exception is a sector that contains only the
    leading zeros of that entry, because it looks the same if its write was lost.
    """
    padding = -(begin % data.file_size) % _SECTOR
    begin += padding if padding <= _ZEROS_OF_MAGIC else 0
    if not 0 < -(end % data.file_size) % _SECTOR <= _ZEROS_OF_MAGIC:
        end = max(begin, end - end % data.file_size % _SECTOR)
    while begin < end:
        border = data.start_of(begin) + data.file_size
        content = data.read(begin, min(end, border) - begin)
        if end >= border:  # the rest of this file must be a blank
            blank = content.rfind(b"\xff\xff\xff\xff")
            if blank < 0 or content[blank : blank + BLANK_SIZE] != encode_blank(
                max(len(content) - blank, BLANK_SIZE)
            ):
                return True
            content = content[:blank]
        offset = begin % data.file_size
        at = 0
        while at < len(content):
            sector_end = at + _SECTOR - (offset + at) % _SECTOR
            if not content[at:sector_end].strip(b"\0"):
                return True
            at = sector_end
        begin = border
    return False
