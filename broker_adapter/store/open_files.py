"""Accesses preallocated files by path. Limits the number of open handles, and records unsynced changes."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from dledger.infra.files.disk import Buffer, Disk, list_directory, make_directories, sync_file, write_all
from dledger.infra.files.handle_cache import HandleCache


@dataclass(slots=True)
class Changes:
    """Changes since the last `take_changes`, which must be synced."""

    files: set[Path] = field(default_factory=set)
    directories: set[Path] = field(default_factory=set)

    def sync(self, disk: Disk) -> None:
        """Sync the changes. After an OSError, it is unknown which changes are durable."""
        for path in sorted(self.files):
            sync_file(disk, path)
        for path in sorted(self.directories):
            disk.sync_directory(path)


class OpenFiles:
    """Files for one writing thread and any number of readers.

    At most `limit` files are open, unless more are in use at the same time.
    """

    def __init__(self, disk: Disk, root: Path, *, limit: int = 256) -> None:
        """Create a cache. `root` and its parents are not created, synced or removed."""
        self._disk = disk
        self._root = root
        self._handles = HandleCache(disk.open, disk.close, limit)
        self._names_lock = Lock()  # held while names of files and directories change
        self._retired: set[Path] = set()
        self._changes = Changes()

    def create(self, path: Path, size: int) -> None:
        """Create or replace a file of zeros, and create its parent directories."""
        # Include existing directories, because an earlier process may have created them without a sync.
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
        """Overwrite the file with zeros starting at `end`. Its size does not change."""
        with self._handles.using(path) as handle:
            size = self._disk.size(handle)
            self._disk.truncate(handle, end)
            self._disk.truncate(handle, size)
        self._changes.files.add(path)

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Read up to `size` bytes. Raises FileNotFoundError if the file does not exist."""
        with self._handles.using(path) as handle:
            return self._disk.pread(handle, size, offset)

    def size(self, path: Path) -> int:
        with self._handles.using(path) as handle:
            return self._disk.size(handle)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists, and parent directories that become empty."""
        with self._names_lock:
            self._remove(path)

    def retire(self, path: Path) -> None:
        """Permit `remove_retired` to remove the file, unless it is reused before. Its changes need no sync.

        Call on the writer's thread.
        """
        self._changes.files.discard(path)
        with self._names_lock:
            self._retired.add(path)

    def take_back(self, path: Path) -> bool:
        """Reuse a retired file and its contents.

        Return False if it was removed. Call on the writer's thread.
        """
        with self._names_lock:
            exists = path in self._retired
            self._retired.discard(path)
        if exists:
            self._changes.files.add(path)  # including writes from before it was retired
        return exists

    def remove_retired(self, path: Path) -> None:
        """Remove a retired file, but not its directory (see `remove_empty`). May be called on any thread."""
        with self._names_lock:
            if path in self._retired:
                self._retired.discard(path)
                self._unlink(path)

    def remove_empty(self, directory: Path) -> None:
        """Remove an empty directory, and parents that become empty."""
        with self._names_lock:
            self._prune(directory / "any")

    def discard(self, path: Path) -> None:
        """Remove a file whose changes need no sync, but not its directory, which may need one.

        Call on the writer's thread.
        """
        self._changes.files.discard(path)
        with self._names_lock:
            self._retired.discard(path)
            self._unlink(path)

    def take_changes(self) -> Changes:
        """Return and reset the unsynced changes. Call on the writer's thread."""
        changes, self._changes = self._changes, Changes()
        return changes

    def close(self) -> None:
        self._handles.close()
        with self._names_lock:
            self._retired.clear()

    # -- internals ---------------------------------------------------------------------------------------

    def _directories_of(self, path: Path) -> list[Path]:
        """Return the parent directories of a file below the root, innermost first."""
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
                    raise  # another process changed the directory
                return
