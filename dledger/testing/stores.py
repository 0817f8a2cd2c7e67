"""Where a simulated node keeps its log over crashes: the memory twin, or the store on disk over a SimDisk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from dledger.core.values import HardState
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.disk import CrashKind
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.format.layout import INDEX_RECORD_SIZE, NodePaths, file_name, index_file_size
from dledger.store.identity import Identity, init_directory
from dledger.store.memory_store import MemoryLogStore
from dledger.testing.checks.mirror import BatchLog
from dledger.testing.virtual.sim_disk import CrashPoint
from dledger.testing.virtual.write_order import OrderedDisk

DIRECTORY = Path("/node")
UNBOUNDED = 1 << 40
RESERVE_FILES = 4  # of the size of a data file


class StoreHost(Protocol):
    """The machine below one node's store."""

    def open(self) -> LogStore:
        """Open it, as a starting process does. Recovery happens here."""

    def crash(self, kind: CrashKind, rng: Random) -> None:
        """The process or the machine goes down: the open store is gone."""

    def replace_disk(self, incarnation: int) -> HardState:
        """All is lost, and the node, which is down, is to rejoin. Returns its hard state."""

    def fill(self, files_left: int) -> None:
        """The disk becomes so full that, beside the reserve, only so many data files find room."""

    def make_room(self) -> None:
        """There is space again."""

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        """Go down inside one of the next disk operations. False if this host cannot."""

    def fail_within(self, operation: str, calls: int) -> bool:
        """EIO from one of the next calls of an operation of the disk. False if this host cannot."""

    def repair(self) -> None:
        """The disk works again: what was to fail does not."""

    def flip(self, batch: Batch, rng: Random, *, is_down: bool) -> Callable[[], bool] | None:
        """Invert a bit of a durable batch, or of its index records. What is returned tells whether it still
        is wrong; None: it could not be done. `is_down`: the next that happens on this machine is a start."""


class MemoryHost:
    """The fast twin: it models what is durable, without files."""

    def __init__(self, identity: Identity, incarnation: int = 0) -> None:
        self._identity = identity
        self._reserve = RESERVE_FILES * identity.data_file_size
        self._store = self._new_store()
        self._store.save_hard_state(HardState(incarnation=incarnation))

    def _new_store(self) -> MemoryLogStore:
        return MemoryLogStore(self._identity, disk_reserve_bytes=self._reserve)

    def open(self) -> LogStore:
        return self._store

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self._store = self._store.crash(kind, rng)

    def replace_disk(self, incarnation: int) -> HardState:
        self._store = self._new_store()
        self._store.save_hard_state(HardState(0, None, incarnation, rejoining=True))
        return self._store.hard_state

    def fill(self, files_left: int) -> None:
        store = self._store
        used = store.capacity - store.free_bytes()
        store.capacity = used + self._reserve + files_left * store.data_file_size

    def make_room(self) -> None:
        self._store.capacity = UNBOUNDED

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        return False

    def fail_within(self, operation: str, calls: int) -> bool:
        return False

    def repair(self) -> None: ...

    def flip(self, batch: Batch, rng: Random, *, is_down: bool) -> Callable[[], bool] | None:
        store = self._store
        if not store.begin_index <= batch.first_index <= store.end_index:
            return None
        store.corrupt(batch.first_index)
        return lambda: self._store.is_corrupt(batch.first_index)


class DiskHost:
    """Real files' layout and recovery, on a disk in memory."""

    def __init__(self, identity: Identity, incarnation: int = 0) -> None:
        self._identity = identity
        self._reserve = RESERVE_FILES * identity.data_file_size
        self.disk = OrderedDisk(DIRECTORY, identity.data_file_size)
        init_directory(DIRECTORY, identity, disk=self.disk, incarnation=incarnation)

    def open(self) -> LogStore:
        return DiskLogStore.open(DIRECTORY, disk=self.disk, disk_reserve_bytes=self._reserve)

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self.disk.crash(kind, rng, reorder=rng.random() < 0.5)

    def replace_disk(self, incarnation: int) -> HardState:
        self.disk = OrderedDisk(DIRECTORY, self._identity.data_file_size)
        init_directory(DIRECTORY, self._identity, disk=self.disk, incarnation=incarnation, rejoining=True)
        return HardState(0, None, incarnation, rejoining=True)

    def fill(self, files_left: int) -> None:
        used = self.disk.capacity - self.disk.free_bytes(DIRECTORY)
        self.disk.capacity = used + self._reserve + files_left * self._identity.data_file_size

    def make_room(self) -> None:
        self.disk.capacity = UNBOUNDED

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        self.disk.schedule_crash(len(self.disk.operations) + operations, point)
        return True

    def fail_within(self, operation: str, calls: int) -> bool:
        self.disk.fail(operation, nth=calls)
        return True

    def repair(self) -> None:
        self.disk.repair()

    def flip(self, batch: Batch, rng: Random, *, is_down: bool) -> Callable[[], bool] | None:
        paths, size, disk = NodePaths(DIRECTORY), self._identity.data_file_size, self.disk
        index_size, record = index_file_size(size), batch.last_index * INDEX_RECORD_SIZE
        index_path = paths.index_files / file_name(record - record % index_size)
        for at in range(batch.first_index * INDEX_RECORD_SIZE, record + 1, INDEX_RECORD_SIZE):
            path, offset = paths.index_files / file_name(at - at % index_size), at % index_size
            if not disk.is_durable(path, offset, INDEX_RECORD_SIZE) or not any(
                disk.content(path)[offset : offset + INDEX_RECORD_SIZE]
            ):
                # With the power its index records may go, too, or went: nothing would tell that it was there.
                return None
        if rng.random() < 0.75:
            pos = batch.pos + rng.randrange(batch.size)
            path, offset = paths.data / file_name(pos - pos % size), pos % size
        else:
            path, offset = index_path, record % index_size + rng.randrange(INDEX_RECORD_SIZE)
        is_there = disk.flip_durable(path, offset, 1 << rng.randrange(8))
        return None if is_there is None else lambda: self.disk is disk and is_there()


def batch_ends(store: LogStore, written: BatchLog, *, is_damaged: bool = False) -> list[tuple[int, int, int]]:
    """(last index, term, chain_crc) of every batch in a store. Damage is no end: what is `written` there and
    cannot be read counts as there. `is_damaged`: no header is believed without its chain."""
    ends = []
    index = max(store.begin_index, 0)
    while index <= store.end_index:
        try:
            header = store.entry(index)
            if is_damaged:
                store.tail_at(index)
        except EntryDamaged:
            batch = written.holding(index)
            assert batch is not None, f"entry {index} was never written"
            ends.append((batch.last_index, batch.term, batch.chain_crc))
            index = batch.last_index + 1
            continue
        if header.ends_batch:
            ends.append((index, header.term, header.chain_crc))
        index += 1
    return ends
