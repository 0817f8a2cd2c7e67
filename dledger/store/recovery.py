"""Recovers a log at startup: verifies it from the checkpoint onward, and repairs the results of a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger.core.values import ENTRY_HEADER_SIZE, NO_BASE, Base, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.store.damage import (
    KnownDamage,
    Resumption,
    clip_to_base,
    is_gone,
    last_known,
    make_damage,
    merge,
    resume,
)
from dledger.store.files import FileSequence
from dledger.store.format.batch import Batch, encode_blank, unpack_header
from dledger.store.format.layout import INDEX_RECORD_SIZE, index_records, unpack_record
from dledger.store.scan import LogEndState, LogScanner, judge_end
from dledger.store.state_files import Checkpoint, StoredBase, tail_of

_COMPARE_BYTES = 256 << 10  # size of a batch of index records compared with the stored ones


LostEnd = Callable[[Base, int, int, str], None]


@dataclass(slots=True)
class RecoveredLog:
    """The recovered log, all of it durable."""

    base: Base
    tail: Tail
    term_runs: list[TermRun]
    damages: tuple[KnownDamage, ...] = ()
    repairs: list[str] = field(default_factory=list)  # repairs made, to be logged


def recover(
    data: FileSequence,
    index: FileSequence,
    checkpoint: Checkpoint | None,
    *,
    base: Base,
    damages: tuple[KnownDamage, ...],
    lost_end: LostEnd,
) -> RecoveredLog:
    """Find the end of the log, make all of it durable, and index it.

    Entries that were durable and cannot be read are damage (docs/guarantees.md rule 10), and are kept if good
    entries follow. If none do, the end of the log is lost: `lost_end(base, term, index, reason)` must durably
    record that the log reached (term, index), and remove any checkpoint that relies on it; then the end is
    cut. Incomplete, unacknowledged entries are cut. An OSError of the disk is passed on.
    """
    return _Recovery(data, index, checkpoint, base, damages, lost_end).run()


def choose_base(data: FileSequence, checkpoint: Checkpoint | None, stored: StoredBase | None) -> Base:
    """Choose the base from its two copies. Raises StorageError DATA_DAMAGED if the log has a base and both
    copies are lost."""
    if checkpoint is None and stored is None:
        if data.starts and data.starts[0] > 0:
            raise StorageError(
                f"the start of the log is lost: its first file is {data.path_of(data.starts[0])}, but "
                "both the checkpoint and the base are missing or damaged",
                code=Code.DATA_DAMAGED,
            )
        return NO_BASE
    # A crash during a purge leaves the older base in one of them: the purge is then completed.
    bases = [part.base for part in (checkpoint, stored) if part is not None]
    return max(bases, key=lambda base: base.index)


class _Recovery:
    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        checkpoint: Checkpoint | None,
        base: Base,
        damages: tuple[KnownDamage, ...],
        lost_end: LostEnd,
    ) -> None:
        self._data = data
        self._index = index
        self._checkpoint = checkpoint
        self._base = base
        # A crash during a purge leaves the old list; version 0.1.0 also wrote such lists.
        self._known = clip_to_base(damages, base)
        self._lost_end = lost_end
        self._found: list[KnownDamage] = []
        self._broken_blanks: list[int] = []
        self._file_start = 0  # start of the data file being scanned
        self._lost = ""  # why the end of the log is lost, if so
        self._runs: list[TermRun] = []
        self._repairs: list[str] = []
        self._records: list[bytes] = []  # records of accepted batches, not yet compared with the stored ones
        self._records_size = 0
        self._records_from = 0  # index of the first record
        self._wrong_records: list[tuple[int, bytes]] = []

    def run(self) -> RecoveredLog:
        # From here on, reads may return data that only the page cache has; the same holds for file names.
        self._data.sync_directory()
        self._index.sync_directory()
        self._finish_purge()
        data_is_whole = self._check_data_files()
        index_is_whole = self._repair_index_files()
        tail = self._scan(self._start(data_is_whole, index_is_whole))
        tail = self._end(tail)
        self._finish_file(self._file_start)
        self._mend_blanks([pos for pos in self._broken_blanks if pos < tail.pos])
        self._cut(tail)
        damages = merge([known for known in self._found if known.after.index < tail.index])
        for known in damages:
            d = known.damage
            self._repairs.append(
                f"DAMAGED: entries {d.first_index}..{d.last_index} cannot be read ({d.reason}); they must "
                "be fetched from another node; all other entries are verified"
            )
        return RecoveredLog(self._base, tail, self._runs, damages, self._repairs)

    def _scan(self, tail: Tail) -> Tail:
        """Verify the log after `tail`, across damages, up to its verified end."""
        self._records_from = tail.index + 1
        # All files: an earlier process may have corrected records anywhere and stopped before syncing them.
        self._index.mark_unsynced(0)
        self._file_start = self._data.start_of(tail.pos)
        known_end = self._checkpoint.tail.index if self._checkpoint is not None else -1
        while True:
            scanner = LogScanner(self._data, tail)
            for batch in scanner.batches():
                self._enter_file(self._data.start_of(batch.pos))
                self._accept(batch)
            tail = scanner.tail
            self._broken_blanks += scanner.broken_blanks
            end = judge_end(self._data, self._index, tail, scanner.fault, known_end)
            if end.verdict is LogEndState.TORN:
                self._repairs.append(f"cut a torn write: {end.reason}")
            if end.verdict is not LogEndState.DAMAGED:
                return tail
            resumption = resume(self._data, self._index, tail, self._anchors())
            if resumption is None:
                self._lost = end.reason
                return tail
            pos = scanner.fault.pos if scanner.fault is not None else tail.pos
            self._found.append(make_damage(self._data, tail, resumption.after, pos, end.reason))
            self._skip(tail, resumption)
            tail = resumption.after

    def _anchors(self) -> list[Tail]:
        return [self._checkpoint.tail] if self._checkpoint is not None else []

    def _skip(self, tail: Tail, resumption: Resumption) -> None:
        """Continue after a damage. The damaged bytes and their index records are not changed."""
        self._data.mark_unsynced(tail.pos)
        self._compare_records()
        for at, term in resumption.terms:
            self._add_run(term, at)
        self._records_from = resumption.after.index + 1
        self._enter_file(self._data.start_of(resumption.after.pos))

    def _end(self, tail: Tail) -> Tail:
        """Return the end of the log. If a damage reaches the end, cuts before it, after recording the former
        end."""
        known = [k for k in self._known if k.after.index <= tail.index and not is_gone(self._data, k)]
        self._found = list(merge([*self._found, *known]))
        end = tail
        while self._found and self._found[-1].after.index >= end.index:
            known_end = self._found.pop()
            end = known_end.before
            self._lost = self._lost or known_end.damage.reason
        if self._lost:
            term, index = last_known(self._data, self._index, end, [*self._anchors(), tail])
            self._repairs.append(
                f"THE END OF THE LOG IS DAMAGED: it reached entry {index} of term {term}, and is truncated "
                f"after entry {end.index}; the node rejoins, without a vote, until it has caught up: "
                f"{self._lost}"
            )
            self._lost_end(self._base, term, index, self._lost)
            self._runs = [run for run in self._runs if run.first_index <= end.index]
        return end

    def _finish_purge(self) -> None:
        """Remove files below the base, left by a crash during a purge. Positions in them are meaningless."""
        index_begin = (self._base.index + 1) * INDEX_RECORD_SIZE
        if self._index.remove_below(index_begin) | self._data.remove_below(self._base.pos):
            self._repairs.append(f"removed files below index {self._base.index + 1}, the start of the log")

    def _check_data_files(self) -> bool:
        """Restore the set and sizes of the data files. Returns False if files were missing or short, which
        requires a scan."""
        whole = True
        starts, size = self._data.starts, self._data.file_size
        if not starts:
            return whole
        for start in range(self._data.start_of(self._base.pos), starts[-1] + size, size):
            path = self._data.path_of(start)
            if start not in starts:
                self._data.ensure(start)
                self._repairs.append(f"{path} was MISSING")
                whole = False
                continue
            length = self._data.length(start)
            if length > size:
                raise StorageError(f"{path} is {length} bytes long, expected {size}", code=Code.DATA_DAMAGED)
            if length < size:
                # The last file, after a crash while it was created or cut. The scan determines the missing
                # part.
                whole = whole and start == starts[-1]
                self._data.extend(start)
                self._repairs.append(f"extended {path} from {length} bytes")
        return whole

    def _repair_index_files(self) -> bool:
        """Restore the set and sizes of the index files. Returns False if records that the checkpoint relies
        on may be missing."""
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

    def _start(self, data_is_whole: bool, index_is_whole: bool) -> Tail:
        """Return the tail at which to start the scan: the checkpoint's tail if the log agrees with the
        checkpoint, otherwise the base."""
        checkpoint = self._checkpoint
        if (
            checkpoint is not None
            and checkpoint.tail.index >= self._base.index
            and data_is_whole
            and index_is_whole
            and self._agrees(checkpoint)
        ):
            self._runs = clip_runs(checkpoint.term_runs, self._base, checkpoint.tail)
            return checkpoint.tail
        if checkpoint is None and self._data.starts:
            self._repairs.append("no intact checkpoint: verified the whole log")
        return tail_of(self._base)

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
        begin = self._data.read(record.pos, ENTRY_HEADER_SIZE)
        if len(begin) < ENTRY_HEADER_SIZE:
            return False
        header = unpack_header(begin)
        end = Tail(header.index, header.term, header.pos + header.size, header.chain_crc)
        return end == tail and header.channel == 0

    def _add_run(self, term: int, first_index: int) -> None:
        if not self._runs or self._runs[-1].term != term:
            self._runs.append(TermRun(term, first_index))

    def _accept(self, batch: Batch) -> None:
        self._add_run(batch.term, batch.first_index)
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

    def _enter_file(self, start: int) -> None:
        if start != self._file_start:
            self._finish_file(self._file_start)
            self._file_start = start

    def _finish_file(self, start: int) -> None:
        """Make a scanned data file durable. Only then may its entries get index records."""
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
        """Overwrite everything after the end with zeros: first the index records, then the remains of
        batches."""
        records_end = (tail.index + 1) * INDEX_RECORD_SIZE
        if self._lost or self._index.next_data(records_end) is not None:
            self._index.cut(records_end)
            self._repairs.append(f"cut unusable index records after entry {tail.index}")
        # Files of zeros after the end are prepared ones and stay.
        if self._lost or self._data.next_data(tail.pos) is not None:
            self._data.cut(tail.pos)
        self._data.sync()


def clip_runs(runs: Sequence[TermRun], base: Base, end: Tail) -> list[TermRun]:
    """Return the terms of the log between `base` and `end`."""
    begin = base.index + 1
    clipped: list[TermRun] = []
    for run in reversed([run for run in runs if run.first_index <= end.index]):
        clipped.append(TermRun(run.term, max(run.first_index, begin)))
        if run.first_index <= begin:
            break
    return clipped[::-1] if end.index > base.index else []
