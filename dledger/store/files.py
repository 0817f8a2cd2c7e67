"""A stream of bytes split into preallocated files of equal size: the data of the log, and its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dledger.errors import Code, StorageError
from dledger.infra.files.disk import LOST, PAGE, Buffer, Disk, read_around, write_all
from dledger.infra.files.platform import UNREADABLE
from dledger.store.format.layout import file_name, start_of

TEMPORARY = ".tmp"  # suffix of a file that will replace another one
_ZERO_PROBE = 1 << 20  # bytes per read while searching for a nonzero byte
_ZEROS = bytes(_ZERO_PROBE)


class SyncError(OSError):
    """An fsync of a log file failed: its pages in the page cache can no longer be trusted."""


class FileSequence:
    """The files of one directory, consecutive, each of `file_size` bytes and named by its first position.

    Disk errors are raised as OSError. Only one thread may modify the files. `read` may run at the same time,
    and methods that add a file may run during writes and syncs, but not while another one adds or removes a
    file. Removed files stay open until `close_removed` or `take_removed`, which must not be called during a
    read.
    """

    def __init__(self, disk: Disk, directory: Path, file_size: int, *, write: bool = True) -> None:
        self.directory = directory
        self.file_size = file_size
        self._disk = disk
        self._write = write
        self._handles: dict[int, int] = {}  # first position -> handle
        self._paths: dict[int, Path] = {}  # a cache, because building a path is slow
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # where a file may have nonzero bytes
        self._dirty: set[int] = set()
        self._removed: list[int] = []
        self._unreadable: set[int] = set()  # positions of pages that failed to read
        self._sparse: set[int] = set()  # files without reserved space

    # -- the set of files

    def load(self) -> None:
        """Open the existing files. Raises StorageError FOREIGN_DIRECTORY if the directory contains anything
        else."""
        for name in self._disk.listdir(self.directory):
            start = start_of(name)
            unfinished = start_of(name.removesuffix(TEMPORARY))
            if start is None and unfinished is not None:
                if self._write:
                    self._disk.unlink(self.directory / name)
                continue
            if start is None or start % self.file_size:
                raise StorageError(
                    f"{self.directory / name} is not a file of this log: its name must be a multiple of "
                    f"the file size {self.file_size}",
                    code=Code.FOREIGN_DIRECTORY,
                )
            handle = self._handles[start] = self._disk.open(self.directory / name, write=self._write)
            # Query this before any read. Pages in the page cache count as data, even pages of a hole. After a
            # read, a search for data in a reserved file would therefore read the whole file.
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
        """Return the path of the file that holds this position."""
        start = self.start_of(pos)
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = self.directory / file_name(start)
        return path

    def start_of(self, pos: int) -> int:
        """Return the first position of the file that holds this position."""
        return pos - pos % self.file_size

    def where(self, pos: int) -> str:
        """Return the file and offset of a position, for messages."""
        return f"file {self.path_of(pos)}, offset {pos % self.file_size}"

    def length(self, start: int) -> int:
        """Return the size of the file that starts at `start`; less than file_size after some crashes."""
        return self._disk.size(self._handles[start])

    def ensure(self, pos: int) -> None:
        """Create the file that holds this position if it does not exist, with reserved space and a durable
        name.

        If this fails with ENOSPC, no file remains.
        """
        start = self.start_of(pos)
        if start not in self._handles:
            self._create(start)

    def has(self, pos: int) -> bool:
        """Return True if the file that holds this position exists."""
        return self.start_of(pos) in self._handles

    def has_range(self, first_pos: int, last_pos: int) -> bool:
        """Return True if all files from the file of first_pos to the file of last_pos exist."""
        size, handles = self.file_size, self._handles
        first, last = first_pos - first_pos % size, last_pos - last_pos % size
        if first == last:
            return first in handles
        return all(start in handles for start in range(first, last + 1, size))

    def ensure_next(self, first_pos: int) -> None:
        """Create the file after the last one, or the file of `first_pos` if there is none. See `ensure`.

        If a file exists without reserved space, reserves its space instead.
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
            # Report the first error, even if the disk also fails to remove the file.
            self._disk.close(handle)
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        self._handles[start] = handle

    def extend(self, start: int) -> None:
        """Restore the full size of a file that a crash left short. The new part reads as zeros."""
        handle = self._handles[start]
        try:
            self._disk.allocate(handle, 0, self.file_size)
        except OSError:
            # The space has been used up since. A sparse file is still correct, but a later write may find the
            # disk full, which `append` handles anyway.
            self._disk.truncate(handle, self.file_size)
            self._sparse.add(start)
        self._dirty.add(start)

    @property
    def reserved_end(self) -> int:
        """The position up to which all space is reserved; 0 if there are no files."""
        return min(self._sparse) if self._sparse else self.end

    # -- contents

    def read(self, pos: int, size: int) -> bytes:
        """Read up to `size` bytes starting at `pos`, within the file that contains that position."""
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
        """Return True if a read found an unreadable page at or after `pos`."""
        return any(at + PAGE > pos for at in self._unreadable)

    def _give_up_page(self, start: int, begin: int, end: int) -> None:
        """Overwrite unreadable pages before a partial write. The disk cannot write a part of such a page, and
        its content is lost; the new content is certainly invalid."""
        for at in sorted(self._unreadable):
            if start + begin - PAGE < at < start + end:
                length = min(PAGE, start + self.file_size - at)
                write_all(self._disk, self._handles[start], [LOST * length], at - start)
                self._unreadable.discard(at)

    def write(self, pos: int, buffers: Sequence[Buffer], *, size: int) -> None:
        """Write `size` bytes at `pos`, all within one file, which must exist."""
        start = self.start_of(pos)
        assert pos + size <= start + self.file_size, f"{size} bytes at {pos} cross the end of a file"
        self._dirty.add(start)
        if self._unreadable:
            self._give_up_page(start, pos - start, pos - start + size)
        written = write_all(self._disk, self._handles[start], buffers, pos - start)
        assert written == size, f"{written} bytes written, {size} announced"

    def sync(self) -> None:
        """Make all written bytes durable. Raises StorageError if a file was removed while in use."""
        dirty = sorted(self._dirty) if len(self._dirty) > 1 else list(self._dirty)
        for start in dirty:
            handle = self._handles[start]
            self._sync_handle(handle)
            if not self._disk.is_at(handle, self.path_of(start)):
                raise StorageError(f"{self.path_of(start)} was removed while in use")
            self._dirty.discard(start)

    def mark_unsynced(self, pos: int) -> None:
        """Include the file at `pos` and all later files in the next sync, because another process may have
        left bytes that are only in the page cache."""
        self._dirty.update(start for start in self._handles if start + self.file_size > pos)

    def sync_file(self, start: int) -> None:
        """Make the file that starts at `start` durable, including writes by other processes."""
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
        """Drop the page cache, so that reads come from the disk."""
        for handle in list(self._handles.values()):
            self._disk.drop_cache(handle)

    def drop_cache_of(self, pos: int, end: int) -> None:
        """Drop the page cache between two positions of one file, which is durable up to `end`."""
        start = self.start_of(pos)
        handle = self._handles.get(start)
        begin = pos - start - (pos - start) % PAGE
        # Writes may go to the page of `end`: dropping it would force an immediate write-back.
        until = end - start - (end - start) % PAGE
        if handle is not None and until > begin:
            with suppress(OSError):  # not every file system supports the advice
                self._disk.drop_cache(handle, begin, until - begin)

    def next_data(self, pos: int) -> int | None:
        """Return the first position at or after `pos`, in any file, whose byte was nonzero at `load`."""
        for start in self.starts:
            if start + self.file_size > pos:
                distance = self._next_data_in(start, max(pos - start, 0))
                if distance is not None:
                    return start + distance
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
        """Durably remove everything at and after `pos`: first later files, then the rest of the file at
        `pos`.

        The rest then reads as zeros, so that no old byte can be mistaken for data. Each name is removed
        durably before the next, so that a crash leaves no gap between files.
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
        """Remove, durably, all files that end at or before `pos`. Returns False if there are none. Calls
        `on_removed` after each file."""
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
        """Forget unreadable pages. Changes the set in place and iterates over a copy, because a reader may
        add to the set at the same time."""
        self._unreadable -= {at for at in sorted(self._unreadable) if self.start_of(at) == start}

    def begin_copy(self, start: int) -> int:
        """Create an empty file that may later replace the one at `start`, and return its handle.

        May be called on any thread, for one copy of a file at a time. If this fails with ENOSPC, no file
        remains.
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
        """Remove the file that `begin_copy` created."""
        self._disk.close(handle)
        self._disk.unlink(self._temporary(start))

    def install_copy(self, start: int, handle: int) -> None:
        """Replace the file that starts at `start` with its copy, which is complete and durable.

        At any time the name, and every reader, sees either the old or the new file, in full.
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

    def take_removed(self) -> list[int]:
        """Return the handles of removed and replaced files, which the caller closes."""
        removed, self._removed = self._removed, []
        return removed

    def close_removed(self) -> None:
        """Close the handles of removed and replaced files."""
        self.close_handles(self.take_removed())

    def close_handles(self, handles: Sequence[int]) -> None:
        """Close handles of `take_removed`."""
        for handle in handles:
            self._disk.close(handle)

    def close(self) -> None:
        """Close all handles. Makes nothing durable."""
        self.close_removed()
        for handle in list(self._handles.values()):
            self._disk.close(handle)
        self._handles.clear()


def add_run(runs: list[tuple[int, list[Buffer], int]], pos: int, data: Buffer, file_size: int) -> None:
    """Add a write of `data` at `pos` to `runs`, merged with the last run if adjacent within one file.

    A run is a position, a list of buffers, and their total size in bytes.
    """
    if runs:
        start, buffers, length = runs[-1]
        if start + length == pos and pos % file_size:
            buffers.append(data)
            runs[-1] = (start, buffers, length + len(data))
            return
    runs.append((pos, [data], len(data)))
