"""Opening a log: from the checkpoint forward, verifying everything, repairing what a crash leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger.core.values import ENTRY_HEADER_SIZE, NO_BASE, Base, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.store.damage import KnownDamage, Resumption, is_gone, last_known, make_damage, merge, resume
from dledger.store.files import FileSequence
from dledger.store.format.batch import Batch, encode_blank, unpack_header
from dledger.store.format.layout import INDEX_RECORD_SIZE, index_records, unpack_record
from dledger.store.scan import LogScanner, Verdict, judge_end
from dledger.store.state_files import Checkpoint, StoredBase, tail_of

_COMPARE_BYTES = 256 << 10  # index records gathered before they are compared with the stored ones


LostEnd = Callable[[Base, int, int, str], None]


@dataclass(slots=True)
class Recovered:
    """A log as it was found, all of it durable."""

    base: Base
    tail: Tail
    term_runs: list[TermRun]
    damages: tuple[KnownDamage, ...] = ()
    repairs: list[str] = field(default_factory=list)  # what had to be done, for the operator's log


def recover(
    data: FileSequence,
    index: FileSequence,
    checkpoint: Checkpoint | None,
    *,
    base: Base,
    damages: tuple[KnownDamage, ...],
    lost_end: LostEnd,
) -> Recovered:
    """Find the end of the log, make all of it durable, and index it.

    Entries that were durable and cannot be read are damage (docs/guarantees.md rule 10): nothing of it is
    cut if good entries follow. If none do, the end of the log is lost: `lost_end(base, term, index, reason)`
    has to make durable that the log went up to (term, index), and that no checkpoint counts on it; then it is
    cut. What was never acknowledged and is incomplete is cut. OSError from the disk passes through.
    """
    return _Recovery(data, index, checkpoint, base, damages, lost_end).run()


def choose_base(data: FileSequence, checkpoint: Checkpoint | None, stored: StoredBase | None) -> Base:
    """The base, from its two copies. StorageError DATA_DAMAGED if both are lost and the log has one."""
    if checkpoint is None and stored is None:
        if data.starts and data.starts[0] > 0:
            raise StorageError(
                f"{data.path_of(data.starts[0])} is the first file, but where the log begins is lost: both "
                "the checkpoint and the base are missing or broken",
                code=Code.DATA_DAMAGED,
            )
        return NO_BASE
    # A crash in the middle of a purge leaves the older base in one of them: the purge is finished then.
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
        self._known = damages
        self._lost_end = lost_end
        self._found: list[KnownDamage] = []
        self._broken_blanks: list[int] = []
        self._file_start = 0  # of the data file that is being scanned
        self._lost = ""  # why the end of the log is lost, if it is
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
                f"DAMAGED: entries {d.first_index}..{d.last_index} cannot be read ({d.reason}); the rest of "
                "the log is certain, and they have to be fetched from another node"
            )
        return Recovered(self._base, tail, self._runs, damages, self._repairs)

    def _scan(self, tail: Tail) -> Tail:
        """Verify what follows `tail`, over damages, to the end of what is certain."""
        self._records_from = tail.index + 1
        # Everywhere: a former life may have put records right anywhere, and stopped before it synced them.
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
            if end.verdict is Verdict.TORN:
                self._repairs.append(f"cut a torn write: {end.reason}")
            if end.verdict is not Verdict.DAMAGED:
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
        """Go on behind a damage. What there is of it stays as it is, records included."""
        self._data.mark_unsynced(tail.pos)
        self._compare_records()
        for at, term in resumption.terms:
            self._add_run(term, at)
        self._records_from = resumption.after.index + 1
        self._enter_file(self._data.start_of(resumption.after.pos))

    def _end(self, tail: Tail) -> Tail:
        """Where the log ends: before a damage that reaches its end, once it is durable that it was longer."""
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
                f"THE END OF THE LOG IS DAMAGED: it went up to entry {index} of term {term}, and is cut "
                f"after entry {end.index}; the node rejoins, without a vote, until it has caught up: "
                f"{self._lost}"
            )
            self._lost_end(self._base, term, index, self._lost)
            self._runs = [run for run in self._runs if run.first_index <= end.index]
        return end

    def _finish_purge(self) -> None:
        """Remove what is below the base: a crash came before that. No position there means anything now."""
        index_begin = (self._base.index + 1) * INDEX_RECORD_SIZE
        if self._index.remove_below(index_begin) | self._data.remove_below(self._base.pos):
            self._repairs.append(f"removed files below index {self._base.index + 1}, the begin of the log")

    def _check_data_files(self) -> bool:
        """Give the data files their shape. False if some were missing or short: then that is to be found."""
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
                raise StorageError(f"{path} has {length} bytes, not {size}", code=Code.DATA_DAMAGED)
            if length < size:
                # The last: a crash while it was created or cut. What is missing of it, the scan finds out.
                whole = whole and start == starts[-1]
                self._data.extend(start)
                self._repairs.append(f"extended {path} from {length} bytes")
        return whole

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

    def _start(self, data_is_whole: bool, index_is_whole: bool) -> Tail:
        """The tail to scan from: the checkpoint's if the log agrees with it, else the base."""
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
        found = Tail(header.index, header.term, header.pos + header.size, header.chain_crc)
        return found == tail and header.channel == 0

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
        if self._lost or self._index.next_data(records_end) is not None:
            self._index.cut(records_end)
            self._repairs.append(f"cut unusable index records after entry {tail.index}")
        # Files of zeros behind the end are prepared ones: they stay.
        if self._lost or self._data.next_data(tail.pos) is not None:
            self._data.cut(tail.pos)
        self._data.sync()


def clip_runs(runs: Sequence[TermRun], base: Base, end: Tail) -> list[TermRun]:
    """The terms of what a log has between `base` and `end`."""
    begin = base.index + 1
    clipped: list[TermRun] = []
    for run in reversed([run for run in runs if run.first_index <= end.index]):
        clipped.append(TermRun(run.term, max(run.first_index, begin)))
        if run.first_index <= begin:
            break
    return clipped[::-1] if end.index > base.index else []
