"""Reading entries by index, verified, from any thread, while another thread appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from dledger.core.values import Base, Tail
from dledger.errors import Code, ReadFailed, StorageError
from dledger.store.api import BatchHead, EntryHeader, Frames, check_range
from dledger.store.batch import HEADER_SIZE, MAGIC_INTERNAL, DamagedBatch, Run, unpack_header, verify_run
from dledger.store.files import FileSequence
from dledger.store.layout import INDEX_RECORD_SIZE, IndexRecord, unpack_record

_HEADS_CHUNK = 4096  # index records looked at together when searching for internal entries


class LogReader:
    """Finds entries through the index, or through `add`ed records that are not in the index files yet.

    The lock protects what `add`, `clear_pending` and `cut` change, and is held for moments only.
    """

    def __init__(self, data: FileSequence, index: FileSequence, base: Base, end_index: int) -> None:
        self._data = data
        self._index = index
        self._base = base
        self._lock = Lock()
        self._end_index = end_index
        self._generation = 0
        self._readers = 0
        # Records of batches that are written but not synced: they get into the index files afterwards.
        self._pending_firsts: list[int] = []
        self._pending: list[bytes] = []

    # -- by the writing thread

    def add(self, records: list[tuple[int, bytes]], end_index: int) -> None:
        """Batches were written: the first index and the index records of each."""
        with self._lock:
            for first_index, packed in records:
                self._pending_firsts.append(first_index)
                self._pending.append(packed)
            self._end_index = end_index

    def pending_records(self) -> tuple[int, bytes]:
        """The first index and all records that are not in the index files yet."""
        assert self._pending, "nothing to index"
        return self._pending_firsts[0], b"".join(self._pending)

    def clear_pending(self) -> None:
        """All pending records are in the index files now."""
        with self._lock:
            self._pending_firsts.clear()
            self._pending.clear()

    def cut(self, index: int, generation: int) -> None:
        """The log ends at `index` from now on, which ends a batch."""
        with self._lock:
            self._end_index = index
            self._generation = generation
            while self._pending_firsts and self._pending_firsts[-1] > index:
                self._pending_firsts.pop()
                self._pending.pop()

    def release_removed(self) -> None:
        """Close files that were removed, unless somebody reads: then the last reader does."""
        with self._lock:
            if not self._readers:
                self._data.close_removed()
                self._index.close_removed()

    # -- by any thread

    def entry(self, index: int) -> EntryHeader:
        """See LogStore."""
        with self._reading():
            self._check_range(index)
            return self._entry(index)

    def tail_at(self, index: int) -> Tail:
        """See LogStore."""
        base = self._base
        if index == base.index:
            return Tail(base.index, base.term, base.pos, base.chain_crc)
        return self.entry(index).tail

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        """See LogStore."""
        assert last_index >= first_index, f"read of {first_index}..{last_index}"
        with self._reading():
            end_index = self._check_range(first_index)
            return self._read(first_index, min(last_index, end_index), max_bytes, whole_batches)

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        """See LogStore."""
        index = max(from_index, self._base.index + 1)
        while index <= self._end_index:
            with self._reading():
                records = self._records(index, min(_HEADS_CHUNK, self._end_index - index + 1))
                heads = [self._head(index + at) for at in _internal_records(records)]
            yield from heads
            index += len(records) // INDEX_RECORD_SIZE

    # -- inside

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep removed files open, and tell damage from a truncation that came in between."""
        with self._lock:
            self._readers += 1
            generation = self._generation
        try:
            yield
        except (OSError, StorageError) as error:
            if generation != self._generation:
                raise ReadFailed(f"the log was truncated while it was read: {error}") from error
            if isinstance(error, OSError):
                raise StorageError(f"read: {error}") from error
            raise
        finally:
            with self._lock:
                self._readers -= 1
            self.release_removed()

    def _check_range(self, index: int) -> int:
        end_index = self._end_index
        check_range(index, self._base.index + 1, end_index)
        return end_index

    def _records(self, index: int, count: int) -> bytes:
        """At least one and at most `count` index records from `index` on."""
        with self._lock:
            at = bisect_right(self._pending_firsts, index) - 1
            if at >= 0:
                skip = (index - self._pending_firsts[at]) * INDEX_RECORD_SIZE
                return self._pending[at][skip : skip + count * INDEX_RECORD_SIZE]
            if self._pending_firsts:
                count = min(count, self._pending_firsts[0] - index)
        records = self._index.read(index * INDEX_RECORD_SIZE, count * INDEX_RECORD_SIZE)
        if len(records) < INDEX_RECORD_SIZE:
            raise self._index_damage(index, "the index file is missing or too short")
        return records

    def _record(self, index: int) -> IndexRecord:
        record = unpack_record(self._records(index, 1))
        if not record.is_plausible(index):
            raise self._index_damage(index, f"the index record is {record}")
        return record

    def _entry(self, index: int) -> EntryHeader:
        record = self._record(index)
        begin = self._data.read(record.pos, HEADER_SIZE)
        if len(begin) == HEADER_SIZE:
            header = unpack_header(begin)
            fields = (header.magic, header.pos, header.size, header.index, header.term)
            if fields == record and header.channel >= 0:
                return EntryHeader(
                    index,
                    header.term,
                    header.pos,
                    header.size,
                    header.channel,
                    header.chain_crc,
                    header.magic,
                )
        raise StorageError(
            f"entry {index}, {self._data.where(record.pos)}: header and index record do not agree",
            code=Code.DATA_DAMAGED,
        )

    def _read(self, first_index: int, last_index: int, max_bytes: int, whole: bool) -> Frames:
        previous_chain = self._base.chain_crc
        if first_index - 1 > self._base.index:
            before = self._entry(first_index - 1)
            assert before.ends_batch or not whole, f"entry {first_index} does not begin a batch"
            previous_chain = before.chain_crc
        if whole:
            last_index += self._entry(last_index).channel
        record, last = self._record(first_index), self._record(last_index)
        limit = last.pos + last.size - record.pos
        size = min(limit, max(max_bytes, record.size))
        data = self._data.read(record.pos, size)
        run = self._verify(data, record, previous_chain, last_index)
        if whole and run.whole_size == 0 and size < limit:
            # The first batch alone is larger than max_bytes.
            batch_end = self._record(first_index + self._entry(first_index).channel)
            data = self._data.read(record.pos, batch_end.pos + batch_end.size - record.pos)
            run = self._verify(data, record, previous_chain, last_index)
        end, length = (run.whole_last_index, run.whole_size) if whole else (run.last_index, run.size)
        if end < first_index:
            raise StorageError(
                f"entry {first_index}, {self._data.where(record.pos)}: cut", code=Code.DATA_DAMAGED
            )
        return Frames(first_index, end, data if length == len(data) else data[:length])

    def _verify(self, data: bytes, record: IndexRecord, previous_chain: int, last_index: int) -> Run:
        try:
            return verify_run(data, record.index, record.pos, previous_chain, last_index)
        except DamagedBatch as fault:
            raise StorageError(
                f"entry {fault.index}, {self._data.where(fault.pos)}: {fault.what}", code=Code.DATA_DAMAGED
            ) from fault

    def _head(self, index: int) -> BatchHead:
        entry = self._entry(index)
        frames = self._read(index, index, 0, False)
        return BatchHead(index, index + entry.channel, entry.term, entry.pos, frames.data[HEADER_SIZE:])

    def _index_damage(self, index: int, what: str) -> StorageError:
        where = self._index.where(index * INDEX_RECORD_SIZE)
        return StorageError(f"entry {index}, {where}: {what}", code=Code.DATA_DAMAGED)


def _internal_records(records: bytes) -> list[int]:
    """Which of these index records are of internal entries: found by the last byte of the magic."""
    lows = records[3::INDEX_RECORD_SIZE]
    found = []
    at = lows.find(MAGIC_INTERNAL)
    while at >= 0:
        found.append(at)
        at = lows.find(MAGIC_INTERNAL, at + 1)
    return found
