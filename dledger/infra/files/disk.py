"""The only access to the file system: the `Disk` interface, and its real implementation.

All file operations of the store use `Disk`, so that tests can substitute a disk that fails, tears writes and
loses unsynced data in a crash. Errors are OSError; the store converts them to StorageError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar, Protocol

from dledger.infra.files import platform
from dledger.infra.files.cached_reads import NotCached, is_only_cached, take_bytes
from dledger.infra.files.descriptors import PRIVATE_DIRECTORY, descriptors
from dledger.infra.files.platform import UNREADABLE

Buffer = bytes | bytearray | memoryview

IOV_MAX = 1024  # the kernel's limit of buffers per pwritev
PAGE = 4096  # page size: one bad sector makes this many bytes unreadable
#: Substitute for lost bytes. It matches no checksum, header or index record, and differs from a hole.
LOST = b"\xdb"


class CrashKind(Enum):
    """The kind of crash of a node, which determines the surviving file contents."""

    PROCESS = "process"  # all written bytes survive, in the page cache
    POWER = "power"  # unsynced writes are lost, torn, or kept


class Disk(Protocol):
    """Primitive file operations. Handles are integers. Reads may run on any thread."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """Open a file and return its handle. Raises FileNotFoundError if it does not exist, unless `create`
        is set.

        With `create`, a symbolic link is an error: another user may have placed it there.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file. An error in `UNREADABLE` means that the bytes
        are lost."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most IOV_MAX buffers in sequence. Returns the bytes written, which may be fewer."""

    def fdatasync(self, handle: int) -> None:
        """Make the contents and size of the file durable, but not its name."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in this directory (created, renamed, removed) durable."""

    def truncate(self, handle: int, size: int) -> None: ...

    def allocate(self, handle: int, offset: int, size: int) -> None:
        """Reserve space. Unwritten parts read as zeros."""

    def size(self, handle: int) -> int: ...

    def is_at(self, handle: int, path: Path) -> bool:
        """Return True if the path still refers to this file, that is, if neither the file nor a parent
        directory was replaced."""

    def data_ranges(self, handle: int) -> list[tuple[int, int]]:
        """Return ranges (start, end) outside of which all bytes are zeros. Call it before any read, because
        reads add ranges."""

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        """Drop the clean pages of a range, so that the next read returns the content of the disk. Size 0
        means to the end.

        This is advisory. Dirty pages, and pages that are only partly in the range, remain in the cache.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Rename `old` to `new` atomically, replacing an existing file."""

    def unlink(self, path: Path) -> None: ...

    def listdir(self, path: Path) -> list[str]: ...

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. Raises OSError if it is not empty."""

    def exists(self, path: Path) -> bool: ...

    def lock(self, handle: int) -> bool:
        """Take the exclusive advisory lock of an open file until it is closed. Returns False if another
        process holds it."""

    def lock_first_byte(self, handle: int) -> bool:
        """Take the exclusive POSIX lock of a file's first byte, as Java programs do. It lasts until the
        process closes any handle of that file. Returns False if another process holds it."""

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that an unprivileged process can still write to the file system of `path`."""

    def used_bytes(self, path: Path) -> int:
        """Return the used bytes of the file system of `path`."""

    def modified_ms(self, path: Path) -> int:
        """Return the time of the last write to a file, in ms since the Unix epoch by the machine's wall
        clock."""


class OsDisk:
    """The files of the operating system."""

    #: (device, inode) per handle, filled by `is_at`. Shared by all instances, because handles belong to the
    #: process.
    _identities: ClassVar[dict[int, tuple[int, int]]] = {}

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:  # never follow a link that another user may have placed there
            flags |= os.O_CREAT | os.O_NOFOLLOW
        return descriptors.open_file(path, flags)

    def close(self, handle: int) -> None:
        self._identities.pop(handle, None)
        os.close(handle)
        descriptors.refill()

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if is_only_cached():
            return _cached(handle, size, offset)
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        # A signal or the kernel's 2 GiB limit can cut a read short before the end of the file.
        parts = [data]
        missing = size - len(data)
        while missing:
            more = os.pread(handle, missing, offset + size - missing)
            if not more:
                break
            parts.append(more)
            missing -= len(more)
        return b"".join(parts)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(handle, buffers, offset)

    def fdatasync(self, handle: int) -> None:
        platform.sync_data(handle)

    def sync_directory(self, path: Path) -> None:
        handle = descriptors.open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            platform.sync_all(handle)
        finally:
            os.close(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        platform.allocate(handle, offset, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def is_at(self, handle: int, path: Path) -> bool:
        try:
            current = os.stat(path)  # noqa: PTH116  # a fifth of what path.stat() takes, with every sync
        except (FileNotFoundError, NotADirectoryError):
            return False
        identity = self._identities.get(handle)
        if identity is None:
            opened = os.fstat(handle)
            identity = self._identities[handle] = (opened.st_dev, opened.st_ino)
        return (current.st_dev, current.st_ino) == identity

    def data_ranges(self, handle: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        end = 0
        try:
            while True:
                begin = os.lseek(handle, end, os.SEEK_DATA)
                end = os.lseek(handle, begin, os.SEEK_HOLE)
                ranges.append((begin, end))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP):  # the file system does not support it
                return [(0, self.size(handle))]
            if error.errno != errno.ENXIO:  # no data from there to the end
                raise
        return ranges

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        platform.drop_cache(handle, offset, size)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def listdir(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def mkdir(self, path: Path) -> None:
        path.mkdir(PRIVATE_DIRECTORY)

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_first_byte(self, handle: int) -> bool:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def free_bytes(self, path: Path) -> int:
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    def used_bytes(self, path: Path) -> int:
        info = os.statvfs(path)
        return (info.f_blocks - info.f_bfree) * info.f_frsize

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000


def readable_by_others(directory: Path) -> int:
    """Return the mode of a directory that every user of the machine may list or enter; otherwise 0."""
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError:
        return 0
    return mode if mode & stat.S_IRWXO else 0


def write_all(disk: Disk, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers at `offset`, regardless of the limits of one call. Returns the bytes written."""
    if len(buffers) == 1 and disk.pwritev(handle, buffers, offset) == len(buffers[0]):
        return len(buffers[0])  # the common case; after a partial write, everything is written again
    written = 0
    queue = [memoryview(b) for b in buffers if len(b)]
    first = 0
    while first < len(queue):
        done = disk.pwritev(handle, queue[first : first + IOV_MAX], offset + written)
        if done <= 0:
            raise OSError(errno.EIO, "pwritev wrote 0 bytes")
        written += done
        while done:
            size = len(queue[first])
            if done < size:
                queue[first] = queue[first][done:]
                break
            done -= size
            first += 1
    return written


def read_around(
    disk: Disk, handle: int, size: int, offset: int, lost: Callable[[int], None] | None = None
) -> bytes:
    """Like `pread`, but replaces unreadable pages with bytes that never verify.

    An unreadable sector thus becomes ordinary damage (docs/guarantees.md rule 10), which verification detects
    and confines to the page. `lost` is called with the offset of each unreadable page.
    """
    try:
        return disk.pread(handle, size, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    parts = []
    end = min(offset + size, disk.size(handle))
    at = offset
    while at < end:
        length = min(PAGE - at % PAGE, end - at)
        try:
            parts.append(disk.pread(handle, length, at))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            parts.append(LOST * length)
            if lost is not None:
                lost(at - at % PAGE)
        at += length
    return b"".join(parts)


def read_file(disk: Disk, path: Path) -> bytes:
    """Return the content of a small file. Unreadable parts are replaced as in `read_around`. Raises
    FileNotFoundError if the file does not exist."""
    handle = disk.open(path, write=False)
    try:
        return read_around(disk, handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: after a crash it has either the old or the new content."""
    temporary = path.with_name(path.name + ".tmp")
    handle = disk.open(temporary, create=True)
    try:
        disk.truncate(handle, 0)
        write_all(disk, handle, [content], 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def sync_file(disk: Disk, path: Path) -> None:
    """Run fdatasync on a file by name. It covers writes through any handle."""
    handle = disk.open(path)
    try:
        disk.fdatasync(handle)
    finally:
        disk.close(handle)


def make_directories(disk: Disk, path: Path) -> None:
    """Create a directory and its parents if missing. Does not make their names durable."""
    if not disk.exists(path):
        make_directories(disk, path.parent)
        disk.mkdir(path)


def list_directory(disk: Disk, path: Path) -> list[str]:
    """Return the names in a directory, or an empty list if it does not exist."""
    try:
        return disk.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _cached(handle: int, size: int, offset: int) -> bytes:
    take_bytes(size)
    data = platform.cached_read(handle, size, offset)
    if data is None:
        raise NotCached
    return data
