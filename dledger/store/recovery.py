"""Opening a log: from the checkpoint forward, verifying everything, repairing what a crash leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.core.values import NO_BASE, Base, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.store.batch import HEADER_SIZE, Batch, encode_blank, unpack_header
from dledger.store.files import FileSequence
from dledger.store.layout import INDEX_RECORD_SIZE, index_records, unpack_record
from dledger.store.scan import LogScanner, Verdict, judge_end
from dledger.store.state_files import Checkpoint

_COMPARE_BYTES = 256 << 10  # index records gathered before they are compared with the stored ones


@dataclass(slots=True)
class Recovered:
    """A log as it was found, all of it durable."""

    base: Base
    tail: Tail
    term_runs: list[TermRun]
    repairs: list[str] = field(default_factory=list)  # what had to be done, for the operator's log


def recover(data: FileSequence, index: FileSequence, checkpoint: Checkpoint | None) -> Recovered:
    """Find the end of the log, make all of it durable, and index it.

    StorageError DATA_DAMAGED if entries that were durable cannot be read (design rule 10): nothing is cut
    then. What was never acknowledged and is incomplete is cut. OSError from the disk passes through.
    """
    return _Recovery(data, index, checkpoint).run()


class _Recovery:
    def __init__(self, data: FileSequence, index: FileSequence, checkpoint: Checkpoint | None) -> None:
        self._data = data
        self._index = index
        self._checkpoint = checkpoint
        self._base = checkpoint.base if checkpoint is not None else NO_BASE
        self._runs: list[TermRun] = []
        self._repairs: list[str] = []
        self._records: list[bytes] = []  # of accepted batches, not yet compared with the stored ones
        self._records_size = 0
        self._records_from = 0  # index of the first of them
        self._wrong_records: list[tuple[int, bytes]] = []

    def run(self) -> Recovered:
        # What is read from now on may be known to the page cache only; so may be the names of the files.
        self._data.sync_directory()
        self._index.sync_directory()
        self._check_data_files()
        index_is_whole = self._repair_index_files()
        tail = self._start(index_is_whole)
        scanner = LogScanner(self._data, tail)
        self._records_from = tail.index + 1
        self._index.mark_unsynced(self._records_from * INDEX_RECORD_SIZE)
        file_start = self._data.start_of(tail.pos)
        for batch in scanner.batches():
            batch_start = self._data.start_of(batch.pos)
            if batch_start != file_start:
                self._finish_file(file_start)
                file_start = batch_start
            self._accept(batch)
        known_end = self._checkpoint.tail.index if self._checkpoint is not None else -1
        tail = scanner.tail
        end = judge_end(self._data, self._index, tail, scanner.fault, known_end)
        if end.verdict is Verdict.DAMAGED:
            raise StorageError(end.reason, code=Code.DATA_DAMAGED)
        self._finish_file(file_start)
        self._mend_blanks(scanner.broken_blanks)
        if end.verdict is Verdict.TORN:
            self._repairs.append(f"cut a torn write: {end.reason}")
        self._cut(tail)
        return Recovered(self._base, tail, self._runs, self._repairs)

    def _check_data_files(self) -> None:
        expected = self._data.start_of(self._base.pos)
        starts = self._data.starts
        for start in starts:
            if start != expected:
                raise StorageError(f"{self._data.path_of(expected)} is missing", code=Code.DATA_DAMAGED)
            length = self._data.length(start)
            if length > self._data.file_size or (length < self._data.file_size and start != starts[-1]):
                raise StorageError(
                    f"{self._data.path_of(start)} has {length} bytes, not {self._data.file_size}",
                    code=Code.DATA_DAMAGED,
                )
            if length < self._data.file_size:
                # A crash while it was created or cut. That nothing durable is missing, the scan finds out.
                self._data.extend(start)
                self._repairs.append(f"extended {self._data.path_of(start)} from {length} bytes")
            expected += self._data.file_size

    def _repair_index_files(self) -> bool:
        """Give the index files their shape. False if records may be missing that the checkpoint counts on."""
        starts, size = self._index.starts, self._index.file_size
        if not starts:
            return False
        whole = True
        first = self._index.start_of((self._base.index + 1) * INDEX_RECORD_SIZE)
        for start in range(first, starts[-1] + size, size):
            if start not in starts:
                self._index.ensure(start)
                whole = False
                self._repairs.append(f"{self._index.path_of(start)} was missing")
            elif self._index.length(start) < size:
                whole = whole and start == starts[-1]
                self._index.extend(start)
        return whole

    def _start(self, index_is_whole: bool) -> Tail:
        """The tail to scan from: the checkpoint's if the log agrees with it, else the base."""
        checkpoint = self._checkpoint
        if checkpoint is not None and index_is_whole and self._agrees(checkpoint):
            self._runs = list(checkpoint.term_runs)
            return checkpoint.tail
        if checkpoint is None and self._data.starts:
            self._repairs.append("no intact checkpoint: verified the whole log")
        base = self._base
        return Tail(base.index, base.term, base.pos, base.chain_crc)

    def _agrees(self, checkpoint: Checkpoint) -> bool:
        tail = checkpoint.tail
        if tail.index == self._base.index:
            return True
        stored = self._index.read(tail.index * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        if len(stored) < INDEX_RECORD_SIZE:
            return False
        record = unpack_record(stored)
        if not record.is_plausible(tail.index) or record.pos + record.size != tail.pos:
            return False
        begin = self._data.read(record.pos, HEADER_SIZE)
        if len(begin) < HEADER_SIZE:
            return False
        header = unpack_header(begin)
        found = Tail(header.index, header.term, header.pos + header.size, header.chain_crc)
        return found == tail and header.channel == 0

    def _accept(self, batch: Batch) -> None:
        if not self._runs or self._runs[-1].term != batch.term:
            self._runs.append(TermRun(batch.term, batch.first_index))
        records = index_records(batch.data)
        self._records.append(records)
        self._records_size += len(records)
        if self._records_size >= _COMPARE_BYTES:
            self._compare_records()

    def _compare_records(self) -> None:
        records = b"".join(self._records)
        at = 0
        while at < len(records):
            pos = self._records_from * INDEX_RECORD_SIZE + at
            size = min(len(records) - at, self._index.start_of(pos) + self._index.file_size - pos)
            right = records[at : at + size]
            if self._index.read(pos, size) != right:
                self._wrong_records.append((pos, right))
            at += size
        self._records_from += len(records) // INDEX_RECORD_SIZE
        self._records.clear()
        self._records_size = 0

    def _finish_file(self, start: int) -> None:
        """Make a scanned data file durable; only then may its entries get index records."""
        if start not in self._data.starts:
            return
        self._data.sync_file(start)
        self._compare_records()
        for pos, records in self._wrong_records:
            self._index.ensure(pos)
            self._index.write(pos, [records], size=len(records))
        if self._wrong_records:
            self._repairs.append(f"rewrote index records of entries in {self._data.path_of(start)}")
        self._wrong_records.clear()

    def _mend_blanks(self, positions: list[int]) -> None:
        for pos in positions:
            border = self._data.start_of(pos) + self._data.file_size
            blank = encode_blank(border - pos)
            self._data.write(pos, [blank], size=len(blank))
            self._repairs.append(f"rewrote the blank at {self._data.where(pos)}")
        self._data.sync()

    def _cut(self, tail: Tail) -> None:
        """Nothing but zeros may follow the end, neither records nor remains of batches. Index first."""
        records_end = (tail.index + 1) * INDEX_RECORD_SIZE
        if self._index.next_data(records_end) is not None:
            self._index.cut(records_end)
            self._repairs.append(f"cut unusable index records after entry {tail.index}")
        data_files_end = self._data.start_of(tail.pos) + self._data.file_size
        if self._data.next_data(tail.pos) is not None or self._data.end > data_files_end:
            self._data.cut(tail.pos)
        self._data.sync()
