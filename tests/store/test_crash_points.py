"""Every crash point of a workload: what was acknowledged survives, and nothing else stops the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from dledger.core.values import HardState
from dledger.errors import Code, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.identity import init_directory, load_identity
from dledger.testing.stores import OrderedDisk
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import IDENTITY, ROOT, SIZE, join, make_batches, read_all


@dataclass
class Witness:
    """What the workload was promised, and what it had asked for."""

    durable: list[Batch] = field(default_factory=list)  # covered by a sync that returned
    written: list[Batch] = field(default_factory=list)
    histories: list[list[Batch]] = field(default_factory=list)  # every log that may be found
    hard_state: HardState = field(default_factory=HardState)
    hard_state_asked: HardState = field(default_factory=HardState)
    committed: int = -1
    initialised: bool = False

    def append(self, store: DiskLogStore, batches: list[Batch]) -> None:
        self.written = self.written + batches
        self.histories.append(self.written)
        store.append(batches)

    def sync(self, store: DiskLogStore) -> None:
        store.sync()
        self.durable = self.written

    def truncate(self, store: DiskLogStore, keep: int) -> None:
        self.durable = self.durable[:keep]
        cut = self.written[:keep]
        store.truncate_after(cut[-1].last_index)
        self.durable = self.written = cut
        self.histories = [cut]

    def save(self, store: DiskLogStore, term: int, vote: str | None) -> None:
        self.hard_state_asked = HardState(term, vote, store.hard_state.incarnation + 1)
        store.save_hard_state(self.hard_state_asked)
        self.hard_state = self.hard_state_asked


def workload(disk: SimDisk, witness: Witness) -> None:
    init_directory(ROOT, IDENTITY, disk=disk)
    witness.initialised = True
    store = DiskLogStore.open(ROOT, disk=disk)
    witness.save(store, 1, "n1")
    first = make_batches(6, seed=1)
    witness.append(store, first[:1])
    witness.sync(store)
    witness.append(store, first[1:4])
    witness.sync(store)
    witness.append(store, first[4:5])
    witness.append(store, first[5:])
    witness.sync(store)
    store.save_checkpoint(first[3].last_index, (first[2].last_index, b"sessions"))
    witness.committed = first[3].last_index
    witness.save(store, 9, None)
    more = make_batches(5, seed=2, tail=store.tail)
    witness.append(store, more)
    witness.truncate(store, 8)
    witness.truncate(store, 5)
    other = make_batches(6, seed=3, tail=store.tail, term=20)
    witness.append(store, other[:2])
    witness.append(store, other[2:])
    witness.sync(store)
    witness.truncate(store, 7)
    witness.append(store, make_batches(3, seed=4, tail=store.tail, term=30))
    store.close()
    witness.durable = witness.written


def operations() -> list[str]:
    disk = OrderedDisk(ROOT, SIZE)
    workload(disk, Witness())
    return disk.operations


OPERATIONS = operations()


def crashed_at(number: int, point: CrashPoint) -> tuple[SimDisk, Witness]:
    disk, witness = OrderedDisk(ROOT, SIZE), Witness()
    disk.schedule_crash(number, point)
    with pytest.raises(SimulatedCrash):
        workload(disk, witness)
    return disk, witness


def check(disk: SimDisk, witness: Witness, where: str) -> None:
    try:
        load_identity(ROOT, disk=disk)
    except StorageError as error:
        assert error.code is Code.NOT_INITIALIZED and not witness.initialised, where
        init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    found = read_all(store)
    assert found.startswith(join(witness.durable)), where
    histories = [*witness.histories, witness.written]
    assert any(join(history).startswith(found) for history in histories), where
    ends = {-1} | {batch.last_index for history in histories for batch in history}
    assert store.end_index in ends and store.durable_index == store.end_index, where
    assert store.hard_state in (witness.hard_state, witness.hard_state_asked), where
    assert store.committed_checkpoint <= store.durable_index, where
    # And it works: what is appended now is there after another crash.
    more = make_batches(3, seed=5, tail=store.tail, term=40)
    store.append(more)
    store.sync()
    disk.crash(CrashKind.POWER, Random(number_of(where)))
    again = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(again) == found + join(more), where


def number_of(where: str) -> int:
    return int(where.split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("point", list(CrashPoint))
def test_rule_1_no_process_crash_loses_what_was_acknowledged(point: CrashPoint) -> None:
    for number, operation in enumerate(OPERATIONS, 1):
        if point is CrashPoint.DURING and not operation.startswith("pwritev"):
            continue
        disk, witness = crashed_at(number, point)
        disk.crash(CrashKind.PROCESS, Random(number))
        check(disk, witness, f"{number} {point.value} {operation}")


@pytest.mark.slow
@pytest.mark.parametrize("reorder", [False, True], ids=["torn", "reordered"])
@pytest.mark.parametrize("point", [CrashPoint.BEFORE, CrashPoint.AFTER])
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.long)], ids=str)
def test_rule_1_no_power_loss_loses_what_was_acknowledged(
    seeds: range, point: CrashPoint, reorder: bool
) -> None:
    for number, operation in enumerate(OPERATIONS, 1):
        disk, witness = crashed_at(number, point)
        for seed in seeds:
            twin = disk.copy()
            twin.crash(CrashKind.POWER, Random(seed), reorder=reorder)
            check(twin, witness, f"{number} {point.value} {operation} (seed {seed})")


def test_a_crash_during_recovery_changes_nothing() -> None:
    """Recovery is itself cut at each of its operations, on disks that need one."""
    for number in range(40, len(OPERATIONS), 5):
        disk, witness = crashed_at(number, CrashPoint.AFTER)
        disk.crash(CrashKind.POWER, Random(number), reorder=bool(number % 2))
        step = 1
        while True:
            twin = disk.copy()
            twin.schedule_crash(step, CrashPoint.AFTER)
            try:
                load_identity(ROOT, disk=twin)
                DiskLogStore.open(ROOT, disk=twin)
            except SimulatedCrash:
                twin.crash(CrashKind.POWER, Random(step), reorder=bool(step % 2))
                check(twin, witness, f"{number} recovery cut at {twin.operations[-1]}")
                step += 1
            else:
                break


def test_a_crash_during_init_leaves_a_directory_that_init_takes_again() -> None:
    operation = 1
    while True:
        disk = OrderedDisk(ROOT, SIZE)
        disk.schedule_crash(operation, CrashPoint.AFTER)
        try:
            init_directory(ROOT, IDENTITY, disk=disk)
        except SimulatedCrash:
            disk.crash(CrashKind.POWER, Random(operation))
        else:
            break
        if not disk.exists(ROOT / "identity"):
            init_directory(ROOT, IDENTITY, disk=disk)
        assert DiskLogStore.open(ROOT, disk=disk).end_index == -1
        operation += 1
    assert operation > 10
