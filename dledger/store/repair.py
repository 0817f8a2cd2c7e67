"""Replaces damaged entries with copies from a peer, and scrubs the log in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, ReadFailed, StorageError
from dledger.infra.files.disk import PAGE, Buffer, Disk, write_all
from dledger.infra.files.platform import FULL
from dledger.store.api import Damage, EntryDamaged, Frames, ScrubStep
from dledger.store.damage import KnownDamage, find_header, header_at, locate
from dledger.store.files import FileSequence
from dledger.store.format.batch import (
    Batch,
    DamagedBatch,
    chain_of,
    encode_blank,
    parse_batch,
    unpack_header,
)
from dledger.store.format.layout import INDEX_RECORD_SIZE, index_records
from dledger.store.reading import LogReader
from dledger.store.scan import LogScanner
from dledger.store.space import full_error

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
#: The most that `finish` copies of a file that is still growing.
_LEFT = 1 << 20


class _RepairMismatch(StorageError):
    """Raised if the end of good entries differs from the end that the entries after the damage prove."""


@dataclass(slots=True)
class _FileCopy:
    """A new file that will replace a damaged one. Its fields are offsets within the file."""

    handle: int
    lost_from: int  # start of the part that is rewritten ...
    lost_to: int  # ... and its end; the rest is copied
    at: int = 0  # offset of the next copy
    is_synced: bool = False


class Repair:
    """The replacement of one damaged range (rule 10), in steps, while the log is in use.

    The entries go into copies of the affected files. The copies replace the files only when the range is
    complete and fits at both ends. Until then the log is unchanged, and a crash leaves temporary files that
    the next start removes.
    """

    def __init__(
        self,
        disk: Disk,
        spill: Path,
        data: FileSequence,
        reader: LogReader,
        known: KnownDamage,
        *,
        tail: Callable[[], Tail],
        check: Callable[[Repair], None],
        write_records: Callable[[int, bytes], None],
        install: Callable[[Repair], None],
        failed: Callable[[str], object],
    ) -> None:
        """`check` raises if the log has changed so that the repair is no longer valid. `check` and the
        callbacks after it run on the writing thread, except for `failed`, which runs on any thread and stops
        all further writes to the disk."""
        self.known = known
        self._disk = disk
        self._spill = spill
        self._data = data
        self._reader = reader
        self._tail = tail
        self._check = check
        self._write_records = write_records
        self._install = install
        self._failed = failed
        self._fed = known.before
        self._uses_local = True
        self._has_local = False
        self._copies: dict[int, _FileCopy] = {}
        self._records: int | None = None  # a separate file, because they may be many
        self._records_size = self._records_written = 0

    @property
    def next_index(self) -> int:
        """The index of the first entry that is still missing."""
        return self._fed.index + 1

    @property
    def is_fed(self) -> bool:
        return self._fed.index == self.known.after.index

    # -- on any thread, one at a time

    def feed(self, frames: Frames) -> None:
        """See RepairWork."""
        try:
            self._feed(frames)
        except (DamagedBatch, _RepairMismatch):
            if not self._has_local:
                raise
            self._restart_without_local()
            if frames.first_index == self.next_index:
                self._feed(frames)

    def _restart_without_local(self) -> None:
        """Restart without the batches on this disk. After a lost write, this disk may contain a good batch of
        another history that also follows the fed entries. As long as the repair keeps that batch, no member's
        entries fit."""
        self.abandon()
        self._fed = self.known.before
        self._records_size = 0
        self._uses_local = self._has_local = False

    def _feed(self, frames: Frames) -> None:
        after = self.known.after
        offset = 0
        while not self.is_fed and offset < len(frames.data):
            batch = parse_batch(frames.data, offset, self._fed, data_file_size=self._data.file_size)
            offset += batch.size
            if batch.last_index > after.index or (batch.last_index == after.index and batch.tail != after):
                raise _RepairMismatch(
                    f"the entries up to {batch.last_index} do not match: they end as {batch.tail}, but "
                    f"the entries after the damage require {after}",
                    code=Code.DATA_DAMAGED,
                )
            self._add_batch(batch)
            if self._uses_local and self._add_local_batches():
                self._has_local = True
                offset = _skip(frames.data, offset, self.next_index)
        if self.is_fed and self._ends_its_file(after):
            with self._writing():
                self._roll(after.pos, self._data.start_of(after.pos) + self._data.file_size)

    def _add_batch(self, batch: Batch) -> None:
        with self._writing():
            self._roll(self._fed.pos, batch.pos)
            self._put(batch.pos, batch.data)
            self._keep_records(index_records(batch.data))
        self._fed = batch.tail

    def _add_local_batches(self) -> bool:
        """Add the good batches of this disk that follow. A damaged header also hides the good batches after
        it, which can be verified again now that the preceding entries are present. The peer does not need to
        have them. Returns True if any were added."""
        fed, after = self._fed, self.known.after
        header = self._reader.guarded(lambda: find_header(self._data, fed.index + 1, fed.pos))
        if header is None or chain_of(header, fed.chain_crc) != header.chain_crc:
            return False
        scanner = LogScanner(self._data, fed)
        for batch in self._reader.guarded(lambda: list(_until(scanner, after))):
            self._add_batch(batch)
        return self._fed != fed

    def copy(self, max_bytes: int) -> bool:
        """See RepairWork."""
        assert self.is_fed
        with self._writing():
            for start, copy in self._copies.items():
                end, grows = self._end_of(start)
                if copy.at < end - (_LEFT if grows else 0):
                    self._copy_some(start, copy, min(end, copy.at + max_bytes))
                    return True
            for copy in self._copies.values():
                if not copy.is_synced:
                    self._disk.fdatasync(copy.handle)
                    copy.is_synced = True
                    return True
        return False

    def abandon(self) -> None:
        """Remove the temporary files. No-op after `finish`."""
        for start, copy in self._copies.items():
            with suppress(OSError):
                self._data.drop_copy(start, copy.handle)
        self._copies.clear()
        self._drop_records()

    # -- on the writing thread

    def index_some(self, max_bytes: int) -> bool:
        """See RepairWork."""
        self._check(self)
        size = min(max_bytes, self._records_size - self._records_written)
        if size <= 0 or self._records is None:
            return False
        size = max(INDEX_RECORD_SIZE, size - size % INDEX_RECORD_SIZE)
        try:
            records = self._disk.pread(self._records, size, self._records_written)
        except OSError as error:
            raise StorageError(f"the repair failed: {error}", code=Code.DATA_DAMAGED) from error
        first = self.known.damage.first_index + self._records_written // INDEX_RECORD_SIZE
        self._write_records(first, records)
        self._records_written += size
        return self._records_written < self._records_size

    def finish(self) -> None:
        """See RepairWork."""
        assert self.is_fed
        while self.index_some(_CHUNK):
            pass
        self._check(self)
        self._install(self)
        self._drop_records()

    def install_files(self) -> None:
        """Replace the old files with the new ones, durably. Raises OSError."""
        for start, copy in self._copies.items():
            self._copy_some(start, copy, self._end_of(start)[0])
            self._disk.fdatasync(copy.handle)
        while self._copies:
            start = min(self._copies)
            self._data.install_copy(start, self._copies[start].handle)
            del self._copies[start]

    # -- internal

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise full_error("a repair", error) from error
            self._failed(f"repair: {error}")
            raise StorageError(f"the repair failed: {error}") from error

    def _ends_its_file(self, after: Tail) -> bool:
        """Return True if the batch after the damage starts the next file: a blank then precedes it.

        The index record decides. An unreadable header at `after.pos` proves nothing, because the disk may
        have reported a transient error, or the header may be damaged as well. Writing a blank would then
        destroy the batch."""
        if after.index >= self._tail().index:
            return False
        border = self._data.start_of(after.pos) + self._data.file_size
        index = after.index + 1
        position = self._reader.guarded(lambda: self._reader.indexed_position(index))
        if position in (after.pos, border):
            return position == border
        header = self._reader.guarded(lambda: header_at(self._data, index, border))
        return header is not None and chain_of(header, after.chain_crc) == header.chain_crc

    def _roll(self, from_pos: int, to_pos: int) -> None:
        """Fill the rest of a file with a blank if the batch does not fit into it."""
        if from_pos != to_pos and from_pos % self._data.file_size:
            self._put(from_pos, encode_blank(to_pos - from_pos))

    def _put(self, pos: int, content: Buffer) -> None:
        start = self._data.start_of(pos)
        copy = self._copies.get(start)
        if copy is None:
            at = pos - start
            copy = self._copies[start] = _FileCopy(self._data.begin_copy(start), at, at)
        write_all(self._disk, copy.handle, [content], pos - start)
        copy.lost_to = pos - start + len(content)

    def _keep_records(self, records: bytes) -> None:
        if self._records is None:
            self._records = self._disk.open(self._spill, create=True)
            self._disk.truncate(self._records, 0)
        write_all(self._disk, self._records, [records], self._records_size)
        self._records_size += len(records)

    def _drop_records(self) -> None:
        if self._records is not None:
            self._disk.close(self._records)
            self._records = None
            with suppress(OSError):
                self._disk.unlink(self._spill)

    def _end_of(self, start: int) -> tuple[int, bool]:
        """Return the used size of a file, and whether it still grows."""
        used, size = self._tail().pos - start, self._data.file_size
        return min(used, size), used < size

    def _read(self, pos: int, size: int) -> bytes:
        chunk = self._reader.guarded(lambda: self._data.read(pos, size))
        if len(chunk) != size:
            raise StorageError("the file was removed during the repair", code=Code.DATA_DAMAGED)
        return chunk

    def _copy_some(self, start: int, copy: _FileCopy, end: int) -> None:
        while copy.at < end:
            if copy.lost_from <= copy.at < copy.lost_to:
                copy.at = copy.lost_to
                continue
            until = min(end, copy.at + _CHUNK)
            if copy.at < copy.lost_from:
                until = min(until, copy.lost_from)
            chunk = self._read(start + copy.at, until - copy.at)
            if chunk != _ZEROS[: len(chunk)]:
                write_all(self._disk, copy.handle, [chunk], copy.at)
            copy.at = until
            copy.is_synced = False


def _skip(data: bytes | memoryview, offset: int, index: int) -> int:
    """Return the offset, at or after `offset`, at which the entry `index` starts or the data ends."""
    while offset < len(data):
        header = unpack_header(bytes(data[offset : offset + ENTRY_HEADER_SIZE]))
        if header.index >= index or header.size < ENTRY_HEADER_SIZE:
            break
        offset += header.size
    return offset


def _until(scanner: LogScanner, after: Tail) -> Iterator[Batch]:
    """Iterate over the good batches of a damaged range, as long as they are compatible with its proved
    end."""
    for batch in scanner.batches():
        if batch.last_index > after.index or (batch.last_index == after.index and batch.tail != after):
            return
        yield batch
        if batch.last_index == after.index:
            return


def scrub_step(
    reader: LogReader,
    data: FileSequence,
    index: FileSequence,
    tail: Callable[[], Tail],
    durable: Callable[[], Tail],
    from_index: int,
    max_bytes: int,
) -> ScrubStep:
    """See LogStore."""
    begin, end_index = reader.begin_index, reader.indexed_end
    first = max(from_index, begin)
    while (known := reader.damage_of(first)) is not None:
        first = known.after.index + 1
    if first > end_index:
        return ScrubStep(begin, 0, None)
    try:
        # A read from the page cache would not verify the disk. Only a small range is dropped, right before it
        # is read again, so that other readers find it in the cache as before.
        pos = reader.entry(first).pos
        reader.guarded(lambda: _drop_cache(data, index, pos, first, max_bytes, durable()))
        frames = reader.read(first, end_index, max_bytes, whole_batches=False)
        reader.guarded(lambda: _check_records(index, frames))
    except ReadFailed:  # purged or truncated in the meantime: continue the round
        return scrub_step(reader, data, index, tail, durable, first, max_bytes)
    except EntryDamaged as error:
        at = max(first, min(error.index, end_index))
        damaged_index = reader.guarded(lambda: locate(data, index, reader.base, tail(), at))
        if damaged_index.damage is not None:
            damage = damaged_index.damage.damage
            return ScrubStep(max(first, damage.last_index) + 1, max_bytes, damage)
        # The entries are good: one of their index records is damaged, and `note_damage` rewrites it.
        last, pos = damaged_index.batches[-1].last_index, at * INDEX_RECORD_SIZE
        file, offset = str(index.path_of(pos)), pos % index.file_size
        return ScrubStep(max(first, last) + 1, max_bytes, Damage(at, last, file, offset, str(error)))
    next_index = frames.last_index + 1
    return ScrubStep(next_index if next_index <= end_index else begin, len(frames.data), None)


def _drop_cache(
    data: FileSequence, index: FileSequence, pos: int, first: int, max_bytes: int, durable: Tail
) -> None:
    """Drop the durable part of the range that a read of `max_bytes` from an entry on will cover."""
    border = data.start_of(pos) + data.file_size
    data.drop_cache_of(pos, min(pos + max_bytes + PAGE, border, durable.pos))
    at = first * INDEX_RECORD_SIZE
    border = index.start_of(at) + index.file_size
    last = min(first + max_bytes // ENTRY_HEADER_SIZE, durable.index)
    index.drop_cache_of(at, min((last + 1) * INDEX_RECORD_SIZE, border))


def _check_records(index: FileSequence, frames: Frames) -> None:
    """Raise EntryDamaged if an entry lacks its exact index record."""
    records = index_records(frames.data)
    for at in range(0, len(records), INDEX_RECORD_SIZE):
        number = frames.first_index + at // INDEX_RECORD_SIZE
        if index.read(number * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE) != records[at : at + INDEX_RECORD_SIZE]:
            where = index.where(number * INDEX_RECORD_SIZE)
            raise EntryDamaged(f"entry {number}, {where}: the index record does not match the entry", number)
