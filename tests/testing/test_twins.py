"""What a part of a node and its twin in the simulator both have to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from threading import Condition
from typing import Protocol

import pytest

from dledger.core.values import EMPTY_TAIL, FlushMode
from dledger.errors import Code, DLedgerError, StorageError
from dledger.metrics import NodeMetrics
from dledger.node.disk.allocator import Allocator
from dledger.node.disk.disk_worker import CheckpointJob, DiskWorker
from dledger.store.api import LogStore
from dledger.store.identity import Identity
from dledger.testing import QUIET, Simulation, Violation
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.process import SimAllocator

WAIT_S = 5.0


class DiskQueue(Protocol):
    @property
    def checkpoint_waits(self) -> bool: ...

    @property
    def has_put_off(self) -> bool: ...

    def submit_checkpoint(self, job: CheckpointJob) -> None: ...
    def call(self, work: Callable[[], object]) -> Future[object]: ...


#: A disk thread, its store, and what lets it do all that is queued.
World = tuple[DiskQueue, LogStore, Callable[[], None]]


def of_a_node() -> World:
    store = MemoryLogStore(Identity("c", "g", "n0", data_file_size=4096))

    def fail(error: Exception) -> None:
        raise AssertionError(error)

    worker = DiskWorker(
        store, FlushMode.SYNC_FLUSH, deliver=lambda _: None, on_fatal=fail, metrics=NodeMetrics()
    )

    def drive() -> None:
        worker.start()
        assert worker.stop(WAIT_S)

    return worker, store, drive


def of_the_simulator() -> World:
    simulation = Simulation(QUIET)
    simulation.start()
    simulation.run_for(100)
    process = simulation.process("n0")
    return process.disk, process.store, lambda: simulation.run_for(100)


both = pytest.mark.parametrize("make", [of_a_node, of_the_simulator])


def _refuse(code: Code) -> None:
    raise StorageError("says the test", code=code)


@both
@pytest.mark.parametrize("code", [Code.DISK_FULL, Code.DATA_DAMAGED])
def test_calls_are_done_in_order_and_a_harmless_failure_is_the_askers(
    make: Callable[[], World], code: Code
) -> None:
    disk, _, drive = make()
    done: list[str] = []
    disk.call(lambda: done.append("first"))
    failed = disk.call(lambda: _refuse(code))
    last = disk.call(lambda: done.append("last"))
    assert not done, "never where it is asked"
    drive()
    error = failed.exception(0)
    assert isinstance(error, StorageError) and error.code is code
    assert last.done() and done == ["first", "last"]


@both
@pytest.mark.parametrize("is_full", [False, True])
def test_checkpoint_waits_until_it_is_begun_and_is_put_off_by_a_full_disk(
    make: Callable[[], World], is_full: bool
) -> None:
    disk, store, drive = make()
    if is_full:
        store.save_checkpoint = lambda *_: _refuse(Code.DISK_FULL)  # type: ignore[method-assign]
    disk.call(lambda: None)
    disk.submit_checkpoint(CheckpointJob(-1, None))
    assert disk.checkpoint_waits
    drive()
    assert not disk.checkpoint_waits
    assert disk.has_put_off is is_full


class Looks:
    """Implements PreparableStore: notes each look of an allocator."""

    data_file_size = 4096
    likely_bytes = 1 << 20
    tail = EMPTY_TAIL

    def __init__(self) -> None:
        self.count = 0
        self.has_room = True
        self.error: StorageError | None = None

    def prepare(self, ahead_bytes: int) -> bool:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.has_room

    def free_bytes(self) -> int:
        return 0


#: An allocator that has begun, its store, what lets time pass until something is so, and what was fatal.
Allocating = tuple[Allocator, Looks, Callable[[Callable[[], bool]], None], list[DLedgerError]]


def allocator_of_a_node() -> Allocating:
    store, changed, fatals = Looks(), Condition(), list[DLedgerError]()

    def tell() -> None:
        with changed:
            changed.notify_all()

    def fail(error: DLedgerError) -> None:
        fatals.append(error)
        tell()

    def run_until(is_so: Callable[[], bool]) -> None:
        with changed:
            assert changed.wait_for(is_so, WAIT_S if allocator._thread.is_alive() else 0)

    allocator = Allocator(store, 4096, on_fatal=fail, on_prepared=tell)
    allocator.start()
    return allocator, store, run_until, fatals


def allocator_of_the_simulator() -> Allocating:
    simulation = Simulation(QUIET)
    simulation.start()
    process, store, fatals = simulation.process("n0"), Looks(), list[DLedgerError]()
    process.parts.allocator.stop(0)
    failing = process.store
    process.store = store  # type: ignore[assignment]
    allocator = SimAllocator(process, lambda: None, Random(1))
    process.store = failing

    def on_disk(action: Callable[[], None]) -> None:
        try:
            action()
        except StorageError as error:
            fatals.append(error)
            process.alive = False  # as a stop of the process has it

    process.on_disk = on_disk  # type: ignore[method-assign]
    allocator.start()
    return allocator, store, lambda is_so: void(simulation.run_until(is_so, limit_ms=1_000)), fatals


def void(_: object) -> None: ...


both_allocators = pytest.mark.parametrize("make", [allocator_of_a_node, allocator_of_the_simulator])


@both_allocators
def test_allocator_looks_at_once_when_asked_by_itself_and_never_after_a_stop(
    make: Callable[[], Allocating],
) -> None:
    allocator, store, run_until, fatals = make()
    run_until(lambda: store.count == 1)
    allocator.request_check()
    run_until(lambda: store.count >= 2)
    seen = store.count
    run_until(lambda: store.count > seen)
    store.has_room = False
    run_until(lambda: allocator.is_full)
    assert allocator.stop(WAIT_S) and not fatals
    seen = store.count
    allocator.request_check()
    with pytest.raises((AssertionError, Violation)):
        run_until(lambda: store.count > seen)


@both_allocators
def test_failing_disk_ends_the_looks_of_an_allocator(make: Callable[[], Allocating]) -> None:
    allocator, store, run_until, fatals = make()
    run_until(lambda: store.count == 1)
    store.error = StorageError("says the test", code=Code.DISK_ERROR)
    allocator.request_check()
    run_until(lambda: bool(fatals))
    assert fatals == [store.error]
    assert allocator.stop(WAIT_S)
