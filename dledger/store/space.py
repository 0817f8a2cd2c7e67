"""Reserves disk space before it is needed (rule 9): prepared files, the disk reserve, and a reserve for state
files.

Client appends leave `disk_reserve_bytes` free for no-ops, purging, and term and vote, because `prepare` does
not use that space. Other processes may still fill the disk. To store term and vote, a checkpoint or a purge
even then, a small file, `reserve`, holds space. It is removed when one of these writes finds the disk full,
and recreated later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import RLock

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Disk
from dledger.infra.files.platform import FULL
from dledger.store.api import ReservedEnd
from dledger.store.files import FileSequence
from dledger.store.format.batch import BLANK_SIZE
from dledger.store.format.layout import INDEX_RECORD_SIZE, NodePaths, index_file_size

_MIN_STATE_RESERVE = _RESERVE_STEP = 4 << 10
_MAX_STATE_RESERVE = 1 << 20
_MAX_SPARE = 64 << 20


def default_reserve(data_file_size: int) -> int:
    """Return the default disk reserve: another data file and its index, which a no-op may need, and a
    margin."""
    return data_file_size + index_file_size(data_file_size) + min(data_file_size, _MAX_SPARE)


class DiskSpace:
    """The prepared files and reserves of one store. All methods except `writing` may run on any thread."""

    def __init__(
        self, disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence, disk_reserve_bytes: int
    ) -> None:
        self._reserve_bytes = disk_reserve_bytes
        #: Size of the newest state image: the reserve has room for another one, so that a full disk can still
        #: be purged.
        self.image_bytes: Callable[[], int] = lambda: 0
        # Held while files are added to the log or removed, so that no gap ever exists between them. Writes
        # and syncs do not take it.
        self.files_lock = RLock()
        self.is_closed = False  # a late `prepare` must not touch files that another process may open
        self._disk = disk
        self._paths = paths
        self._data = data
        self._index = index
        self._least_reserve = min(max(data.file_size // 4, _MIN_STATE_RESERVE), _MAX_STATE_RESERVE)
        self._state_bytes = 0  # size of the file with term and vote
        self._state_lock = RLock()
        self._held_bytes = 0  # size of the state reserve

    @property
    def disk_reserve_bytes(self) -> int:
        return self._reserve_bytes + self.image_bytes()

    def free_bytes(self) -> int:
        """Return the free bytes of the file system that holds the log."""
        return self._disk.free_bytes(self._paths.root)

    def reserved_end(self, tail: Tail) -> ReservedEnd:
        """See LogStore."""
        return ReservedEnd(
            max(tail.pos, self._data.reserved_end - BLANK_SIZE),
            max(tail.index, self._index.reserved_end // INDEX_RECORD_SIZE - 1),
        )

    def reserved_bytes(self, tail: Tail) -> int:
        """See LogStore. Assumes entries of minimum size, for which the index fills up first."""
        end = self.reserved_end(tail)
        return min(self._reserved_data(tail), (end.index - tail.index) * ENTRY_HEADER_SIZE)

    def likely_bytes(self, tail: Tail) -> int:
        """See LogStore. An index for entries of minimum size would take two thirds of the space of the data,
        mostly unused on a full disk."""
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

    def has_room_after(self, tail: Tail) -> bool:
        """See LogStore."""
        # Enough for pending appends as it shrinks, and at most the minimum that a pair of files holds.
        least = min(self._data.file_size // 2, self._index.file_size // INDEX_RECORD_SIZE * ENTRY_HEADER_SIZE)
        if self.likely_bytes(tail) >= least:
            return True
        need = self._missing_bytes(tail.pos, tail.index) + self._data.file_size + self._index.file_size
        return self.free_bytes() - need >= self.disk_reserve_bytes

    def could_take(self, end_pos: int, end_index: int) -> bool:
        """See LogStore."""
        # Term and vote, checkpoints and repairs also need space, and do not wait for this.
        return self.free_bytes() - self._missing_bytes(end_pos, end_index) >= self._reserve_bytes // 8

    def _missing_bytes(self, end_pos: int, end_index: int) -> int:
        """Return the size of the files needed, beyond the prepared ones, to reach this position and index."""
        data, index = self._data, self._index
        more_data = -(-max(0, end_pos - data.reserved_end) // data.file_size)
        more_index = -(-max(0, (end_index + 1) * INDEX_RECORD_SIZE - index.reserved_end) // index.file_size)
        return more_data * data.file_size + more_index * index.file_size

    def prepare(self, ahead_bytes: int, tail_now: Callable[[], Tail]) -> bool:
        """See LogStore. Raises OSError if the disk fails for a reason other than lack of space."""
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
                if self.free_bytes() - files.file_size < self.disk_reserve_bytes:
                    return False
                try:
                    files.ensure_next(first)
                except OSError as error:
                    if error.errno in FULL:
                        return False
                    raise

    # -- for state files

    def open(self) -> None:
        """Create the state reserve if there is space for it."""
        handle = self._disk.open(self._paths.reserve, create=True)
        self._held_bytes = self._disk.size(handle)
        self._disk.close(handle)
        handle = self._disk.open(self._paths.hard_state, write=False)
        self._state_bytes = self._disk.size(handle)
        self._disk.close(handle)
        self._restore_state_reserve(leave=self._state_reserve)

    def state_written(self, size: int) -> None:
        """Note the size of the file with term and vote. It has all configurations of the log, so it grows
        with each change of the members, and the reserve with it: a new copy is written next to the old one.
        """
        self._state_bytes = size

    @property
    def _state_reserve(self) -> int:
        """Return the size that the state reserve should have."""
        return max(self._least_reserve, -(-2 * self._state_bytes // _RESERVE_STEP) * _RESERVE_STEP)

    def writing(self, write: Callable[[], None]) -> None:
        """Write a state file. If the disk is full, release the state reserve and retry."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL or not self._spend():
                raise
            write()

    def _spend(self) -> bool:
        with self._state_lock:
            self._held_bytes = 0
            return spend_reserve(self._disk, self._paths)

    def _restore_state_reserve(self, leave: int | None = None) -> None:
        """Recreate the state reserve. `leave`: number of bytes that must remain free; by default the disk
        reserve."""
        with self._state_lock:
            leave = self.disk_reserve_bytes if leave is None else leave
            missing = self._state_reserve - self._held_bytes
            if missing <= 0 or self.free_bytes() < missing + leave:
                return
            handle = self._disk.open(self._paths.reserve, create=True)
            try:
                self._disk.allocate(handle, 0, self._state_reserve)
                self._disk.fdatasync(handle)
                self._held_bytes = self._state_reserve
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._held_bytes = 0
                with suppress(OSError):
                    self._disk.unlink(self._paths.reserve)
            finally:
                self._disk.close(handle)


def spend_reserve(disk: Disk, paths: NodePaths) -> bool:
    """Release the state reserve. Returns False if there is none."""
    if not disk.exists(paths.reserve):
        return False
    disk.unlink(paths.reserve)
    disk.sync_directory(paths.root)
    return True


def full_error(what: str, error: OSError) -> StorageError:
    """Return the error of an operation that found the disk full and has changed nothing."""
    return StorageError(f"no room for {what}: {error}", code=Code.DISK_FULL)
