"""The only door to the file system: what the store needs of a disk, and the real one.

Everything goes through `Disk`, so that tests can put a disk below the store that fails, tears and crashes.
Errors are OSError; the store turns them into StorageError.
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

from dledger.store.descriptors import PRIVATE_DIRECTORY, descriptors

Buffer = bytes | bytearray | memoryview

IOV_MAX = 1024  # the kernel takes no more buffers in one pwritev
#: What a read fails with when the medium has lost the bytes, or the file system finds them damaged.
UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EILSEQ, errno.ENODATA, errno.EUCLEAN)
PAGE = 4096  # what the page cache reads at least, so what one bad sector takes along
#: Stands for lost bytes: no checksum, header or index record of ours looks like it, nor does a hole.
LOST = b"\xdb"


class CrashKind(Enum):
    """How a node goes down, and so what of its files survives."""

    PROCESS = "process"  # all that was written survives, in the page cache
    POWER = "power"  # what was not synced is lost, torn, or kept


class Disk(Protocol):
    """Primitive operations on files. Handles are integers; reads may come from any thread."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """A handle of a file. FileNotFoundError unless it exists or `create` is given.

        A symbolic link is an error then: somebody else may have put it there.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. An error of `UNREADABLE`: they are lost."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most IOV_MAX buffers, one after the other. Returns the bytes written: may be fewer."""

    def fdatasync(self, handle: int) -> None:
        """Contents and size of the file are durable when this returns. Its name in a directory is not."""

    def sync_directory(self, path: Path) -> None:
        """Names in this directory (created, renamed, removed) are durable when this returns."""

    def truncate(self, handle: int, size: int) -> None: ...

    def allocate(self, handle: int, offset: int, size: int) -> None:
        """Reserve space: what was not written before reads as zeros."""

    def size(self, handle: int) -> int: ...

    def is_at(self, handle: int, path: Path) -> bool:
        """Whether the path still leads to this file: it, and the directories above, are still there."""

    def data_ranges(self, handle: int) -> list[tuple[int, int]]:
        """Ranges (begin, end) outside of which there are only zeros. Ask before reading: it adds some."""

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        """Forget clean pages of a range, so that the next read sees what the disk holds. Size 0: to the end.

        Advice, best effort. Pages that are only partly in the range stay, and so do dirty ones.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Atomically give `old` the name `new`, replacing what had it."""

    def unlink(self, path: Path) -> None: ...

    def listdir(self, path: Path) -> list[str]: ...

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. OSError if it is not empty."""

    def exists(self, path: Path) -> bool: ...

    def lock(self, handle: int) -> bool:
        """Take the exclusive advisory lock of an open file until it is closed. False: another has it."""

    def lock_first_byte(self, handle: int) -> bool:
        """Take the exclusive POSIX lock of a file's first byte, as programs in Java do, until the process
        closes any handle of that file. False: another process has it."""

    def free_bytes(self, path: Path) -> int:
        """Bytes that an unprivileged process can still write to the file system of `path`."""

    def used_bytes(self, path: Path) -> int:
        """Bytes of the file system of `path` that are in use."""


class OsDisk:
    """The operating system's files (Linux)."""

    #: (device, inode) of handles that were looked for. Handles are the process's, not this object's.
    _identities: ClassVar[dict[int, tuple[int, int]]] = {}

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:  # never through a link that somebody else has put there
            flags |= os.O_CREAT | os.O_NOFOLLOW
        return descriptors.open_file(path, flags)

    def close(self, handle: int) -> None:
        self._identities.pop(handle, None)
        os.close(handle)
        descriptors.refill()

    def pread(self, handle: int, size: int, offset: int) -> bytes:
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
        os.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        handle = descriptors.open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        os.posix_fallocate(handle, offset, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def is_at(self, handle: int, path: Path) -> bool:
        try:
            found = os.stat(path)  # noqa: PTH116  # a fifth of what path.stat() takes, with every sync
        except (FileNotFoundError, NotADirectoryError):
            return False
        identity = self._identities.get(handle)
        if identity is None:
            opened = os.fstat(handle)
            identity = self._identities[handle] = (opened.st_dev, opened.st_ino)
        return (found.st_dev, found.st_ino) == identity

    def data_ranges(self, handle: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        end = 0
        try:
            while True:
                begin = os.lseek(handle, end, os.SEEK_DATA)
                end = os.lseek(handle, begin, os.SEEK_HOLE)
                ranges.append((begin, end))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP):  # this file system cannot tell
                return [(0, self.size(handle))]
            if error.errno != errno.ENXIO:  # no data from there to the end
                raise
        return ranges

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)

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


def readable_by_others(directory: Path) -> int:
    """The mode of a directory that every user of the machine may list or enter; else 0."""
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError:
        return 0
    return mode if mode & stat.S_IRWXO else 0


def write_all(disk: Disk, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers at `offset`, whatever the limits of one call. Returns the bytes written."""
    if len(buffers) == 1 and disk.pwritev(handle, buffers, offset) == len(buffers[0]):
        return len(buffers[0])  # nearly always; what was written in part is written again
    written = 0
    queue = [memoryview(b) for b in buffers if len(b)]
    first = 0
    while first < len(queue):
        done = disk.pwritev(handle, queue[first : first + IOV_MAX], offset + written)
        if done <= 0:
            raise OSError(errno.EIO, "pwritev wrote nothing")
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
    """Like `pread`, but what the disk cannot read any more comes as bytes that are surely wrong.

    So an unreadable sector is damage like any other (docs/guarantees.md rule 10): whoever checks what was
    read finds it, as narrow as it is. `lost` is told where each page begins that is not to be had.
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
    """The content of a small file; what cannot be read is surely wrong. FileNotFoundError without one."""
    handle = disk.open(path, write=False)
    try:
        return read_around(disk, handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: after a crash it has the old content or the new."""
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
    """fdatasync of a file by name: it covers what was written through any handle."""
    handle = disk.open(path)
    try:
        disk.fdatasync(handle)
    finally:
        disk.close(handle)


def make_directories(disk: Disk, path: Path) -> None:
    """Make a directory and those above it, unless they are there. Their names are not durable by that."""
    if not disk.exists(path):
        make_directories(disk, path.parent)
        disk.mkdir(path)


def list_directory(disk: Disk, path: Path) -> list[str]:
    """The names in it; none if there is no such directory."""
    try:
        return disk.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
