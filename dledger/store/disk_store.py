"""The log store on disk: appending, group commit, truncation and reading by index."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dledger.core.values import Base, HardState, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.store.api import BatchHead, EntryHeader, Frames
from dledger.store.batch import Batch, encode_blank, place
from dledger.store.disk import Buffer, Disk, OsDisk, write_all
from dledger.store.files import FileSequence
from dledger.store.identity import Identity, load_identity
from dledger.store.layout import INDEX_RECORD_SIZE, NodePaths, index_file_size, index_records
from dledger.store.reading import LogReader
from dledger.store.recovery import Recovered, recover
from dledger.store.state_files import (
    Checkpoint,
    read_checkpoint,
    read_hard_state,
    read_sessions,
    write_checkpoint,
    write_hard_state,
    write_sessions,
)

_AUTO_CHECKPOINT_BYTES = 256 << 20  # written since the last checkpoint: bounds what a restart has to verify
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskLogStore:
    """`LogStore` in a directory. Made by `open`."""

    def __init__(
        self,
        disk: Disk,
        paths: NodePaths,
        lock: int,
        identity: Identity,
        hard_state: HardState,
        data: FileSequence,
        index: FileSequence,
        recovered: Recovered,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.identity = identity
        self.data_file_size = identity.data_file_size
        self.repairs = tuple(recovered.repairs)  # what opening had to repair, for the operator's log
        self._disk = disk
        self._paths = paths
        self._lock_handle = lock
        self._hard_state = hard_state
        self._data = data
        self._index = index
        self._base = recovered.base
        self._tail = recovered.tail
        self._durable = recovered.tail
        self._term_runs = recovered.term_runs
        committed = checkpoint.committed_index if checkpoint is not None else -1
        self._committed = min(max(committed, self._base.index), self._tail.index)
        self._checkpoint_tail = checkpoint.tail if checkpoint is not None else None
        self._generation = 0
        self._failed: str | None = None
        self._closed = False
        self._reader = LogReader(data, index, self._base, self._tail.index)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        disk: Disk | None = None,
        cluster_id: str | None = None,
        group: str | None = None,
        node_id: str | None = None,
    ) -> DiskLogStore:
        """Lock the directory, check whose it is, recover the log: all that it holds is durable on return.

        StorageError: NOT_INITIALIZED, FOREIGN_DIRECTORY, DIRECTORY_LOCKED, STATE_DAMAGED, DATA_DAMAGED, or
        DISK_ERROR.
        """
        disk = disk or OsDisk()
        paths = NodePaths(Path(directory))
        identity = load_identity(directory, disk=disk, cluster_id=cluster_id, group=group, node_id=node_id)
        size = identity.data_file_size
        data = FileSequence(disk, paths.data, size)
        index = FileSequence(disk, paths.index_files, index_file_size(size))
        lock = -1
        try:
            lock = _take_lock(disk, paths)
            hard_state = read_hard_state(disk, paths.hard_state)
            checkpoint = read_checkpoint(disk, paths.checkpoint)
            data.load()
            index.load()
            _distrust_cache(disk, paths, data, index)
            recovered = recover(data, index, checkpoint)
            data.close_removed()
            index.close_removed()
            disk.sync_directory(paths.root)
            if disk.exists(paths.marker):
                disk.unlink(paths.marker)
        except (OSError, StorageError) as error:
            data.close()
            index.close()
            if lock != -1:
                disk.close(lock)
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot open {paths.root}: {error}") from error
        store = cls(disk, paths, lock, identity, hard_state, data, index, recovered, checkpoint)
        store._check()
        return store

    # -- what it is

    @property
    def base(self) -> Base:
        return self._base

    @property
    def begin_index(self) -> int:
        return self._base.index + 1

    @property
    def end_index(self) -> int:
        return self._tail.index

    @property
    def tail(self) -> Tail:
        return self._tail

    @property
    def durable_index(self) -> int:
        return self._durable.index

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def term_runs(self) -> list[TermRun]:
        return list(self._term_runs)

    @property
    def committed_checkpoint(self) -> int:
        return self._committed

    @property
    def generation(self) -> int:
        return self._generation

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self._paths.root)

    def _check(self) -> None:
        assert self._base.index <= self._durable.index <= self._tail.index
        assert self._committed <= self._durable.index

    # -- writing

    def append(self, batches: Sequence[Batch]) -> None:
        self._require_usable()
        size = self.data_file_size
        runs: list[tuple[int, list[Buffer], int]] = []  # position, buffers, bytes: each within one file
        tail = self._tail
        for batch in batches:
            assert batch.first_index == tail.index + 1, f"batch {batch.first_index} after {tail}"
            assert batch.term >= tail.term, f"batch of term {batch.term} after {tail}"
            assert batch.pos == place(tail.pos, batch.size, size), f"batch at {batch.pos} after {tail}"
            assert batch.size == len(batch.data)
            if batch.pos != tail.pos:
                _add(runs, tail.pos, encode_blank(batch.pos - tail.pos), size)
            _add(runs, batch.pos, batch.data, size)
            tail = batch.tail
        if not runs:
            return
        self._reserve(runs, tail)
        with self._writing("append"):
            for pos, buffers, length in runs:
                self._data.write(pos, buffers, size=length)
        for batch in batches:
            if not self._term_runs or self._term_runs[-1].term != batch.term:
                self._term_runs.append(TermRun(batch.term, batch.first_index))
        self._reader.add([(batch.first_index, index_records(batch.data)) for batch in batches], tail.index)
        self._tail = tail

    def _reserve(self, runs: list[tuple[int, list[Buffer], int]], tail: Tail) -> None:
        """Create the files that are needed before anything is written: a full disk changes nothing."""
        first, last = (index * INDEX_RECORD_SIZE for index in (self._tail.index + 1, tail.index))
        try:
            for pos, _, _ in runs:
                self._data.ensure(pos)
            for pos in range(self._index.start_of(first), last + 1, self._index.file_size):
                self._index.ensure(pos)
        except OSError as error:
            if error.errno in _FULL:
                raise StorageError(f"no room for another file: {error}", code=Code.DISK_FULL) from error
            self._failed = f"append: {error}"
            raise StorageError(f"append: {error}") from error

    def sync(self) -> int:
        self._require_usable()
        tail = self._tail
        if self._durable == tail:
            return tail.index
        with self._writing("sync"):
            try:
                self._data.sync()
            except OSError as error:
                self._leave_marker()
                raise StorageError(f"fdatasync failed: {error}", code=Code.FSYNC_FAILED) from error
            first, records = self._reader.pending_records()
            pos = first * INDEX_RECORD_SIZE
            while records:
                room = self._index.start_of(pos) + self._index.file_size - pos
                part, records = records[:room], records[room:]
                self._index.write(pos, [part], size=len(part))
                pos += len(part)
        self._durable = tail
        self._reader.clear_pending()
        covered = self._checkpoint_tail.pos if self._checkpoint_tail is not None else 0
        new_file = self._data.start_of(tail.pos) != self._data.start_of(covered)
        if new_file or tail.pos - covered >= _AUTO_CHECKPOINT_BYTES:
            self._checkpoint_if_room()
        return self._durable.index

    def _checkpoint_if_room(self) -> None:
        try:
            self.save_checkpoint(self._committed, None)
        except StorageError as error:
            # It only spares the next start some work; the entries themselves are safe.
            if error.code is not Code.DISK_FULL:
                raise

    def truncate_after(self, index: int) -> None:
        assert self._base.index <= index <= self._tail.index, (
            f"truncate after {index}, end {self._tail.index}"
        )
        if index == self._tail.index:
            return
        if index > self._base.index:
            assert self.entry(index).ends_batch, f"entry {index} does not end a batch"
        tail = self.tail_at(index)
        with self._writing("truncate"):
            self._generation += 1
            self._reader.cut(index, self._generation)
            self._tail = tail
            self._durable = min(self._durable, tail)
            self._committed = min(self._committed, self._durable.index)
            self._term_runs = [run for run in self._term_runs if run.first_index <= index]
            if self._checkpoint_tail is not None and self._checkpoint_tail.index > index:
                # A checkpoint above the end of the log would be evidence of damage.
                self._write_checkpoint()
            # The index first: what has no index record may vanish at any point without being missed.
            self._index.cut((index + 1) * INDEX_RECORD_SIZE)
            self._data.cut(tail.pos)
            self._reader.release_removed()
        self._check()

    # -- term and vote, checkpoint, sessions

    def save_hard_state(self, state: HardState) -> None:
        old = self._hard_state
        assert (state.incarnation, state.term) >= (old.incarnation, old.term), f"{state} after {old}"
        assert state.term >= old.term, f"{state} after {old}"
        with self._writing("hard state"):
            write_hard_state(self._disk, self._paths.hard_state, state)
        self._hard_state = state

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        assert sessions is None or sessions[0] <= committed_index, "a session table that may be undone"
        with self._writing("checkpoint"):
            self._committed = max(self._committed, min(committed_index, self._durable.index))
            try:
                self._write_checkpoint()
                if sessions is not None:
                    write_sessions(self._disk, self._paths.sessions, *sessions)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                full = error  # the files that are there stay as they are: nothing is lost but time
            else:
                return
        raise StorageError(f"no room for a checkpoint: {full}", code=Code.DISK_FULL) from full

    def _write_checkpoint(self) -> None:
        """The index records that it counts on are made durable before it."""
        try:
            self._index.sync()
        except OSError as error:
            self._leave_marker()
            raise StorageError(f"fdatasync of the index failed: {error}", code=Code.FSYNC_FAILED) from error
        tail = self._durable
        runs = tuple(run for run in self._term_runs if run.first_index <= tail.index)
        checkpoint = Checkpoint(tail, self._committed, self._base, runs)
        write_checkpoint(self._disk, self._paths.checkpoint, checkpoint)
        self._checkpoint_tail = tail

    def load_sessions(self) -> tuple[int, bytes] | None:
        try:
            found = read_sessions(self._disk, self._paths.sessions)
        except OSError as error:
            raise StorageError(f"cannot read {self._paths.sessions}: {error}") from error
        return found if found is not None and found[0] <= self._tail.index else None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._failed is None:
                self.sync()
                self._checkpoint_if_room()
        finally:
            self._data.close()
            self._index.close()
            self._disk.close(self._lock_handle)

    # -- reading

    def entry(self, index: int) -> EntryHeader:
        return self._reader.entry(index)

    def tail_at(self, index: int) -> Tail:
        return self._reader.tail_at(index)

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        return self._reader.read(first_index, last_index, max_bytes, whole_batches=whole_batches)

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        return self._reader.iter_heads(from_index)

    # -- failure

    def _require_usable(self) -> None:
        if self._failed is not None:
            raise StorageError(f"the store has failed before: {self._failed}")

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """What fails in here leaves memory and disk apart: nothing may be written afterwards."""
        self._require_usable()
        try:
            yield
        except StorageError as error:
            self._failed = f"{what}: {error}"
            raise
        except OSError as error:
            self._failed = f"{what}: {error}"
            code = Code.DISK_FULL if error.errno in _FULL else Code.DISK_ERROR
            raise StorageError(f"{what}: {error}", code=code) from error

    def _leave_marker(self) -> None:
        """Tell the next start not to believe the page cache. The disk is in trouble: it may not work."""
        with suppress(OSError):
            self._disk.close(self._disk.open(self._paths.marker, create=True))


def _add(runs: list[tuple[int, list[Buffer], int]], pos: int, data: Buffer, file_size: int) -> None:
    """Add what is to be written at `pos`, to the last run if it follows that within the same file."""
    if runs:
        start, buffers, length = runs[-1]
        if start + length == pos and pos % file_size:
            buffers.append(data)
            runs[-1] = (start, buffers, length + len(data))
            return
    runs.append((pos, [data], len(data)))


def _take_lock(disk: Disk, paths: NodePaths) -> int:
    handle = disk.open(paths.lock, create=True)
    if disk.lock(handle):
        owner = f"{os.getpid()}\n".encode()
        disk.truncate(handle, 0)
        write_all(disk, handle, [owner], 0)
        return handle
    owner = disk.pread(handle, 32, 0).strip()
    disk.close(handle)
    raise StorageError(
        f"{paths.root} is in use by process {owner.decode('ascii', 'replace') or '(unknown)'}",
        code=Code.DIRECTORY_LOCKED,
    )


def _distrust_cache(disk: Disk, paths: NodePaths, *sequences: FileSequence) -> None:
    """After a failed fsync the page cache may hold what the disk does not: read from the disk again."""
    if disk.exists(paths.marker):
        for files in sequences:
            files.drop_cache()
