"""Purge, reset, repair and prepared files, cut or failed at each disk operation (rules 1, 9, 10)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from dledger.core.values import NO_BASE, Base, HardState
from dledger.errors import Code, StorageError
from dledger.store.api import Frames
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.format.layout import file_name
from dledger.store.identity import init_directory
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.conftest import SIXTHS
from tests.store.helpers import IDENTITY, ROOT, SIZE, join, make_batches, read_all

RESET = Base(700, 50, 60 * SIZE, 4711)


@dataclass
class Promise:
    """What may be found after a failure: one of these logs, and at least what was durable of it."""

    begins: list[Base] = field(default_factory=lambda: [NO_BASE])
    written: list[Batch] = field(default_factory=list)
    durable: list[Batch] = field(default_factory=list)
    before_reset: list[Batch] | None = None  # a reset was begun: also this log may be found
    term: int = 0
    damaged: Batch | None = None

    def append(self, store: DiskLogStore, count: int, seed: int) -> None:
        batches = make_batches(count, seed=seed, tail=store.tail, term=max(1, store.tail.term))
        self.written = self.written + batches
        store.append(batches)
        store.sync()
        self.durable = self.written

    def purge(self, store: DiskLogStore, base: Base) -> None:
        self.begins.append(base)
        store.purge_to(base)
        self.begins = [base]

    def reset(self, store: DiskLogStore, base: Base) -> None:
        self.before_reset, self.written, self.durable = self.durable, [], []
        self.begins.append(base)
        store.reset_to(base)
        self.before_reset = None
        self.begins = [base]

    def save(self, store: DiskLogStore, term: int) -> None:
        store.save_hard_state(HardState(term, "n1", 1))
        self.term = term

    def repair(self, disk: SimDisk, store: DiskLogStore, batch: Batch) -> None:
        self.damaged = batch
        start = batch.pos - batch.pos % SIZE
        disk.flip(ROOT / "data" / file_name(start), batch.pos - start + 50)
        damage = store.note_damage(batch.first_index)
        assert damage is not None and damage.first_index == batch.first_index
        store.repair(Frames(batch.first_index, batch.last_index, bytes(batch.data)))
        self.damaged = None


def workload(disk: SimDisk, promise: Promise) -> None:
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk, disk_reserve_bytes=0)
    promise.save(store, 3)
    store.prepare(3 * SIZE)
    promise.append(store, 12, 1)
    borders = store.borders()
    promise.purge(store, borders[1])
    promise.append(store, 8, 2)
    promise.repair(disk, store, promise.durable[9])
    promise.durable = promise.durable[:18]
    store.truncate_after(promise.durable[17].last_index)
    promise.written = promise.durable
    promise.append(store, 4, 3)
    promise.purge(store, store.borders()[2])
    promise.save(store, 60)
    promise.reset(store, RESET)
    store.prepare(2 * SIZE)
    promise.append(store, 7, 4)
    promise.purge(store, store.borders()[0])
    store.close()


def operations() -> tuple[list[str], int]:
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    first = len(disk.operations) + 1
    disk = SimDisk()
    workload(disk, Promise())
    return disk.operations, first


OPERATIONS, FIRST = operations()


def check(disk: SimDisk, promise: Promise, where: str) -> None:
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.hard_state.term >= promise.term and not store.hard_state.rejoining, where
    assert store.base in promise.begins, where
    if promise.damaged is not None:
        batch = promise.damaged
        for damage in store.damages:
            assert damage.first_index == batch.first_index, where
            store.repair(Frames(batch.first_index, batch.last_index, bytes(batch.data)))
        if store.begin_index <= batch.first_index and store.note_damage(batch.first_index):
            store.repair(Frames(batch.first_index, batch.last_index, bytes(batch.data)))
    assert store.damages == (), where
    found = read_all(store)
    if promise.before_reset is not None and store.base != RESET:
        whole, least = promise.before_reset, promise.before_reset
    else:
        whole, least = promise.written, promise.durable
    begin = store.begin_index
    assert join([b for b in whole if b.first_index >= begin]).startswith(found), where
    assert found.startswith(join([b for b in least if b.first_index >= begin])), where
    names = [int(p.name) for p in disk.files() if p.parent.name == "data"]
    assert names == list(range(store.base.pos, store.base.pos + len(names) * SIZE, SIZE)), where
    # And it goes on.
    more = make_batches(3, seed=5, tail=store.tail, term=90)
    store.prepare(SIZE)
    store.append(more)
    store.sync()
    disk.crash(CrashKind.POWER, Random(1))
    again = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(again) == found + join(more), where


def interrupted(arrange: Callable[[SimDisk], None]) -> tuple[SimDisk, Promise, BaseException | None]:
    disk, promise = SimDisk(), Promise()
    arrange(disk)
    try:
        workload(disk, promise)
    except (SimulatedCrash, StorageError) as error:
        return disk, promise, error
    return disk, promise, None


@pytest.mark.slow
@pytest.mark.parametrize("point", [CrashPoint.BEFORE, CrashPoint.AFTER])
@pytest.mark.parametrize("first", SIXTHS)
def test_a_crash_leads_to_the_old_begin_or_to_the_new_one(first: int, point: CrashPoint) -> None:
    for number in range(FIRST + first, len(OPERATIONS) + 1, len(SIXTHS)):
        disk, promise, error = interrupted(lambda disk, n=number: disk.schedule_crash(n, point))  # type: ignore[misc]
        assert isinstance(error, SimulatedCrash)
        where = f"{number} {point.value} {OPERATIONS[number - 1]}"
        for seed, reorder in ((0, False), (1, False), (2, True), (3, True)):
            twin = disk.copy()
            twin.crash(CrashKind.POWER, Random(seed), reorder=reorder)
            check(twin, replace(promise), f"{where} (seed {seed})")
        disk.crash(CrashKind.PROCESS, Random(0))
        check(disk, promise, where)


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_rule_9_no_failing_operation_loses_what_was_acknowledged(error: int) -> None:
    passed = []
    for number in range(FIRST, len(OPERATIONS) + 1):
        operation = OPERATIONS[number - 1]
        where = f"{number} {operation} {errno.errorcode[error]}"
        disk, promise, raised = interrupted(lambda disk, n=number: disk.fail_operation(n, error))  # type: ignore[misc]
        if raised is None:
            passed.append(operation)
        else:
            assert isinstance(raised, StorageError), where
            assert raised.code in (Code.DISK_ERROR, Code.DISK_FULL, Code.FSYNC_FAILED), where
        for kind in (CrashKind.PROCESS, CrashKind.POWER):
            twin = disk.copy()
            twin.crash(kind, Random(number))
            check(twin, replace(promise), f"{where} {kind.value}")
    if error == errno.ENOSPC:
        assert any("currterm" in operation for operation in passed), "the reserve was of no use"


def test_rule_9_no_failing_read_loses_what_was_acknowledged() -> None:
    """Not of lost bytes, which are damage (see test_unreadable.py), but because reading itself fails."""
    nth = 1
    while True:
        disk, promise, raised = interrupted(lambda disk, n=nth: disk.fail("pread", errno.EBADF, nth=n))  # type: ignore[misc]
        if raised is None:
            break
        disk.crash(CrashKind.PROCESS, Random(0))
        check(disk, promise, f"pread {nth}")
        nth += 1
    assert nth > 30


def test_a_crash_while_a_purge_or_reset_is_finished_changes_nothing() -> None:
    for number in range(FIRST + 40, len(OPERATIONS), 9):
        disk, promise, _ = interrupted(lambda disk, n=number: disk.schedule_crash(n, CrashPoint.AFTER))  # type: ignore[misc]
        disk.crash(CrashKind.POWER, Random(number))
        step = 1
        while True:
            twin = disk.copy()
            twin.schedule_crash(step, CrashPoint.AFTER)
            try:
                DiskLogStore.open(ROOT, disk=twin)
            except SimulatedCrash:
                twin.crash(CrashKind.POWER, Random(step))
                check(twin, replace(promise), f"{number} opening cut at {step}")
                step += 1
            else:
                break
