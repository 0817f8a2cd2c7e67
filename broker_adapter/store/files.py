"""What the derived files need of a file system, and the real one.

All of them go through `Files`, so that tests can put a disk below them that fails, tears and crashes. Errors
are OSError.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dledger.platform import PRIVATE_DIRECTORY, descriptors

Buffer = bytes | bytearray | memoryview


class Files(Protocol):
    """Primitive operations. Handles are integers; those of one file may be used from several threads."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """A handle of a file. FileNotFoundError unless it exists or `create` is given.

        A symbolic link is an error then: somebody else may have put it there.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers, one after the other. Returns the bytes written: may be fewer."""

    def fdatasync(self, handle: int) -> None:
        """Contents and size of the file are durable when this returns. Its name in a directory is not."""

    def sync_directory(self, path: Path) -> None:
        """Names in this directory (created, renamed, removed) are durable when this returns."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file, or lengthen it by zeros that take no space."""

    def size(self, handle: int) -> int: ...

    def rename(self, old: Path, new: Path) -> None:
        """Atomically give `old` the name `new`, replacing what had it."""

    def unlink(self, path: Path) -> None: ...

    def listdir(self, path: Path) -> list[str]: ...

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. OSError if it is not empty."""

    def exists(self, path: Path) -> bool: ...


class OsFiles:
    """The operating system's files (Linux)."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:  # never through a link that somebody else has put there
            flags |= os.O_CREAT | os.O_NOFOLLOW
        return descriptors.open_file(path, flags)

    def close(self, handle: int) -> None:
        os.close(handle)
        descriptors.refill()

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        while len(data) < size:  # a signal can cut a read short before the end of the file
            more = os.pread(handle, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

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

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

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


def write_all(files: Files, handle: int, data: Buffer, offset: int) -> None:
    """Write all of `data`, however often it takes."""
    left = memoryview(data)
    while left:
        done = files.pwritev(handle, [left], offset)
        if done <= 0:
            raise OSError(errno.EIO, "pwritev wrote nothing")
        left = left[done:]
        offset += done


def sync_file(files: Files, path: Path) -> None:
    """fdatasync of a file by name: it covers what was written through any handle."""
    handle = files.open(path)
    try:
        files.fdatasync(handle)
    finally:
        files.close(handle)


def read_file(files: Files, path: Path) -> bytes:
    """All of a file. FileNotFoundError without one."""
    handle = files.open(path, write=False)
    try:
        return files.pread(handle, files.size(handle), 0)
    finally:
        files.close(handle)


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Replace a file atomically and durably: after a crash it has the old content or the new."""
    temporary = path.with_name(path.name + ".tmp")
    handle = files.open(temporary, create=True)
    try:
        files.truncate(handle, 0)
        write_all(files, handle, content, 0)
        files.fdatasync(handle)
    finally:
        files.close(handle)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def make_directories(files: Files, path: Path) -> None:
    """Make a directory and those above it, unless they are there."""
    if not files.exists(path):
        make_directories(files, path.parent)
        files.mkdir(path)


def list_directory(files: Files, path: Path) -> list[str]:
    """The names in it; none if there is no such directory."""
    try:
        return files.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
