"""Preallocated files by path: few of them open at a time, and a note of what has to be synced."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from dledger.platform import Buffer, Disk, HandleCache, list_directory, make_directories, sync_file, write_all


@dataclass(slots=True)
class Changes:
    """What was written since the last time that somebody asked: to be synced."""

    files: set[Path] = field(default_factory=set)
    directories: set[Path] = field(default_factory=set)

    def sync(self, disk: Disk) -> None:
        """Durable on return. OSError: nobody knows what is."""
        for path in sorted(self.files):
            sync_file(disk, path)
        for path in sorted(self.directories):
            disk.sync_directory(path)


class OpenFiles:
    """One thread writes, any may read. More than `limit` files are open only while as many are in use."""

    def __init__(self, disk: Disk, root: Path, *, limit: int = 256) -> None:
        """`root` and what is above it are somebody else's to make durable, and stay."""
        self._disk = disk
        self._root = root
        self._handles = HandleCache(disk.open, disk.close, limit)
        self._names_lock = Lock()  # held while names of files and directories come or go
        self._retired: set[Path] = set()
        self._changes = Changes()

    def create(self, path: Path, size: int) -> None:
        """A file of zeros in place of what was there, and the directories above it."""
        # Those that were there, too: an earlier life may have made them, and died before it synced.
        self._changes.directories.update(self._directories_of(path), (self._root,))
        self._handles.forget(path)
        with self._names_lock:
            self._retired.discard(path)
            make_directories(self._disk, path.parent)
            handle = self._disk.open(path, create=True)
        try:
            self._disk.truncate(handle, 0)
            self._disk.truncate(handle, size)
        finally:
            self._disk.close(handle)
        self._changes.files.add(path)

    def write(self, path: Path, data: Buffer, offset: int) -> None:
        with self._handles.using(path) as handle:
            write_all(self._disk, handle, [data], offset)
        self._changes.files.add(path)

    def cut(self, path: Path, end: int) -> None:
        """Zeros from `end` on; the size stays."""
        with self._handles.using(path) as handle:
            size = self._disk.size(handle)
            self._disk.truncate(handle, end)
            self._disk.truncate(handle, size)
        self._changes.files.add(path)

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Up to `size` bytes. FileNotFoundError if the file is gone."""
        with self._handles.using(path) as handle:
            return self._disk.pread(handle, size, offset)

    def size(self, path: Path) -> int:
        with self._handles.using(path) as handle:
            return self._disk.size(handle)

    def remove(self, path: Path) -> None:
        """Whether it is there or not, and the directories that are empty without it."""
        with self._names_lock:
            self._remove(path)

    def retire(self, path: Path) -> None:
        """The file may go with `remove_retired`, unless it is taken back before: it need not be synced. On
        the writer's thread."""
        self._changes.files.discard(path)
        with self._names_lock:
            self._retired.add(path)

    def take_back(self, path: Path) -> bool:
        """Whether a retired file is still there: it stays then, with all that is in it. On the writer's
        thread."""
        with self._names_lock:
            is_there = path in self._retired
            self._retired.discard(path)
        if is_there:
            self._changes.files.add(path)  # what was written before it was retired, too
        return is_there

    def remove_retired(self, path: Path) -> None:
        """From any thread. Its directory stays: see `remove_empty`."""
        with self._names_lock:
            if path in self._retired:
                self._retired.discard(path)
                self._unlink(path)

    def remove_empty(self, directory: Path) -> None:
        """A directory without anything in it, and those above it that are empty without it."""
        with self._names_lock:
            self._prune(directory / "any")

    def discard(self, path: Path) -> None:
        """Remove a file whose changes need not be synced; its directory, which may have to be, stays. On the
        writer's thread."""
        self._changes.files.discard(path)
        with self._names_lock:
            self._retired.discard(path)
            self._unlink(path)

    def take_changes(self) -> Changes:
        """On the writer's thread."""
        changes, self._changes = self._changes, Changes()
        return changes

    def close(self) -> None:
        self._handles.close()
        with self._names_lock:
            self._retired.clear()

    # -- inside -----------------------------------------------------------------------------------------

    def _directories_of(self, path: Path) -> list[Path]:
        """Those above a file, the lowest first, below the root."""
        above = path.parents
        return list(above[: above.index(self._root)])

    def _remove(self, path: Path) -> None:
        self._unlink(path)
        self._prune(path)

    def _unlink(self, path: Path) -> None:
        self._handles.forget(path)
        if self._disk.exists(path):
            self._disk.unlink(path)

    def _prune(self, path: Path) -> None:
        for directory in self._directories_of(path):
            if not self._disk.exists(directory) or list_directory(self._disk, directory):
                return
            try:
                self._disk.rmdir(directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise  # somebody else has put something there, or taken it away
                return
