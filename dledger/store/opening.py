"""What stands around a store's recovery: the lock, the state files, a reset that a crash had cut short."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from dledger.core.values import Base
from dledger.errors import Code, StorageError
from dledger.store.damage import read_damages, write_damages
from dledger.store.disk import Disk, read_around, write_all
from dledger.store.files import FileSequence
from dledger.store.format.layout import NodePaths
from dledger.store.recovery import Recovered, choose_base, recover
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


class Opening:
    """Reading the state files and recovering the log, with the lock taken."""

    def __init__(self, disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence) -> None:
        self._disk = disk
        self._paths = paths
        self._data = data
        self._index = index
        self.hard_state = read_hard_state(disk, paths.hard_state)

    def run(self) -> tuple[Checkpoint | None, Recovered]:
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
        # A lost end has put another checkpoint in its place.
        return read_checkpoint(disk, paths.checkpoint), recovered

    def _lost_end(self, base: Base, term: int, index: int, reason: str) -> None:
        """Before what is left of the end is cut: the node has acknowledged, and voted by, what it forgets."""
        state = self.hard_state
        floor = max((state.floor_term, state.floor_index), (term, index))
        state = replace(state, rejoining=True, floor_term=floor[0], floor_index=floor[1])
        write_hard_state(self._disk, self._paths.hard_state, state)
        self.hard_state = state
        write_checkpoint(self._disk, self._paths.checkpoint, Checkpoint(tail_of(base), base.index, base, ()))


def finish_reset(disk: Disk, paths: NodePaths, data: FileSequence, index: FileSequence, base: Base) -> None:
    """Once it is durable that the log is to begin after `base`: remove all there is. May be done again."""
    index.remove_all()
    data.remove_all()
    for path in (paths.checkpoint, paths.sessions, paths.damage):
        if disk.exists(path):
            disk.unlink(path)
    disk.sync_directory(paths.root)
    write_checkpoint(disk, paths.checkpoint, Checkpoint(tail_of(base), base.index, base, ()))
    write_base(disk, paths.base, StoredBase(base))


def leave_marker(disk: Disk, paths: NodePaths) -> None:
    """Tell the next start not to believe the page cache. The disk fails: this may not work, either."""
    with suppress(OSError):
        disk.close(disk.open(paths.marker, create=True))


def take_lock(disk: Disk, paths: NodePaths) -> int:
    handle = disk.open(paths.lock, create=True)
    if disk.lock(handle):
        with suppress(OSError):  # only a courtesy to whoever finds it locked; the disk may be full
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
    """After a failed fsync the page cache may hold what the disk does not: read from the disk again."""
    if disk.exists(paths.marker):
        for files in sequences:
            files.drop_cache()
