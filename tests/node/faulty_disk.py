"""The real disk with what goes wrong on it: a quota, syncs that get stuck."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from dledger.store.disk import OsDisk


class FaultyDisk(OsDisk):
    """`capacity`: bytes that may be allocated below `root`. `stick`: fdatasync waits until `release`."""

    def __init__(self, root: Path, capacity: int | None = None) -> None:
        super().__init__()
        self.root = root
        self.capacity = capacity
        self._going = threading.Event()
        self._going.set()

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
