"""A stream of bytes cut into preallocated files of equal size: the data of the log, and its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dledger.errors import Code, StorageError
from dledger.store.disk import LOST, PAGE, UNREADABLE, Buffer, Disk, read_around, write_all
from dledger.store.format.layout import file_name, start_of

TEMPORARY = ".tmp"  # ends the name of a file that is to replace another one
_ZERO_PROBE = 1 << 20  # bytes looked at in one go when searching for anything that is not zero
_ZEROS = bytes(_ZERO_PROBE)


class SyncError(OSError):
    """An fsync of a file of the log failed: what the page cache holds of it is not to be believed."""


class FileSequence:
    """The files of one directory, consecutive, each of `file_size` bytes and named by its first position.

    Errors of the disk are OSError here. Only one thread may change anything; `read` may run meanwhile, and
    what adds a file may run beside writes and syncs, but not beside anything else that adds or removes one.
    Files that were removed stay open until `close_removed`, which must be called while no read runs.
    """

    def __init__(self, disk: Disk, directory: Path, file_size: int, *, write: bool = True) -> None:
        self.directory = directory
        self.file_size = file_size
        self._disk = disk
        self._write = write
        self._handles: dict[int, int] = {}  # first position -> handle
        self._paths: dict[int, Path] = {}  # of files that were asked for; making one takes its time
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # where a file can have other bytes than zeros
        self._dirty: set[int] = set()
        self._removed: list[int] = []
        self._unreadable: set[int] = set()  # positions of pages that reads found lost
        self._sparse: set[int] = set()  # files whose space could not be reserved

    # -- the set of files

    def load(self) -> None:
        """Open the files that are there. StorageError FOREIGN_DIRECTORY if anything else is."""
        for name in self._disk.listdir(self.directory):
            start = start_of(name)
            unfinished = start_of(name.removesuffix(TEMPORARY))
            if start is None and unfinished is not None:
                if self._write:
                    self._disk.unlink(self.directory / name)
                continue
            if start is None or start % self.file_size:
                raise StorageError(
                    f"{self.directory / name} is no file of this log", code=Code.FOREIGN_DIRECTORY
                )
            handle = self._handles[start] = self._disk.open(self.directory / name, write=self._write)
            # Before anything is read: pages that were read count as data from then on, even if they are
            # part of a hole, and looking for data in a reserved file would mean to read all of it.
            self._ranges[start] = self._disk.data_ranges(handle)

    @property
    def starts(self) -> list[int]:
        """The first positions of the files, ascending."""
        return sorted(self._handles)

    @property
    def end(self) -> int:
        """The position after the last file; 0 if there is none."""
        return max(self._handles) + self.file_size if self._handles else 0

    def path_of(self, pos: int) -> Path:
        """The file that holds this position."""
        start = self.start_of(pos)
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = self.directory / file_name(start)
        return path

    def start_of(self, pos: int) -> int:
        """The first position of the file that holds this position."""
        return pos - pos % self.file_size

    def where(self, pos: int) -> str:
        """File and offset of a position, for messages."""
        return f"file {self.path_of(pos)}, offset {pos % self.file_size}"

    def length(self, start: int) -> int:
        """Bytes of the file that begins at `start`; less than file_size after some crashes."""
        return self._disk.size(self._handles[start])

    def ensure(self, pos: int) -> None:
        """Make sure that the file which holds this position exists, its space reserved and its name durable.

        ENOSPC leaves nothing behind.
        """
        start = self.start_of(pos)
        if start not in self._handles:
            self._create(start)

    def has(self, pos: int) -> bool:
        """Whether the file that holds this position exists."""
        return self.start_of(pos) in self._handles

    def has_range(self, first_pos: int, last_pos: int) -> bool:
        """Whether all files from the one that holds first_pos to the one that holds last_pos exist."""
        size, handles = self.file_size, self._handles
        first, last = first_pos - first_pos % size, last_pos - last_pos % size
        if first == last:
            return first in handles
        return all(start in handles for start in range(first, last + 1, size))

    def ensure_next(self, first_pos: int) -> None:
        """Like `ensure`, for the file after the last one, or for that of `first_pos` if there is none.

        If there is one whose space could not be reserved, that is done instead.
        """
        if self._sparse:
            start = min(self._sparse)
            self._disk.allocate(self._handles[start], 0, self.file_size)
            self._sparse.discard(start)
            return
        self._create(self.end if self._handles else self.start_of(first_pos))

    def _create(self, start: int) -> None:
        path = self.path_of(start)
        handle = self._disk.open(path, create=True)
        try:
            self._disk.allocate(handle, 0, self.file_size)
            self._disk.fdatasync(handle)
            self._disk.sync_directory(self.directory)
        except OSError:
            # The first error is the one to report, also if the disk does not even remove a file any more.
            self._disk.close(handle)
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        self._handles[start] = handle

    def extend(self, start: int) -> None:
        """Give a file that a crash left short its full size again; the new part reads as zeros."""
        handle = self._handles[start]
        try:
            self._disk.allocate(handle, 0, self.file_size)
        except OSError:
            # The space was given away meanwhile. A sparse file is no less correct; only a later write may
            # then find the disk full, which appending has to cope with anyhow.
            self._disk.truncate(handle, self.file_size)
            self._sparse.add(start)
        self._dirty.add(start)

    @property
    def reserved_end(self) -> int:
        """The position up to which all space is reserved, 0 if there are no files."""
        return min(self._sparse) if self._sparse else self.end

    # -- contents

    def read(self, pos: int, size: int) -> bytes:
        """Up to `size` bytes from `pos` on, not beyond the end of the file that holds it."""
        start = self.start_of(pos)
        handle = self._handles.get(start)
        if handle is None:
            return b""
        return self._pread(start, handle, min(size, start + self.file_size - pos), pos - start)

    def _pread(self, start: int, handle: int, size: int, offset: int) -> bytes:
        try:
            return self._disk.pread(handle, size, offset)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            lost = self._unreadable
            return read_around(self._disk, handle, size, offset, lambda at: lost.add(start + at))

    def is_unreadable_after(self, pos: int) -> bool:
        """Whether a read met a place from `pos` on that the disk cannot give back any more."""
        return any(at + PAGE > pos for at in self._unreadable)

    def _give_up_page(self, start: int, begin: int, end: int) -> None:
        """A page that cannot be read cannot be written in part either: what it had is lost, so write all of
        it, surely wrong, before some of it is written anew."""
        for at in sorted(self._unreadable):
            if start + begin - PAGE < at < start + end:
                length = min(PAGE, start + self.file_size - at)
                write_all(self._disk, self._handles[start], [LOST * length], at - start)
                self._unreadable.discard(at)

    def write(self, pos: int, buffers: Sequence[Buffer], *, size: int) -> None:
        """Write `size` bytes at `pos`, all within one file, which must exist."""
        start = self.start_of(pos)
        assert pos + size <= start + self.file_size, f"{size} bytes at {pos} reach over the end of a file"
        self._dirty.add(start)
        if self._unreadable:
            self._give_up_page(start, pos - start, pos - start + size)
        written = write_all(self._disk, self._handles[start], buffers, pos - start)
        assert written == size, f"{written} bytes written, {size} announced"

    def sync(self) -> None:
        """Make all that was written durable. StorageError if a file was removed under us."""
        dirty = sorted(self._dirty) if len(self._dirty) > 1 else list(self._dirty)
        for start in dirty:
            handle = self._handles[start]
            self._sync_handle(handle)
            if not self._disk.is_at(handle, self.path_of(start)):
                raise StorageError(f"{self.path_of(start)} was removed while in use")
            self._dirty.discard(start)

    def mark_unsynced(self, pos: int) -> None:
        """What another process wrote from `pos` on may be in the page cache only: the next sync covers it."""
        self._dirty.update(start for start in self._handles if start + self.file_size > pos)

    def sync_file(self, start: int) -> None:
        """Make the file that begins at `start` durable, whoever wrote to it."""
        self._sync_handle(self._handles[start])
        self._dirty.discard(start)

    def _sync_handle(self, handle: int) -> None:
        try:
            self._disk.fdatasync(handle)
        except OSError as error:
            raise SyncError(error.errno, *error.args[1:]) from error

    def sync_directory(self) -> None:
        """Make the names of the files durable."""
        self._disk.sync_directory(self.directory)

    def drop_cache(self) -> None:
        """Read from the disk again, not from what the system remembers."""
        for handle in list(self._handles.values()):
            self._disk.drop_cache(handle)

    def drop_cache_of(self, pos: int, end: int) -> None:
        """The same for what lies between two positions of one file, and is durable up to `end`."""
        start = self.start_of(pos)
        handle = self._handles.get(start)
        begin = pos - start - (pos - start) % PAGE
        # The page that `end` is in may be written to: dropping it would have it written out at once.
        until = end - start - (end - start) % PAGE
        if handle is not None and until > begin:
            with suppress(OSError):  # not every file system takes advice
                self._disk.drop_cache(handle, begin, until - begin)

    def next_data(self, pos: int) -> int | None:
        """The first position from `pos` on, in any file, where there was a byte other than zero at `load`."""
        for start in self.starts:
            if start + self.file_size > pos:
                found = self._next_data_in(start, max(pos - start, 0))
                if found is not None:
                    return start + found
        return None

    def _next_data_in(self, start: int, offset: int) -> int | None:
        handle = self._handles[start]
        for begin, end in self._ranges.get(start, [(0, self.file_size)]):
            at = max(begin, offset)
            while at < end:
                chunk = self._pread(start, handle, min(_ZERO_PROBE, end - at), at)
                if not chunk:
                    break
                if chunk != _ZEROS[: len(chunk)]:
                    return at + len(chunk) - len(chunk.lstrip(b"\0"))
                at += len(chunk)
        return None

    def cut(self, pos: int) -> None:
        """Remove, durably, everything from `pos` on: later files first, then the rest of its own file.

        The rest then reads as zeros: no old byte can pass for good. Each name is removed durably before the
        next, so that a crash leaves no gap between files.
        """
        keep_last = self.start_of(pos - 1) if pos else 0
        for start in reversed(self.starts):
            if start <= keep_last:
                break
            self._remove(start)
            self._disk.sync_directory(self.directory)
        handle = self._handles.get(keep_last)
        if handle is not None and pos - keep_last < self.file_size:
            self._give_up_page(keep_last, pos - keep_last, pos - keep_last + 1)
            self._disk.truncate(handle, pos - keep_last)
            self.extend(keep_last)
            self.sync_file(keep_last)

    def remove_below(self, pos: int, on_removed: Callable[[], None] = lambda: None) -> bool:
        """Remove, durably, all files that end at or before `pos`. False if there is none. `on_removed` is
        called after each."""
        below = [start for start in self.starts if start + self.file_size <= pos]
        for start in below:
            self._remove(start)
            on_removed()
        if below:
            self._disk.sync_directory(self.directory)
        return bool(below)

    def remove_all(self) -> None:
        """Remove, durably, all files."""
        for start in self.starts:
            self._remove(start)
        self._disk.sync_directory(self.directory)

    def _remove(self, start: int) -> None:
        self._removed.append(self._handles.pop(start))
        self._forget_lost(start)
        self._dirty.discard(start)
        self._sparse.discard(start)
        self._disk.unlink(self.path_of(start))
        self._paths.pop(start, None)

    def _forget_lost(self, start: int) -> None:
        """In place, and by a copy: a reader may add to them meanwhile."""
        self._unreadable -= {at for at in sorted(self._unreadable) if self.start_of(at) == start}

    def begin_copy(self, start: int) -> int:
        """A handle of a new, empty file that may take the place of the one that begins at `start`.

        Any thread; one copy of a file at a time. ENOSPC leaves nothing behind.
        """
        handle = self._disk.open(self._temporary(start), create=True)
        try:
            self._disk.truncate(handle, 0)
            self._disk.allocate(handle, 0, self.file_size)
        except OSError:
            with suppress(OSError):
                self.drop_copy(start, handle)
            raise
        return handle

    def drop_copy(self, start: int, handle: int) -> None:
        """What `begin_copy` made is not wanted any more."""
        self._disk.close(handle)
        self._disk.unlink(self._temporary(start))

    def install_copy(self, start: int, handle: int) -> None:
        """Replace the file that begins at `start` by its copy, which is complete and durable.

        The name has the old file or the new one, whole, at any time; so have readers.
        """
        self._disk.rename(self._temporary(start), self.path_of(start))
        self._ranges.pop(start, None)
        self._forget_lost(start)
        self._sparse.discard(start)
        self._dirty.discard(start)
        self._removed.append(self._handles[start])
        self._handles[start] = handle
        self._disk.sync_directory(self.directory)

    def _temporary(self, start: int) -> Path:
        path = self.path_of(start)
        return path.with_name(path.name + TEMPORARY)

    def close_removed(self) -> None:
        """Give up the handles of files that `cut` removed."""
        while self._removed:
            self._disk.close(self._removed.pop())

    def close(self) -> None:
        """Give up all handles, without making anything durable."""
        self.close_removed()
        for handle in list(self._handles.values()):
            self._disk.close(handle)
        self._handles.clear()
