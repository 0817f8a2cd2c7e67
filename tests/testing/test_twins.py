"""What a part of a node and its twin in the simulator both have to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import pytest

from dledger.core.values import FlushMode
from dledger.errors import Code, StorageError
from dledger.metrics import NodeMetrics
from dledger.node.disk.disk_jobs import CheckpointJob
from dledger.node.disk.disk_worker import DiskWorker
from dledger.store.api import LogStore
from dledger.store.identity import Identity
from dledger.store.memory_store import MemoryLogStore
from dledger.testing import QUIET, Simulation

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
