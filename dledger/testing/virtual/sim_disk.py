"""A deterministic disk in memory, on which tests can cause failures, torn writes and crashes.

It keeps two states of all files: the view of the running system (the page cache), and the content of the
disk. Data without fdatasync, and names without an fsync of their directory, are only in the page cache. A
process crash keeps the page cache. A power failure keeps the durable content and random parts of the rest::

 disk = SimDisk()
 ...                                     # run a store on it
 disk.crash(CrashKind.POWER, random.Random(7))
 ...                                     # open the store again, with the remaining content
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random

from dledger.infra.files.disk import IOV_MAX, Buffer, CrashKind

__all__ = ["SECTOR", "CrashKind", "CrashPoint", "SimDisk", "SimulatedCrash"]

SECTOR = 512  # a disk writes a sector completely or not at all


class CrashPoint(Enum):
    """Point within an operation at which the machine crashes."""

    BEFORE = "before"
    DURING = "during"  # half of a write was done; like BEFORE for other operations
    AFTER = "after"


class SimulatedCrash(BaseException):  # not an Exception, because the machine has crashed
    """Raised by the operation at which the scheduled crash happens, and by all later ones."""


@dataclass(slots=True)
class _DataChange:
    """An unsynced change of a file: data written at an offset, or (data None) a new size."""

    offset: int
    data: bytes | None
    size: int = 0
    number: int = 0  # position in the order of all unsynced changes of the disk

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            _resize(content, self.size)
            return
        end = self.offset + len(self.data)
        if len(content) < end:
            _resize(content, end)
        content[self.offset : end] = self.data

    def covers(self, offset: int) -> bool:
        """Return True if the change sets or removes the byte at this offset."""
        if self.data is None:
            return offset >= self.size
        return self.offset <= offset < self.offset + len(self.data)


@dataclass(slots=True, eq=False)
class _SimFile:
    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[_DataChange] = field(default_factory=list)
    modified_ms: int = 0

    def sync(self) -> None:
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()


@dataclass(slots=True)
class _OpenFile:
    file: _SimFile
    path: Path
    write: bool


_Names = dict[Path, _SimFile | None]  # None: a directory


@dataclass(slots=True)
class _NameChange:
    """An unsynced change of one directory: a name that was removed, a name that was added."""

    directory: Path
    removed: Path | None = None
    added: Path | None = None
    file: _SimFile | None = None
    number: int = 0

    def apply(self, names: _Names) -> None:
        if self.removed is not None and names.pop(self.removed, None) is None:
            for name in [name for name in names if self.removed in name.parents]:
                del names[name]  # an empty directory: the removals in it precede its own
        if self.added is not None:
            names[self.added] = self.file


class SimDisk:
    """A simulated disk; see the docstring of the module. Not thread-safe."""

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.wall_ms: Callable[[], int] = lambda: 0  # clock for modification times
        self.capacity = capacity  # total size of all files; more is ENOSPC
        self.operations: list[str] = []  # all operations so far that changed something
        self._names: _Names = {Path("/"): None}
        self._durable_names: _Names = dict(self._names)
        self._name_changes: list[_NameChange] = []
        self._handles: dict[int, _OpenFile] = {}
        self._next_handle = self._crashed_handle = 1000
        self._numbered = 0
        self._locks: dict[int, _SimFile] = {}
        self._crash_at: tuple[int, CrashPoint] | None = None
        self._crashed = False
        self._faults: dict[tuple[str, int], int] = {}
        self._operation_faults: dict[int, int] = {}
        self._shorts: dict[int, int] = {}
        self._calls: dict[str, int] = {}

    # -- for tests

    def schedule_crash(self, operation: int, point: CrashPoint) -> None:
        """Raise SimulatedCrash at the operation with this number, counted from 1 since the disk was
        created."""
        self._crash_at = (operation, point)

    def fail(self, operation: str, error: int = errno.EIO, *, nth: int = 1) -> None:
        """Make the nth call from now of an operation (the name of its method) fail with this errno."""
        self._faults[operation, self._calls.get(operation, 0) + nth] = error

    def fail_operation(self, operation: int, error: int = errno.EIO) -> None:
        """Make the operation with this number (see `schedule_crash`) fail with this errno."""
        self._operation_faults[operation] = error

    def repair(self) -> None:
        """Cancel all scheduled failures."""
        self._faults.clear()
        self._operation_faults.clear()

    def shorten_write(self, size: int, *, nth: int = 1) -> None:
        """Make the nth pwritev from now write only its first `size` bytes."""
        self._shorts[self._calls.get("pwritev", 0) + nth] = size

    def flip(self, path: Path, offset: int, mask: int = 0x01) -> None:
        """Invert bits of one byte of a file, on the disk and in the cache."""
        file = self._file(path)
        file.cache[offset] ^= mask
        if offset < len(file.durable):
            file.durable[offset] ^= mask

    def is_durable(self, path: Path, offset: int, size: int) -> bool:
        """Return True if the disk has the same bytes as the cache."""
        file = self._names.get(path)
        if file is None or self._durable_names.get(path) is not file:
            return False
        return file.cache[offset : offset + size] == file.durable[offset : offset + size]

    def is_content_durable(self, path: Path) -> bool:
        """Return True if all of a file's content is on the disk, regardless of its name there."""
        file = self._file(path)
        return file.cache == file.durable

    def durable_content(self, path: Path) -> bytes:
        """Return the content that a file would have after a power failure. It is empty if the name of the
        file would be lost."""
        file = self._durable_names.get(path)
        return b"" if file is None else bytes(file.durable)

    def flip_durable(self, path: Path, offset: int, mask: int) -> Callable[[], bool] | None:
        """Like `flip`, for a byte that is equal in cache and on disk, and that no unsynced change contains:
        the next sync would write it, so the disk would be right and the cache wrong. Returns None if there is
        no such byte; otherwise returns a function that returns True if the byte is wrong, now or after a
        power failure."""
        if not self.exists(path) or not self.is_durable(path, offset, 1) or offset >= len(self.content(path)):
            return None
        if any(change.covers(offset) for change in self._file(path).changes):
            return None
        self.flip(path, offset, mask)
        wrong = self._file(path).cache[offset : offset + 1]

        def is_there() -> bool:
            # The path may refer to another file than before, because a repair copies the parts that it does
            # not replace.
            now, durable = self._names.get(path), self._durable_names.get(path)
            return (now is not None and now.cache[offset : offset + 1] == wrong) or (
                durable is not None and durable.durable[offset : offset + 1] == wrong
            )

        return is_there

    def content(self, path: Path) -> bytes:
        """Return the content of a file in the page cache."""
        return bytes(self._file(path).cache)

    def set_content(self, path: Path, content: bytes) -> None:
        """Replace a file durably, as an external fault would."""
        file = _SimFile(bytearray(content), bytearray(content))
        self._names[path] = self._durable_names[path] = file

    def lose(self, path: Path) -> None:
        """Remove a file durably, as an external fault would."""
        del self._names[path]
        self._durable_names.pop(path, None)

    @property
    def open_files(self) -> list[Path]:
        """The names with which the files were opened that are not closed."""
        return [opened.path for opened in self._handles.values()]

    def files(self) -> list[Path]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, file in self._names.items() if file is not None)

    def copy(self) -> SimDisk:
        """Return a disk that has the same durable and cached content but no handles, faults or locks."""
        twin = SimDisk(capacity=self.capacity)
        twins: dict[int, _SimFile] = {}

        def of(file: _SimFile | None) -> _SimFile | None:
            if file is None:
                return None
            if id(file) not in twins:
                twins[id(file)] = _SimFile(bytearray(file.cache), bytearray(file.durable), list(file.changes))
            return twins[id(file)]

        twin._names = {path: of(file) for path, file in self._names.items()}
        twin._durable_names = {path: of(file) for path, file in self._durable_names.items()}
        twin._name_changes = [
            _NameChange(c.directory, c.removed, c.added, of(c.file), c.number) for c in self._name_changes
        ]
        return twin

    def crash(self, kind: CrashKind, rng: Random, *, reorder: bool = False) -> None:
        """Crash and restart. Handles and locks are lost, and with POWER also unsynced changes.

        Unsynced changes survive up to a random point in their order, where a write is torn at any byte. With
        `reorder`, each sector of each file survives up to its own point.
        """
        self._handles.clear()
        self._crashed_handle = self._next_handle
        self._locks.clear()
        self._crash_at = None
        self._crashed = False
        if kind is CrashKind.PROCESS:
            return
        candidates = (
            *self._names.values(),
            *self._durable_names.values(),
            *(c.file for c in self._name_changes),
        )
        files = list({id(file): file for file in candidates if file is not None}.values())
        unsynced = sorted(
            [c.number for c in self._name_changes] + [c.number for file in files for c in file.changes]
        )
        # Number of the first change that is lost or torn.
        lost = rng.choice([*unsynced, self._numbered + 1])
        for file in files:
            if reorder:
                _keep_sectors(file, rng)
            else:
                _keep_until(file, lost, rng)
        if reorder:
            lost = rng.choice([*(c.number for c in self._name_changes), self._numbered + 1])
        for change in self._name_changes:
            if change.number < lost:
                change.apply(self._durable_names)
        self._name_changes.clear()
        # A directory may have been synced before its own name was. Without the name, its files are lost.
        self._durable_names = {
            path: file
            for path, file in self._durable_names.items()
            if all(above in self._durable_names for above in path.parents)
        }
        self._names = dict(self._durable_names)

    # -- Disk

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        if self._crashed:
            raise SimulatedCrash
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._directory(path.parent)
            self._begin("open", path)
            self._rename(_NameChange(path.parent, added=path, file=_SimFile()))
            self._end()
        self._next_handle += 1
        self._handles[self._next_handle] = _OpenFile(self._file(path), path, write)
        return self._next_handle

    def close(self, handle: int) -> None:
        self._require_open(handle)
        self._handles.pop(handle, None)
        self._locks.pop(handle, None)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        opened = self._handle(handle)
        self._count("pread", opened.path)
        return bytes(opened.file.cache[offset : offset + size])

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) > IOV_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        opened = self._handle(handle)
        assert opened.write, f"{opened.path} was opened for reading"
        self._begin("pwritev", opened.path)
        data = b"".join(bytes(b) for b in buffers)
        data = data[: self._shorts.pop(self._calls["pwritev"], len(data))]
        self._need(offset + len(data) - len(opened.file.cache))
        if self._crash_at == (len(self.operations), CrashPoint.DURING):
            self._change(opened.file, _DataChange(offset, data[: len(data) // 2]))
            self._go_down()
        self._change(opened.file, _DataChange(offset, data))
        opened.file.modified_ms = self.wall_ms()
        self._end()
        return len(data)

    def fdatasync(self, handle: int) -> None:
        opened = self._handle(handle)
        try:
            self._begin("fdatasync", opened.path)
        except OSError:
            opened.file.changes.clear()  # as in the kernel: the pages count as clean, but were never written
            raise
        opened.file.sync()
        self._end()

    def sync_directory(self, path: Path) -> None:
        self._directory(path)
        self._begin("sync_directory", path)
        synced = [change for change in self._name_changes if change.directory == path]
        for change in synced:
            change.apply(self._durable_names)
        removed = {change.removed: change.number for change in synced if change.removed is not None}
        self._name_changes = [
            change
            for change in self._name_changes
            if change.directory != path and not _was_removed(change, removed)
        ]
        self._end()

    def truncate(self, handle: int, size: int) -> None:
        opened = self._handle(handle)
        self._begin("truncate", opened.path)
        self._change(opened.file, _DataChange(0, None, size))
        self._end()

    def allocate(self, handle: int, offset: int, size: int) -> None:
        opened = self._handle(handle)
        self._begin("allocate", opened.path)
        self._need(offset + size - len(opened.file.cache))
        if offset + size > len(opened.file.cache):
            self._change(opened.file, _DataChange(0, None, offset + size))
        self._end()

    def size(self, handle: int) -> int:
        return len(self._handle(handle).file.cache)

    def is_at(self, handle: int, path: Path) -> bool:
        return self._names.get(path) is self._handle(handle).file

    def data_ranges(self, handle: int) -> list[tuple[int, int]]:
        return [(0, len(self._handle(handle).file.cache))]

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        """Drop the cache of the whole file, because it is not divided into pages."""
        file = self._handle(handle).file
        file.cache = bytearray(file.durable)
        for change in file.changes:
            change.apply(file.cache)

    def rename(self, old: Path, new: Path) -> None:
        file = self._file(old)
        assert old.parent == new.parent, "renames between directories are not modelled"
        self._begin("rename", new)
        self._rename(_NameChange(new.parent, removed=old, added=new, file=file))
        self._end()

    def unlink(self, path: Path) -> None:
        self._file(path)
        self._begin("unlink", path)
        self._rename(_NameChange(path.parent, removed=path))
        self._end()

    def listdir(self, path: Path) -> list[str]:
        self._directory(path)
        return sorted(name.name for name in self._names if name.parent == path and name != path)

    def mkdir(self, path: Path) -> None:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._directory(path.parent)
        self._begin("mkdir", path)
        self._rename(_NameChange(path.parent, added=path))
        self._end()

    def rmdir(self, path: Path) -> None:
        self._directory(path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._begin("rmdir", path)
        self._rename(_NameChange(path.parent, removed=path))
        self._end()

    def exists(self, path: Path) -> bool:
        return path in self._names

    def lock(self, handle: int) -> bool:
        file = self._handle(handle).file
        if any(locked is file for other, locked in self._locks.items() if other != handle):
            return False
        self._locks[handle] = file
        return True

    def lock_first_byte(self, handle: int) -> bool:
        self._handle(handle)
        return True

    def free_bytes(self, path: Path) -> int:
        return max(0, self.capacity - self._used())

    def used_bytes(self, path: Path) -> int:
        return self._used()

    def modified_ms(self, path: Path) -> int:
        return self._file(path).modified_ms

    # -- inside

    def _begin(self, name: str, path: Path) -> None:
        """Start an operation that changes something; raises the scheduled crash or fault, if any."""
        if self._crashed:
            raise SimulatedCrash
        self.operations.append(f"{name} {path}")
        number = len(self.operations)
        during = (number, CrashPoint.DURING)
        if self._crash_at == (number, CrashPoint.BEFORE) or (self._crash_at == during and name != "pwritev"):
            self._go_down()
        self._count(name, path)

    def _count(self, name: str, path: Path) -> None:
        if self._crashed:
            raise SimulatedCrash
        self._calls[name] = self._calls.get(name, 0) + 1
        error = self._faults.pop((name, self._calls[name]), None)
        if name != "pread" and error is None:
            error = self._operation_faults.pop(len(self.operations), None)
        if error is not None:
            raise OSError(error, os.strerror(error), str(path))

    def _end(self) -> None:
        if self._crash_at == (len(self.operations), CrashPoint.AFTER):
            self._go_down()

    def _go_down(self) -> None:
        self._crashed = True
        raise SimulatedCrash

    def _need(self, growth: int) -> None:
        if growth > 0 and self._used() + growth > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _used(self) -> int:
        return sum(len(file.cache) for file in self._names.values() if file is not None)

    def _change(self, file: _SimFile, change: _DataChange) -> None:
        change.number = self._next_number()
        change.apply(file.cache)
        file.changes.append(change)

    def _next_number(self) -> int:
        self._numbered += 1
        return self._numbered

    def _rename(self, change: _NameChange) -> None:
        change.number = self._next_number()
        change.apply(self._names)
        self._name_changes.append(change)

    def _handle(self, handle: int) -> _OpenFile:
        if self._crashed:
            raise SimulatedCrash
        opened = self._handles.get(handle)
        if opened is None:
            self._require_open(handle)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def _require_open(self, handle: int) -> None:
        """A closed file's number may be that of another one. The files from before a crash are gone."""
        assert handle in self._handles or handle <= self._crashed_handle, "the file is closed already"

    def _file(self, path: Path) -> _SimFile:
        if self._crashed:
            raise SimulatedCrash
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return file

    def _directory(self, path: Path) -> None:
        if self._crashed:
            raise SimulatedCrash
        if path not in self._names or self._names[path] is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _was_removed(change: _NameChange, removed: dict[Path, int]) -> bool:
    """Return True if a change belongs to a directory whose later removal is durable.

    A directory recreated at the same path is a different one and has none of the old names.
    """
    return any(change.number < removed.get(path, 0) for path in (change.directory, *change.directory.parents))


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _keep_until(file: _SimFile, lost: int, rng: Random) -> None:
    for change in file.changes:
        if change.number < lost:
            change.apply(file.durable)
        elif change.number == lost and change.data:
            _DataChange(change.offset, change.data[: rng.randrange(len(change.data))]).apply(file.durable)
    file.changes.clear()
    file.cache = bytearray(file.durable)


def _keep_sectors(file: _SimFile, rng: Random) -> None:
    """Keep a random part of a file's changes: sizes survive in order, as in a journal, and data sector by
    sector."""
    resizes = [at for at, change in enumerate(file.changes) if change.data is None]
    kept_count = rng.choice([0, *(at + 1 for at in resizes)])
    for change in file.changes[:kept_count]:
        change.apply(file.durable)
    until = next((at for at in resizes if at >= kept_count), len(file.changes))
    writes = [(change.offset, change.data) for change in file.changes[kept_count:until] if change.data]
    sectors = {
        s for offset, data in writes for s in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1)
    }
    for sector in sorted(sectors):
        begin, end = sector * SECTOR, sector * SECTOR + SECTOR
        touching = [(o, d) for o, d in writes if o < end and o + len(d) > begin]
        for offset, data in touching[: rng.randint(0, len(touching))]:
            low, high = max(offset, begin), min(offset + len(data), end)
            _DataChange(low, data[low - offset : high - offset]).apply(file.durable)
    file.changes.clear()
    file.cache = bytearray(file.durable)
