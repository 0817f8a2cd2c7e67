"""Hosts that keep a simulated node's log across crashes, in memory or as the disk store on a SimDisk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

from dledger.core.values import UNKNOWN_UID, HardState
from dledger.infra.files.disk import Buffer, CrashKind
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.format.layout import (
    INDEX_RECORD_SIZE,
    IndexRecord,
    NodePaths,
    file_name,
    index_file_size,
    start_of,
    unpack_record,
)
from dledger.store.format.properties import is_intact, parse_properties
from dledger.store.identity import Identity, first_uid, init_directory, joined
from dledger.testing.checks.mirror import BatchLog
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.virtual.sim_disk import CrashPoint, SimDisk
from dledger.testing.virtual.violation import Violation

DIRECTORY = Path("/node")
UNBOUNDED = 1 << 40
RESERVE_FILES = 4  # in data files


class StoreHost(Protocol):
    """The machine below one node's store."""

    disk: Any  # a stopped node's disk can be exchanged

    def open(self) -> LogStore:
        """Open and recover the store, as a starting process does."""

    def crash(self, kind: CrashKind, rng: Random) -> None:
        """Crash the process or the machine; the open store is invalid afterwards."""

    def replace_disk(self, incarnation: int, uid: int | None = None) -> HardState:
        """Replace the disk of a stopped node that is to rejoin, as member `uid`. Returns its hard state.
        None: the members have not changed."""

    def replace_machine(self, incarnation: int) -> HardState:
        """Replace a stopped node by a new one with the same node id. Returns its hard state."""

    def fill(self, files_left: int) -> None:
        """Fill the disk so that only this number of data files fits in addition to the reserve."""

    def make_room(self) -> None:
        """Free the space again."""

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        """Crash inside one of the next disk operations. Returns False if unsupported."""

    def fail_within(self, operation: str, calls: int) -> bool:
        """Fail one of the next calls of a disk operation with EIO. Returns False if unsupported."""

    def repair(self) -> None:
        """Make the disk work again and cancel scheduled failures."""

    def flip(self, batch: Batch, rng: Random, *, is_down: bool) -> Callable[[], bool] | None:
        """Invert a bit of a durable batch or of its index records.

        Returns a function that returns True while the bit is wrong, or None if there is no suitable bit.
        `is_down`: the machine's next action is a start.
        """


class MemoryHost:
    """The fast host: models durability without files."""

    def __init__(self, identity: Identity, incarnation: int = 0) -> None:
        self._identity = identity
        self._reserve = RESERVE_FILES * identity.data_file_size
        self.disk = self._new_store()
        self.disk.save_hard_state(HardState(incarnation=incarnation, uid=first_uid(identity)))

    def _new_store(self) -> MemoryLogStore:
        return MemoryLogStore(self._identity, disk_reserve_bytes=self._reserve)

    def open(self) -> LogStore:
        return self.disk

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self.disk = self.disk.crash(kind, rng)

    def replace_disk(self, incarnation: int, uid: int | None = None) -> HardState:
        if uid is not None:
            self._identity = joined(self._identity)
        self.disk = self._new_store()
        self.disk.save_hard_state(HardState(0, None, incarnation, rejoining=True, uid=uid or 0))
        return self.disk.hard_state

    def replace_machine(self, incarnation: int) -> HardState:
        self._identity = joined(self._identity)
        self.disk = self._new_store()
        self.disk.save_hard_state(HardState(incarnation=incarnation, uid=UNKNOWN_UID))
        return self.disk.hard_state

    def fill(self, files_left: int) -> None:
        store = self.disk
        used = store.capacity - store.free_bytes()
        store.capacity = used + self._reserve + files_left * store.data_file_size

    def make_room(self) -> None:
        self.disk.capacity = UNBOUNDED

    def crash_within(self, operations: int, point: CrashPoint) -> bool:
        return False

    def fail_within(self, operation: str, calls: int) -> bool:
        return False

    def repair(self) -> None: ...

    def flip(self, batch: Batch, rng: Random, *, is_down: bool) -> Callable[[], bool] | None:
        store = self.disk
        if not store.begin_index <= batch.first_index <= store.end_index:
            return None
        store.corrupt(batch.first_index)
        return lambda: self.disk.is_corrupt(batch.first_index)


class DiskHost:
    """The real file layout and recovery, on a disk in memory."""

    def __init__(self, identity: Identity, incarnation: int = 0) -> None:
        self._identity = identity
        self._reserve = RESERVE_FILES * identity.data_file_size
        self.disk = OrderedDisk(DIRECTORY, identity.data_file_size)
        init_directory(DIRECTORY, identity, disk=self.disk, incarnation=incarnation)

    def open(self) -> LogStore:
        return DiskLogStore.open(DIRECTORY, disk=self.disk, disk_reserve_bytes=self._reserve)

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self.disk.crash(kind, rng, reorder=rng.random() < 0.5)

    def replace_disk(self, incarnation: int, uid: int | None = None) -> HardState:
        if uid is not None:
            self._identity = joined(self._identity)
        self.disk = OrderedDisk(DIRECTORY, self._identity.data_file_size)
        init_directory(
            DIRECTORY,
            self._identity,
            disk=self.disk,
            incarnation=incarnation,
            rejoining=True,
            uid=uid or 0,
        )
        return HardState(0, None, incarnation, rejoining=True, uid=uid or 0)

    def replace_machine(self, incarnation: int) -> HardState:
        self._identity = joined(self._identity)
        self.disk = OrderedDisk(DIRECTORY, self._identity.data_file_size)
        init_directory(DIRECTORY, self._identity, disk=self.disk, incarnation=incarnation)
        return HardState(incarnation=incarnation, uid=UNKNOWN_UID)

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
                # A power failure may also lose the index records, or has lost them. Then nothing proves that
                # the batch existed.
                return None
        if rng.random() < 0.75:
            pos = batch.pos + rng.randrange(batch.size)
            path, offset = paths.data / file_name(pos - pos % size), pos % size
        else:
            path, offset = index_path, record % index_size + rng.randrange(INDEX_RECORD_SIZE)
        is_there = disk.flip_durable(path, offset, 1 << rng.randrange(8))
        return None if is_there is None else lambda: self.disk is disk and is_there()


def batch_ends(store: LogStore, written: BatchLog, *, is_damaged: bool = False) -> list[tuple[int, int, int]]:
    """Return (last index, term, chain_crc) of every batch in a store. Unreadable batches that are in
    `written` count as present. `is_damaged`: verify the chain of every header."""
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


# A SimDisk that checks the order in which a store makes its files durable.
#
# A crash test detects a wrong order only if the crash falls between the two operations and tears the right
# sectors. This disk checks the order at each operation, so that every run detects it, even without a crash.


class OrderedDisk(SimDisk):
    """Raises Violation if a crash after an operation would break an assumption of recovery:

    - an index record implies that its entry was durable (rule 10: otherwise a torn write looks like
      damage);
    - a checkpoint implies that log and index are durable up to its end, a session table that the log is;
    - a name that replaces another one has its complete content (rule 2 for the term and vote);
    - no durable index record, checkpoint or base refers to removed bytes.
    """

    def __init__(self, root: Path, data_file_size: int, *, capacity: int = 1 << 40) -> None:
        super().__init__(capacity=capacity)
        self._paths = NodePaths(root)
        self._data_size = data_file_size
        self._index_size = index_file_size(data_file_size)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        path = self._handle(handle).path
        start = start_of(path.name)
        if path.parent == self._paths.index_files and start is not None:
            for record in _records(b"".join(bytes(buffer) for buffer in buffers), start + offset):
                if not self._is_stored(self._paths.data, record.pos, record.pos + record.size):
                    raise Violation(
                        "write order",
                        f"the index record of entry {record.index} is written before the entry is durable",
                    )
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        if not self.is_content_durable(old):
            raise Violation("write order", f"{new} is replaced by a file that is not durable yet")
        if new == self._paths.checkpoint:
            self._check_checkpoint(old)
        elif new == self._paths.sessions:
            self._check_sessions(old)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._check_removal(path, 0)
        super().unlink(path)

    def truncate(self, handle: int, size: int) -> None:
        opened = self._handle(handle)
        if size < len(opened.file.cache):
            self._check_removal(opened.path, size)
        super().truncate(handle, size)

    # -- inside

    def _check_checkpoint(self, path: Path) -> None:
        end = _numbers(self.content(path))
        if end["endIndex"] < end["beginIndex"]:
            return
        first, last = end["beginIndex"] * INDEX_RECORD_SIZE, (end["endIndex"] + 1) * INDEX_RECORD_SIZE
        if not self._is_stored(self._paths.data, end["basePos"], end["endPos"]):
            raise Violation(
                "write order",
                f"the checkpoint at {end['endIndex']} is written before its entries are durable",
            )
        if not self._is_stored(self._paths.index_files, first, last):
            raise Violation(
                "write order", f"the checkpoint at {end['endIndex']} is written before its index is durable"
            )

    def _check_sessions(self, path: Path) -> None:
        (index,) = struct.unpack_from(">q", self.content(path), 4)
        end = _numbers(self.durable_content(self._paths.checkpoint)).get("endIndex", -1)
        if index > end:
            raise Violation(
                "write order",
                f"the session table is for entry {index}, but the checkpoint is for entry {end}",
            )

    def _check_removal(self, path: Path, kept: int) -> None:
        """Check the removal of a log file's bytes from offset `kept` on."""
        start = start_of(path.name)
        if start is None or path.parent not in (self._paths.data, self._paths.index_files):
            return
        is_data = path.parent == self._paths.data
        end = start + (self._data_size if is_data else self._index_size)
        base, checkpoint = (
            _numbers(self.durable_content(p)) for p in (self._paths.base, self._paths.checkpoint)
        )
        if base.get("resetting"):
            return
        begin = max(base.get("baseIndex", -1), checkpoint.get("beginIndex", 0) - 1)
        begin_pos = max(base.get("basePos", 0), checkpoint.get("basePos", 0))
        if end <= (begin_pos if is_data else (begin + 1) * INDEX_RECORD_SIZE):
            return
        cut = start + kept
        covered = checkpoint.get("endPos" if is_data else "endIndex", -1)
        if covered > begin and cut < (covered if is_data else (covered + 1) * INDEX_RECORD_SIZE):
            raise Violation(
                "write order", f"{path} is cut at {cut}, within the range that the checkpoint covers"
            )
        if is_data:
            for record in self._durable_records():
                if record.index > begin and cut < record.pos + record.size:
                    raise Violation(
                        "write order",
                        f"{path} is cut within entry {record.index}, which has a durable index record",
                    )

    def _durable_records(self) -> Iterator[IndexRecord]:
        """Yield the durable index records that match their entries: others may have flipped bits."""
        for path in self.files():
            start = start_of(path.name)
            if path.parent != self._paths.index_files or start is None:
                continue
            for record in _records(self.durable_content(path), start):
                offset = record.pos % self._data_size
                data = self.durable_content(self._paths.data / file_name(record.pos - offset))
                if data[offset + 4 : offset + 24] == struct.pack(
                    ">iqq", record.size, record.index, record.term
                ):
                    yield record

    def _is_stored(self, directory: Path, begin: int, end: int) -> bool:
        """Return True if these positions of the data or the index are durable."""
        size = self._data_size if directory == self._paths.data else self._index_size
        while begin < end:
            start = begin - begin % size
            until = min(end, start + size)
            if not self.is_durable(directory / file_name(start), begin - start, until - begin):
                return False
            begin = until
        return True


def _numbers(content: bytes) -> dict[str, int]:
    """Parse the numeric values of a state file. Returns none if it is missing or damaged."""
    if not is_intact(content):
        return {}
    return {k: int(v) for k, v in parse_properties(content).items() if v.lstrip("-").isdecimal()}


def _records(data: bytes, pos: int) -> Iterator[IndexRecord]:
    """Yield the index records in `data`, which starts at position `pos` of the index."""
    skip = -pos % INDEX_RECORD_SIZE
    for at in range(skip, len(data) - INDEX_RECORD_SIZE + 1, INDEX_RECORD_SIZE):
        record = unpack_record(data, at)
        if record.is_plausible((pos + at) // INDEX_RECORD_SIZE):
            yield record
