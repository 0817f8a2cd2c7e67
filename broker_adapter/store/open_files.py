"""Preallocated files by path: few of them open at a time, and a note of what has to be synced."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from broker_adapter.store.files import (
    Buffer,
    Files,
    list_directory,
    make_directories,
    sync_file,
    write_all,
)


@dataclass(slots=True)
class _Open:
    handle: int
    users: int = 0
    evicted: bool = False


@dataclass(slots=True)
class Changes:
    """What was written since the last time that somebody asked: to be synced."""

    files: set[Path] = field(default_factory=set)
    directories: set[Path] = field(default_factory=set)

    def sync(self, files: Files) -> None:
        """Durable on return. OSError: nobody knows what is."""
        for path in sorted(self.files):
            sync_file(files, path)
        for path in sorted(self.directories):
            files.sync_directory(path)


class OpenFiles:
    """One thread writes, any may read. More than `limit` files are open only while as many are in use."""

    def __init__(self, files: Files, root: Path, *, limit: int = 256) -> None:
        """`root` and what is above it are somebody else's to make durable, and stay."""
        self._files = files
        self._root = root
        self._limit = limit
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = Lock()
        self._names_lock = Lock()  # held while names of files and directories come or go
        self._retired: set[Path] = set()
        self._changes = Changes()

    def create(self, path: Path, size: int) -> None:
        """A file of zeros in place of what was there, and the directories above it."""
        # Those that were there, too: an earlier life may have made them, and died before it synced.
        self._changes.directories.update(self._directories_of(path), (self._root,))
        self._forget(path)
        with self._names_lock:
            self._retired.discard(path)
            make_directories(self._files, path.parent)
            handle = self._files.open(path, create=True)
        try:
            self._files.truncate(handle, 0)
            self._files.truncate(handle, size)
        finally:
            self._files.close(handle)
        self._changes.files.add(path)

    def write(self, path: Path, data: Buffer, offset: int) -> None:
        with self._using(path) as handle:
            write_all(self._files, handle, data, offset)
        self._changes.files.add(path)

    def cut(self, path: Path, end: int) -> None:
        """Zeros from `end` on; the size stays."""
        with self._using(path) as handle:
            size = self._files.size(handle)
            self._files.truncate(handle, end)
            self._files.truncate(handle, size)
        self._changes.files.add(path)

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Up to `size` bytes. FileNotFoundError if the file is gone."""
        with self._using(path) as handle:
            return self._files.pread(handle, size, offset)

    def size(self, path: Path) -> int:
        with self._using(path) as handle:
            return self._files.size(handle)

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
        for path in list(self._open):
            self._forget(path)
        with self._names_lock:
            self._retired.clear()

    # -- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _using(self, path: Path) -> Iterator[int]:
        with self._lock:
            found = self._open.get(path)
            if found is None:
                found = self._open[path] = _Open(self._files.open(path))
                if len(self._open) > self._limit:
                    self._evict(next(iter(self._open)))
            else:
                self._open.move_to_end(path)
            found.users += 1
        try:
            yield found.handle
        finally:
            with self._lock:
                found.users -= 1
                if found.evicted and not found.users:
                    self._files.close(found.handle)

    def _directories_of(self, path: Path) -> list[Path]:
        """Those above a file, the lowest first, below the root."""
        above = path.parents
        return list(above[: above.index(self._root)])

    def _remove(self, path: Path) -> None:
        self._unlink(path)
        self._prune(path)

    def _unlink(self, path: Path) -> None:
        self._forget(path)
        if self._files.exists(path):
            self._files.unlink(path)

    def _prune(self, path: Path) -> None:
        for directory in self._directories_of(path):
            if not self._files.exists(directory) or list_directory(self._files, directory):
                return
            try:
                self._files.rmdir(directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise  # somebody else has put something there, or taken it away
                return

    def _forget(self, path: Path) -> None:
        with self._lock:
            if path in self._open:
                self._evict(path)

    def _evict(self, path: Path) -> None:
        """Closed at once, or by the last of those that still read from it."""
        found = self._open.pop(path)
        found.evicted = True
        if not found.users:
            self._files.close(found.handle)
