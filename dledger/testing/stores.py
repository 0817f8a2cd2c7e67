"""Where a simulated node keeps its log over crashes: the memory twin, or the store on disk over a SimDisk."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Protocol

from dledger.store.api import LogStore
from dledger.store.disk import CrashKind
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import Identity, init_directory
from dledger.store.memory_store import MemoryLogStore
from dledger.testing.sim_disk import CrashPoint, SimDisk

DIRECTORY = Path("/node")


class StoreHost(Protocol):
    """The machine below one node's store."""

    def open(self) -> LogStore:
        """Open it, as a starting process does. Recovery happens here."""

    def crash(self, kind: CrashKind, rng: Random) -> None:
        """The process or the machine goes down: the open store is gone."""

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        """Go down inside one of the next disk operations. False if this host cannot."""


class MemoryHost:
    """The fast twin: it models what is durable, without files."""

    def __init__(self, identity: Identity) -> None:
        self._store = MemoryLogStore(identity)

    def open(self) -> LogStore:
        return self._store

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self._store = self._store.crash(kind, rng)

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        return False


class DiskHost:
    """Real files' layout and recovery, on a disk in memory."""

    def __init__(self, identity: Identity) -> None:
        self.disk = SimDisk()
        init_directory(DIRECTORY, identity, disk=self.disk)

    def open(self) -> LogStore:
        return DiskLogStore.open(DIRECTORY, disk=self.disk)

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self.disk.crash(kind, rng, reorder=rng.random() < 0.5)

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        self.disk.schedule_crash(len(self.disk.operations) + operations, point)
        return True


def batch_ends(store: LogStore) -> list[tuple[int, int, int]]:
    """(last index, term, chain_crc) of every batch in a store."""
    ends = []
    for index in range(max(store.begin_index, 0), store.end_index + 1):
        header = store.entry(index)
        if header.ends_batch:
            ends.append((index, header.term, header.chain_crc))
    return ends
