"""A node's disk that injects the ordered faults and records changes that are not durable yet."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.injection.orders import Counters, InjectedEffect, OrderFile
from chaos.injection.unsynced import UnsyncedRecord
from dledger.infra.files.disk import OsDisk

_STUCK_POLL_S = 0.005

Buffer = bytes | bytearray | memoryview


class FaultInjectingDisk(OsDisk):
    """Accesses files below `root` and applies the faults that are ordered in `folder`. Reads never fail."""

    def __init__(self, root: Path, folder: Path) -> None:
        super().__init__()
        self._root = root
        self._orders = OrderFile(folder)
        self._counters = Counters(folder)
        self._record = UnsyncedRecord(root, folder)

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        if create and not path.exists():
            self._refuse_growth(1)
            self._record.created(path)
        return super().open(path, create=create, write=write)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self._orders.now().write_error:
            self._counters.add(InjectedEffect.WRITE_ERROR)
            raise OSError(errno.EIO, "injected write error")
        size = sum(map(len, buffers))
        self._refuse_growth(offset + size - os.fstat(handle).st_size)
        self._record.data(handle, offset, size)
        return super().pwritev(handle, buffers, offset)

    def fdatasync(self, handle: int) -> None:
        number = self._record.number
        self._hold_up()
        super().fdatasync(handle)
        self._record.synced(handle, number)

    def sync_directory(self, path: Path) -> None:
        number = self._record.number
        self._hold_up()
        super().sync_directory(path)
        self._record.directory_synced(path, number)

    def truncate(self, handle: int, size: int) -> None:
        before = os.fstat(handle).st_size
        if before != size:
            self._record.data(handle, min(before, size), abs(size - before), kind="size")
        super().truncate(handle, size)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        before = os.fstat(handle).st_size
        self._refuse_growth(offset + size - before)
        if offset + size > before:
            self._record.data(handle, before, offset + size - before, kind="size")
        super().allocate(handle, offset, size)

    def rename(self, old: Path, new: Path) -> None:
        self._record.renaming(old, new)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._record.unlinking(path)
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._record.created(path, is_directory=True)
        super().mkdir(path)

    def free_bytes(self, path: Path) -> int:
        quota = self._orders.now().quota_bytes
        return super().free_bytes(path) if quota < 0 else max(0, quota - used_bytes(self._root))

    def used_bytes(self, path: Path) -> int:
        quota = self._orders.now().quota_bytes
        return super().used_bytes(path) if quota < 0 else min(quota, used_bytes(self._root))

    def _refuse_growth(self, by: int) -> None:
        if by <= 0 or self._orders.now().quota_bytes < 0 or by <= self.free_bytes(self._root):
            return
        self._counters.add(InjectedEffect.NO_SPACE)
        raise OSError(errno.ENOSPC, "injected error: no space left")

    def _hold_up(self) -> None:
        """Apply the ordered faults before a sync."""
        orders = self._orders.now()
        if orders.sync_error:
            self._counters.add(InjectedEffect.SYNC_ERROR)
            raise OSError(errno.EIO, "injected sync error")
        if orders.slow_ms:
            self._counters.add(InjectedEffect.SLOW_SYNC)
            time.sleep(orders.slow_ms / 1000)
        if self._orders.now().stuck:
            self._counters.add(InjectedEffect.STUCK_SYNC)
            while self._orders.now().stuck:
                time.sleep(_STUCK_POLL_S)


def used_bytes(root: Path) -> int:
    """Return the total size of all files: preallocated space counts."""
    used = 0
    for path in root.rglob("*"):
        try:
            used += path.stat().st_size
        except FileNotFoundError:
            continue  # removed concurrently
    return used
