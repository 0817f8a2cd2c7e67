"""Opens a store: locks it, reads the state files, recovers the log, and completes an interrupted reset."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from dledger.core.values import Base
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Disk, read_around, write_all
from dledger.store.damage import read_damages, write_damages
from dledger.store.files import FileSequence
from dledger.store.format.layout import NodePaths
from dledger.store.recovery import RecoveredLog, choose_base, recover
from dledger.store.state_files import (
    Checkpoint,
    StoredBase,
    read_base,
    read_checkpoint,
    read_hard_state,
    tail_of,
    write_base,
    write_checkpoint,
    write_hard_state,
)


class StoreOpener:
    """Reads the state files and recovers the log while holding the lock."""

    def __init__(self, disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence) -> None:
        self._disk = disk
        self._paths = paths
        self._data = data
        self._index = index
        self.hard_state = read_hard_state(disk, paths.hard_state)

    def run(self) -> tuple[Checkpoint | None, RecoveredLog]:
        disk, paths = self._disk, self._paths
        self._data.load()
        self._index.load()
        _distrust_cache(disk, paths, self._data, self._index)
        stored = read_base(disk, paths.base)
        repairs = []
        if stored is not None and stored.resetting:
            finish_reset(disk, paths, self._data, self._index, stored.base)
            repairs.append(f"finished a reset to index {stored.base.index}")
        checkpoint = read_checkpoint(disk, paths.checkpoint)
        base = choose_base(self._data, checkpoint, stored)
        if base.index >= 0 and (stored is None or stored.base != base):
            write_base(disk, paths.base, StoredBase(base))
        known = read_damages(disk, paths.damage)
        recovered = recover(
            self._data, self._index, checkpoint, base=base, damages=known, lost_end=self._lost_end
        )
        if recovered.damages != known:
            write_damages(disk, paths.damage, recovered.damages)
        recovered.repairs[:0] = repairs
        self._data.close_removed()
        self._index.close_removed()
        # Losing the end of the log has replaced the checkpoint.
        return read_checkpoint(disk, paths.checkpoint), recovered

    def _lost_end(self, base: Base, term: int, index: int, reason: str) -> None:
        """Record the loss of the log's end before the rest is cut, because the node may have acknowledged,
        and voted with, the entries that it is about to remove."""
        state = self.hard_state
        floor = max((state.floor_term, state.floor_index), (term, index))
        state = replace(state, rejoining=True, floor_term=floor[0], floor_index=floor[1])
        write_hard_state(self._disk, self._paths.hard_state, state)
        self.hard_state = state
        write_checkpoint(self._disk, self._paths.checkpoint, Checkpoint(tail_of(base), base.index, base, ()))


def finish_reset(disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence, base: Base) -> None:
    """Remove all files after the record of the reset to `base` is durable. Idempotent."""
    index.remove_all()
    data.remove_all()
    for path in (paths.checkpoint, paths.sessions, paths.damage):
        if disk.exists(path):
            disk.unlink(path)
    disk.sync_directory(paths.root)
    write_checkpoint(disk, paths.checkpoint, Checkpoint(tail_of(base), base.index, base, ()))
    write_base(disk, paths.base, StoredBase(base))


def leave_marker(disk: Disk, paths: NodePaths) -> None:
    """Create a marker that makes the next start bypass the page cache. Errors are ignored, because the disk
    is failing anyway."""
    with suppress(OSError):
        disk.close(disk.open(paths.marker, create=True))


def acquire_lock(disk: Disk, paths: NodePaths) -> int:
    handle = disk.open(paths.lock, create=True)
    if disk.lock(handle):
        with suppress(OSError):  # only informs the next process that finds the lock; the disk may be full
            disk.truncate(handle, 0)
            write_all(disk, handle, [f"{os.getpid()}\n".encode()], 0)
        return handle
    owner = read_around(disk, handle, 32, 0).strip()
    disk.close(handle)
    raise StorageError(
        f"{paths.root} is in use by process {owner.decode('ascii', 'replace') or '(unknown)'}",
        code=Code.DIRECTORY_LOCKED,
    )


def _distrust_cache(disk: Disk, paths: NodePaths, *sequences: FileSequence) -> None:
    """Drop the page cache after a failed fsync, because it may contain data that is not on the disk."""
    if disk.exists(paths.marker):
        for files in sequences:
            files.drop_cache()
