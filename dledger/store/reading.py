"""Reads verified entries by index, on any thread, while another thread appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from dledger.core.values import ENTRY_HEADER_SIZE, Base, Tail
from dledger.errors import ReadFailed, StorageError
from dledger.infra.files.cached_reads import is_only_cached
from dledger.store.api import BatchHead, EntryDamaged, EntryHeader, Frames, check_range
from dledger.store.bodies import Span, check_pos, cut_bodies, no_entry_at, span_runs
from dledger.store.damage import KnownDamage
from dledger.store.files import FileSequence
from dledger.store.format.batch import (
    MAGIC_INTERNAL,
    MAGIC_NORMAL,
    Batch,
    DamagedBatch,
    Header,
    VerifiedRun,
    chain_of,
    unpack_header,
    verify_run,
)
from dledger.store.format.layout import INDEX_RECORD_SIZE, IndexRecord, index_records, unpack_record

_HEADS_CHUNK = 4096  # index records per step when searching for internal entries
_LOWS = bytes((MAGIC_NORMAL, MAGIC_INTERNAL))  # the magics of entries, identified by their last byte

T = TypeVar("T")


class _FilesChanged(Exception):
    """Raised if the files changed during a failed read but the log did not. The read must be retried."""


class LogReader:
    """Finds entries through the index, or through `add`ed records that are not yet in the index files.

    The lock protects the state that the writing thread changes, and is held only briefly.
    """

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        base: Base,
        end_index: int,
        damages: tuple[KnownDamage, ...] = (),
    ) -> None:
        self._data = data
        self._index = index
        self._base = base
        self._lock = Lock()
        self._end_index = end_index
        self._generation = 0
        self._damages = damages
        self._changes = 0  # increases when files are removed or replaced while the log stays the same
        self._readers = 0
        # Written batches that are not in the index files yet. Records are written after an fdatasync.
        self._pending_firsts: list[int] = []
        self._pending: list[Batch] = []

    # -- called by the writing thread

    def add(self, batches: Sequence[Batch], end_index: int) -> None:
        """Add written batches."""
        with self._lock:
            for batch in batches:
                self._pending_firsts.append(batch.first_index)
                self._pending.append(batch)
            self._end_index = end_index

    def pending_records(self) -> tuple[int, bytes]:
        """Return the first index and all records that are not yet in the index files."""
        assert self._pending, "nothing to index"
        return self._pending_firsts[0], b"".join([_records_of(batch) for batch in self._pending])

    def clear_pending(self) -> None:
        """Drop the pending records, which are in the index files now."""
        with self._lock:
            for batch in self._pending:
                batch.records = b""  # the batch may live on without them
            self._pending_firsts.clear()
            self._pending.clear()

    def cut(self, index: int, generation: int) -> None:
        """Set the end of the log to `index`, which ends a batch."""
        with self._lock:
            self._end_index = index
            self._generation = generation
            while self._pending_firsts and self._pending_firsts[-1] > index:
                self._pending_firsts.pop()
                self._pending.pop()

    def reset(self, base: Base, generation: int) -> None:
        """Make the log empty, starting after `base`."""
        with self._lock:
            self._base = base
            self._end_index = base.index
            self._generation = generation
            self._damages = ()
            self._pending_firsts.clear()
            self._pending.clear()

    def change(self, base: Base, damages: tuple[KnownDamage, ...]) -> None:
        """Set the base and the known damages, and count a change, because files were or will be replaced."""
        with self._lock:
            self._base = base
            self._damages = damages
            self._changes += 1

    def release_removed(self) -> None:
        """Close removed files, unless a read is active. The last reader on a thread, or the next sync, closes
        them then."""
        with self._lock:
            if self._readers:
                return
            removed = [(files, files.take_removed()) for files in (self._data, self._index)]
        for files, handles in removed:  # without the lock, because the disk frees the space of the file now
            files.close_handles(handles)

    # -- called by any thread

    @property
    def base(self) -> Base:
        return self._base

    @property
    def begin_index(self) -> int:
        return self._base.index + 1

    @property
    def indexed_end(self) -> int:
        """The last entry whose record is in the index files."""
        with self._lock:
            return self._pending_firsts[0] - 1 if self._pending_firsts else self._end_index

    def damage_of(self, index: int) -> KnownDamage | None:
        """Return the known damage that contains an entry."""
        return next((known for known in self._damages if known.covers(index)), None)

    def entry(self, index: int) -> EntryHeader:
        """See LogStore."""

        def find() -> EntryHeader:
            self._check_range(index)
            self._check_damage(index)
            return self._entry(index)

        return self.guarded(find)

    def tail_at(self, index: int) -> Tail:
        """See LogStore."""

        def find() -> Tail:
            base = self._base  # inside the loop: the log may be purged up to this index in the meantime
            if index == base.index:
                return Tail(base.index, base.term, base.pos, base.chain_crc)
            return self._tail_at(index)

        return self.guarded(find)

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        """See LogStore."""
        assert last_index >= first_index, f"read of {first_index}..{last_index}"

        def find() -> Frames:
            end_index = self._check_range(first_index)
            end_index = self._check_damage(first_index, end_index)
            return self._read(first_index, min(last_index, end_index), max_bytes, whole_batches)

        return self.guarded(find)

    def read_bodies(self, spans: Sequence[Span], end_pos: int) -> list[bytes]:
        """See LogStore."""
        return self.guarded(lambda: self._bodies(spans, end_pos))

    def index_at_pos(self, pos: int) -> int:
        """See LogStore."""
        return self.guarded(lambda: self._index_at(pos))

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        """See LogStore."""
        index = max(from_index, self._base.index + 1)
        while index <= self._end_index:
            heads, count = self.guarded(lambda at=index: self._heads(at))  # type: ignore[misc]
            yield from heads
            index += count

    def first_index_at(self, start: int) -> int:
        """Return the index of the first entry of a data file."""

        def find() -> int:
            begin = self._data.read(start, ENTRY_HEADER_SIZE)
            index = unpack_header(begin).index if len(begin) == ENTRY_HEADER_SIZE else -1
            if not self._base.index < index <= self._end_index or self._record(index).pos != start:
                raise EntryDamaged(
                    f"{self._data.where(start)}: the file does not start with an indexed entry", index
                )
            return index

        return self.guarded(find)

    def guarded(self, find: Callable[[], T]) -> T:
        """Run a lookup. Removed files stay open during it, and it is retried after a concurrent file
        change."""
        while True:
            try:
                with self._reading():
                    return find()
            except _FilesChanged:
                continue

    # -- internal

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            self._readers += 1
            generation, changes = self._generation, self._changes
        try:
            yield
        except (OSError, StorageError) as error:
            if generation != self._generation:
                raise ReadFailed(f"the log was truncated while it was read: {error}") from error
            if changes != self._changes:
                raise _FilesChanged from error
            if isinstance(error, OSError):
                raise StorageError(f"cannot read the log: {error}") from error
            raise
        finally:
            with self._lock:
                self._readers -= 1
            if not is_only_cached():
                self.release_removed()

    def _check_damage(self, index: int, end_index: int = -1) -> int:
        """Raise EntryDamaged if the entry is in a known damage. Returns the last readable entry before the
        next one."""
        for known in self._damages:
            if known.covers(index):
                d = known.damage
                raise EntryDamaged(
                    f"entry {index} is in the damaged range {d.first_index}..{d.last_index}: file "
                    f"{d.file}, offset {d.offset}: {d.reason}",
                    index,
                )
            if known.damage.first_index > index:
                return min(end_index, known.damage.first_index - 1)
        return end_index

    def _heads(self, index: int) -> tuple[list[BatchHead], int]:
        end_index = self._check_damage(index, self._end_index)
        records = self._records(index, min(_HEADS_CHUNK, end_index - index + 1))
        lows = records[3::INDEX_RECORD_SIZE]  # the last bytes of the magics
        wrong = (
            next((at for at, low in enumerate(lows) if low not in _LOWS), -1)
            if lows.translate(None, _LOWS)
            else -1
        )
        if wrong >= 0:  # it might be a head, and its session would then lack the batch
            raise self._index_damage(index + wrong, "the index record has an unknown magic")
        return [self._head(index + at) for at in _places(lows, MAGIC_INTERNAL)], len(lows)

    def _tail_at(self, index: int) -> Tail:
        self._check_range(index)
        after = self._after_damage(index)
        if after is not None:
            return after
        self._check_damage(index)
        entry = self._entry(index)
        body_crc, body_size = self._sums(entry)
        header = Header(
            entry.magic, entry.size, index, entry.term, entry.pos, entry.channel, 0, body_crc, body_size
        )
        # Entries of original DLedger have no chain.
        if entry.chain_crc and chain_of(header, self._chain_before(index)) != entry.chain_crc:
            raise EntryDamaged(
                f"entry {index}, {self._data.where(entry.pos)}: chain_crc does not match this header and "
                "the previous entry",
                index,
            )
        return entry.tail

    def _sums(self, entry: EntryHeader) -> tuple[int, int]:
        begin = self._data.read(entry.pos, ENTRY_HEADER_SIZE)
        if len(begin) < ENTRY_HEADER_SIZE:  # the file has been removed since the header was read
            raise EntryDamaged(
                f"entry {entry.index}, {self._data.where(entry.pos)}: the header is truncated", entry.index
            )
        header = unpack_header(begin)
        return header.body_crc, header.body_size

    def _after_damage(self, index: int) -> Tail | None:
        """Return the end of the damage whose last entry is `index`."""
        return next((known.after for known in self._damages if known.after.index == index), None)

    def _chain_before(self, index: int) -> int:
        if index - 1 == self._base.index:
            return self._base.chain_crc
        after = self._after_damage(index - 1)
        return after.chain_crc if after is not None else self._entry(index - 1).chain_crc

    def _check_range(self, index: int) -> int:
        end_index = self._end_index
        check_range(index, self._base.index + 1, end_index)
        return end_index

    def _records(self, index: int, count: int) -> bytes:
        """Return at least one and at most `count` index records starting at `index`."""
        with self._lock:
            at = bisect_right(self._pending_firsts, index) - 1
            if at >= 0:
                skip = (index - self._pending_firsts[at]) * INDEX_RECORD_SIZE
                records = _records_of(self._pending[at])
                return records[skip : skip + count * INDEX_RECORD_SIZE]
            if self._pending_firsts:
                count = min(count, self._pending_firsts[0] - index)
        records = self._index.read(index * INDEX_RECORD_SIZE, count * INDEX_RECORD_SIZE)
        if len(records) < INDEX_RECORD_SIZE:
            raise self._index_damage(index, "the index file is missing or too short")
        return records

    def indexed_position(self, index: int) -> int | None:
        """Return the position of an entry according to its index record, or None if the record is invalid.
        Run this in `guarded`."""
        try:
            return self._record(index).pos
        except EntryDamaged:
            return None

    def _record(self, index: int) -> IndexRecord:
        record = unpack_record(self._records(index, 1))
        if not record.is_plausible(index):
            raise self._index_damage(index, f"the index record is invalid: {record}")
        return record

    def _entry(self, index: int) -> EntryHeader:
        record = self._record(index)
        begin = self._data.read(record.pos, ENTRY_HEADER_SIZE)
        if len(begin) == ENTRY_HEADER_SIZE:
            header = unpack_header(begin)
            fields = (header.magic, header.pos, header.size, header.index, header.term)
            if fields == record and 0 <= header.channel <= self._end_index - index:
                return EntryHeader(
                    index,
                    header.term,
                    header.pos,
                    header.size,
                    header.channel,
                    header.chain_crc,
                    header.magic,
                )
        raise EntryDamaged(
            f"entry {index}, {self._data.where(record.pos)}: the header differs from the index record", index
        )

    def _read(self, first_index: int, last_index: int, max_bytes: int, whole: bool) -> Frames:
        if first_index - 1 == self._base.index:
            previous_chain = self._base.chain_crc
        elif (after := self._after_damage(first_index - 1)) is not None:
            previous_chain = after.chain_crc
        else:
            before = self._entry(first_index - 1)
            assert before.ends_batch or not whole, f"entry {first_index} does not start a batch"
            previous_chain = before.chain_crc
        last = self._entry(last_index)
        if whole and last.channel:
            last_index += last.channel
            last = self._entry(last_index)
        record = self._record(first_index)
        limit = last.pos + last.size - record.pos
        if limit < record.size:
            raise self._index_damage(
                first_index,
                f"the index record gives position {record.pos}, which is after entry {last_index}",
            )
        size = min(limit, max(max_bytes, record.size))
        data = self._data.read(record.pos, size)
        run = self._verify(data, record, previous_chain, last_index, whole)
        if whole and run.whole_size == 0 and size < limit:
            # The first batch alone exceeds max_bytes.
            batch_end = self._record(first_index + self._entry(first_index).channel)
            data = self._data.read(record.pos, batch_end.pos + batch_end.size - record.pos)
            run = self._verify(data, record, previous_chain, last_index, whole)
        end, length = (run.whole_last_index, run.whole_size) if whole else (run.last_index, run.size)
        if end < first_index:
            raise EntryDamaged(
                f"entry {first_index}, {self._data.where(record.pos)}: the entry is truncated", first_index
            )
        if length < len(data):
            # Replication reads whole batches: a view avoids a copy of a MiB. Other callers expect bytes.
            return Frames(first_index, end, memoryview(data)[:length] if whole else data[:length])
        return Frames(first_index, end, data)

    def _verify(
        self, data: bytes, record: IndexRecord, previous_chain: int, last_index: int, whole: bool
    ) -> VerifiedRun:
        try:
            return verify_run(data, record.index, record.pos, previous_chain, last_index, whole_batches=whole)
        except DamagedBatch as fault:
            if fault.index > record.index and self._record(fault.index).pos != fault.pos:
                # The next entry is in the next file: only the blank that ends this file is damaged.
                return self._verify(data[: fault.pos - record.pos], record, previous_chain, last_index, whole)
            where = self._data.where(fault.pos)
            raise EntryDamaged(f"entry {fault.index}, {where}: {fault.what}", fault.index) from fault

    def _bodies(self, spans: Sequence[Span], end_pos: int) -> list[bytes]:
        bodies: list[bytes] = [b""] * len(spans)
        for run in span_runs(spans, self._base.pos, end_pos, self._data.file_size):
            for known in self._damages:
                if known.before.pos < run.pos + run.size and run.pos < known.after.pos:
                    self._check_damage(known.damage.first_index)
            data = self._data.read(run.pos, run.size)
            for number in cut_bodies(data, run, spans, bodies):
                bodies[number] = self._body(*spans[number])
        return bodies

    def _body(self, pos: int, size: int) -> bytes:
        """Read a body that failed the fast check. The index and the chain show whether the entry is damaged,
        whether none starts at this position, or whether original DLedger wrote it."""
        index = self._index_at(pos)
        body = bytes(self._read(index, index, 0, False).data[ENTRY_HEADER_SIZE:])
        if len(body) != size or self._entry(index).magic == MAGIC_INTERNAL:
            raise no_entry_at(pos, size)
        return body

    def _index_at(self, pos: int) -> int:
        first, last = self._base.index + 1, self._end_index
        end_pos = self._tail_at(last).pos if last >= first else self._base.pos
        check_pos(pos, self._base.pos, end_pos)
        index = bisect_right(range(last + 1), pos, first, key=lambda at: self._record(at).pos) - 1
        if index < first or self._record(index).pos != pos:
            raise no_entry_at(pos)
        return index

    def _head(self, index: int) -> BatchHead:
        entry = self._entry(index)
        frames = self._read(index, index, 0, False)
        return BatchHead(
            index, index + entry.channel, entry.term, entry.pos, bytes(frames.data[ENTRY_HEADER_SIZE:])
        )

    def _index_damage(self, index: int, what: str) -> EntryDamaged:
        where = self._index.where(index * INDEX_RECORD_SIZE)
        return EntryDamaged(f"entry {index}, {where}: {what}", index)


def _records_of(batch: Batch) -> bytes:
    return batch.records or index_records(batch.data)


def _places(lows: bytes, low: int) -> list[int]:
    offsets = []
    at = lows.find(low)
    while at >= 0:
        offsets.append(at)
        at = lows.find(low, at + 1)
    return offsets
