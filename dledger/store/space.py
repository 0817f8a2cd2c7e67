"""Disk space ahead of need (rule 9): prepared files, the reserve of the disk, and one for state files.

`disk_reserve_bytes` is what client appends leave free, for no-ops, purging, term and vote: `prepare` does not
go below it. Others may fill the disk all the same. So that term and vote, a checkpoint and a purge can be
stored even then, there is a small file of nothing, `reserve`, which is removed when one of them finds no
room, and made again later.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from threading import RLock

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, StorageError
from dledger.store.api import ReservedEnd
from dledger.store.disk import Disk
from dledger.store.files import FileSequence
from dledger.store.format.batch import BLANK_SIZE
from dledger.store.format.layout import INDEX_RECORD_SIZE, NodePaths, index_file_size

FULL = (errno.ENOSPC, errno.EDQUOT)
_MIN_STATE_RESERVE = 4 << 10
_MAX_STATE_RESERVE = 1 << 20
_MAX_SPARE = 64 << 20


def default_reserve(data_file_size: int) -> int:
    """Room for another data file and its index, which a no-op may need, and for what else must go on."""
    return data_file_size + index_file_size(data_file_size) + min(data_file_size, _MAX_SPARE)


class Space:
    """The prepared files and the reserves of one store. All but `writing` from any thread."""

    def __init__(
        self, disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence, disk_reserve_bytes: int
    ) -> None:
        self.disk_reserve_bytes = disk_reserve_bytes
        # Held by whatever adds files to the log or removes some, so that there is never a gap between them.
        # Neither writes nor syncs take it.
        self.files_lock = RLock()
        self.is_closed = False  # a `prepare` that comes late must not touch what another process may open
        self._disk = disk
        self._paths = paths
        self._data = data
        self._index = index
        self._state_reserve = min(max(data.file_size // 4, _MIN_STATE_RESERVE), _MAX_STATE_RESERVE)
        self._state_lock = RLock()
        self._is_spent = False

    def free_bytes(self) -> int:
        """Bytes free on the file system of the log."""
        return self._disk.free_bytes(self._paths.root)

    def reserved_end(self, tail: Tail) -> ReservedEnd:
        """See LogStore."""
        return ReservedEnd(
            max(tail.pos, self._data.reserved_end - BLANK_SIZE),
            max(tail.index, self._index.reserved_end // INDEX_RECORD_SIZE - 1),
        )

    def reserved_bytes(self, tail: Tail) -> int:
        """See LogStore. Entries are taken to be as small as they can be: the index then fills up first."""
        end = self.reserved_end(tail)
        return min(self._reserved_data(tail), (end.index - tail.index) * ENTRY_HEADER_SIZE)

    def likely_bytes(self, tail: Tail) -> int:
        """See LogStore. An index for the smallest entries there can be takes two thirds of what the data
        takes, and lies idle on a disk that is full."""
        if tail.index < 0:
            return self.reserved_bytes(tail)
        entry_size = max(ENTRY_HEADER_SIZE, tail.pos // (tail.index + 1) // 2)
        return min(self._reserved_data(tail), (self.reserved_end(tail).index - tail.index) * entry_size)

    def _reserved_data(self, tail: Tail) -> int:
        size, end = self._data.file_size, self._data.reserved_end
        border = self._data.start_of(tail.pos) + size
        if end < border:
            return 0
        return max(0, border - tail.pos - BLANK_SIZE) + (end - border) // size * (size - BLANK_SIZE)

    def has_room(self, tail: Tail) -> bool:
        """See LogStore."""
        # Enough for what is under way when it becomes less, and not more than a pair of files holds at least.
        least = min(self._data.file_size // 2, self._index.file_size // INDEX_RECORD_SIZE * ENTRY_HEADER_SIZE)
        if self.likely_bytes(tail) >= least:
            return True
        need = self._data.file_size + self._index.file_size
        return self.free_bytes() - need >= self.disk_reserve_bytes

    def could_take(self, end_pos: int, end_index: int) -> bool:
        """See LogStore."""
        data, index = self._data, self._index
        more_data = -(-max(0, end_pos - data.reserved_end) // data.file_size)
        more_index = -(-max(0, (end_index + 1) * INDEX_RECORD_SIZE - index.reserved_end) // index.file_size)
        need = more_data * data.file_size + more_index * index.file_size
        # Term and vote, checkpoints and repairs need some, too, and none of them waits for this.
        return self.free_bytes() - need >= self.disk_reserve_bytes // 8

    def prepare(self, ahead_bytes: int, tail_now: Callable[[], Tail], *, use_reserve: bool) -> bool:
        """See LogStore. OSError unless the disk is merely full."""
        while True:
            with self.files_lock:
                if self.is_closed:
                    return False
                self._restore_state_reserve()
                tail = tail_now()
                if self.likely_bytes(tail) >= ahead_bytes:
                    return True
                if self._reserved_data(tail) < ahead_bytes:
                    files, first = self._data, tail.pos
                else:
                    files, first = self._index, (tail.index + 1) * INDEX_RECORD_SIZE
                if not use_reserve and self.free_bytes() - files.file_size < self.disk_reserve_bytes:
                    return False
                try:
                    files.ensure_next(first)
                except OSError as error:
                    if error.errno in FULL:
                        return False
                    raise

    # -- for state files

    def open(self) -> None:
        """Make the small reserve, if there is room for it."""
        handle = self._disk.open(self._paths.reserve, create=True)
        self._is_spent = self._disk.size(handle) < self._state_reserve
        self._disk.close(handle)
        self._restore_state_reserve(leave=self._state_reserve)

    def writing(self, write: Callable[[], None]) -> None:
        """Write a state file; the small reserve is given up if there is no room for it otherwise."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL or not self._spend():
                raise
            write()

    def _spend(self) -> bool:
        with self._state_lock:
            self._is_spent = True
            return spend_reserve(self._disk, self._paths)

    def _restore_state_reserve(self, leave: int | None = None) -> None:
        """`leave`: bytes that have to stay free; the disk reserve unless it is given."""
        with self._state_lock:
            leave = self.disk_reserve_bytes if leave is None else leave
            if not self._is_spent or self.free_bytes() < self._state_reserve + leave:
                return
            handle = self._disk.open(self._paths.reserve, create=True)
            try:
                self._disk.allocate(handle, 0, self._state_reserve)
                self._disk.fdatasync(handle)
                self._is_spent = False
            except OSError as error:
                if error.errno not in FULL:
                    raise
                with suppress(OSError):
                    self._disk.unlink(self._paths.reserve)
            finally:
                self._disk.close(handle)


def spend_reserve(disk: Disk, paths: NodePaths) -> bool:
    """Give up the small reserve. False if there is none."""
    if not disk.exists(paths.reserve):
        return False
    disk.unlink(paths.reserve)
    disk.sync_directory(paths.root)
    return True


def full_error(what: str, error: OSError) -> StorageError:
    """The error of something that found no room, and has changed nothing."""
    return StorageError(f"no room for {what}: {error}", code=Code.DISK_FULL)
