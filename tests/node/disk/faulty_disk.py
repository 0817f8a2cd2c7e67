"""The real disk with what goes wrong on it: a quota, syncs that get stuck, pages that cannot be read."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from dledger.infra.files.disk import PAGE, Buffer, OsDisk


class FaultyDisk(OsDisk):
    """`capacity`: bytes that may be allocated below `root`. `stick`: fdatasync waits until `release`. `rot`:
    a page fails to be read until it is written as a whole."""

    def __init__(self, root: Path, capacity: int | None = None) -> None:
        super().__init__()
        self.root = root
        self.capacity = capacity
        self._going = threading.Event()
        self._going.set()
        self._rotten: set[tuple[int, int]] = set()  # (inode, offset of the page)

    def rot(self, path: Path, offset: int) -> None:
        self._rotten.add((path.stat().st_ino, offset - offset % PAGE))

    def _pages(self, handle: int, size: int, offset: int) -> list[tuple[int, int]]:
        if not self._rotten:
            return []
        inode = os.fstat(handle).st_ino
        return [
            (bad, at)
            for bad, at in self._rotten
            if bad == inode and at < offset + size and offset < at + PAGE
        ]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if self._pages(handle, size, offset):
            raise OSError(errno.EIO, "the medium is bad")
        return super().pread(handle, size, offset)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(map(len, buffers))
        for page in self._pages(handle, size, offset):
            if offset > page[1] or offset + size < min(page[1] + PAGE, self.size(handle)):
                raise OSError(errno.EIO, "the rest of the page cannot be read")
            self._rotten.discard(page)
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        if new.exists():  # its inode may be given to another file
            gone = new.stat().st_ino
            self._rotten = {(inode, at) for inode, at in self._rotten if inode != gone}
        super().rename(old, new)

    def stick(self) -> None:
        self._going.clear()

    def release(self) -> None:
        self._going.set()

    def fdatasync(self, handle: int) -> None:
        self._going.wait()
        super().fdatasync(handle)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        grows = offset + size - os.fstat(handle).st_size
        if self.capacity is not None and grows > self.free_bytes(self.root):
            raise OSError(errno.ENOSPC, "the quota is used up")
        super().allocate(handle, offset, size)

    def free_bytes(self, path: Path) -> int:
        if self.capacity is None:
            return super().free_bytes(path)
        used = 0
        for found in self.root.rglob("*"):
            try:
                used += found.stat().st_size
            except FileNotFoundError:
                continue
        return max(0, self.capacity - used)
