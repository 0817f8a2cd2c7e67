"""What differs between operating systems for durable files: syncs, reserved space, and the page cache.

Linux is tested. macOS was only reasoned about: its `fsync` leaves data in the cache of the drive, and it has
neither `fdatasync` nor `posix_fallocate` nor `posix_fadvise`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

#: macOS: also empty the cache of the drive. None on other systems.
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
#: Errors of a read from a lost sector or a block that the file system finds corrupt.
#: Errors of a full disk, or of a user's full quota.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
UNREADABLE: Final = tuple(
    getattr(errno, name)
    for name in ("EIO", "EBADMSG", "EILSEQ", "ENODATA", "EUCLEAN")  # the last one is Linux's
    if hasattr(errno, name)
)
_ZEROS: Final = bytes(1 << 20)


def sync_data(handle: int) -> None:
    """Make the contents and the size of a file durable, but perhaps not its times."""
    if FULL_SYNC is not None:
        full_sync(handle)
    else:
        os.fdatasync(handle)


def sync_all(handle: int) -> None:
    """Make a file or the names in a directory durable."""
    if FULL_SYNC is not None:
        full_sync(handle)
    else:
        os.fsync(handle)


def full_sync(handle: int) -> None:
    """Sync a file and empty the cache of its drive. Without such a cache, `fsync` must do."""
    assert FULL_SYNC is not None
    try:
        fcntl.fcntl(handle, FULL_SYNC)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        os.fsync(handle)


def allocate(handle: int, offset: int, size: int) -> None:
    """Reserve space, so that no later write to the range lacks it. Unwritten parts read as zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, offset, size)
    else:
        allocate_by_writing(handle, offset, size)


def allocate_by_writing(handle: int, offset: int, size: int) -> None:
    """Write zeros behind the end of the file. Its contents, which may have holes, stay as they are."""
    at, end = max(offset, os.fstat(handle).st_size), offset + size
    while at < end:
        at += os.pwrite(handle, _ZEROS[: end - at], at)


def cached_read(handle: int, size: int, offset: int) -> bytes | None:
    """Read `size` bytes without a wait for the disk. Returns None if the page cache may lack some of them."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    data = bytearray(size)
    try:
        if os.preadv(handle, [data], offset, os.RWF_NOWAIT) == size:
            return bytes(data)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, *UNREADABLE):
            raise
    return None


def drop_cache(handle: int, offset: int, size: int) -> None:
    """Drop clean pages of a range (size 0: to the end). Only advice; a system without it does nothing."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)
