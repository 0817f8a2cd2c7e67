"""Filters of clients do not keep others from reading, nor one client's those of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Event, get_ident
from typing import Any

import pytest

from broker_adapter.server.reader_threads import ReaderThreads, reader_threads
from dledger.infra.files.cached_reads import NotCached, is_only_cached
from tests.broker_adapter.begun_work import BegunWork, turn
from tests.node.local import until


@pytest.fixture
def threads() -> ReaderThreads:
    return reader_threads()


async def test_reads_go_on_while_filters_take_their_time(threads: ReaderThreads) -> None:
    gate = Event()
    filters = [asyncio.create_task(threads.run_filter(gate.wait, f"host{n}")) for n in range(5)]
    try:
        async with asyncio.timeout(60):
            assert await threads.run(lambda: 7) == 7
    finally:
        gate.set()
    assert await asyncio.gather(*filters) == [True] * 5
    threads.stop()


async def test_a_small_read_moves_to_a_thread_if_it_would_wait(threads: ReaderThreads) -> None:
    def work() -> tuple[bool, bool]:
        return is_only_cached(), get_ident() == loop_thread

    def waiting_work() -> tuple[bool, bool]:
        if is_only_cached():
            raise NotCached
        return work()

    loop_thread = get_ident()
    assert await threads.read(work) == (True, True)
    assert await threads.read(waiting_work) == (False, False)
    threads.stop()


def _noting(done: list[str], name: str) -> Callable[[], None]:
    return lambda: done.append(name)


async def test_addresses_take_turns_with_their_filters(threads: ReaderThreads) -> None:
    gate, done = Event(), list[str]()
    first = asyncio.create_task(threads.run_filter(gate.wait, "a"))
    await asyncio.sleep(0)
    rest = [
        asyncio.create_task(threads.run_filter(_noting(done, name), name[0]))
        for name in ("a1", "a2", "a3", "b1", "b2", "c1")
    ]
    await asyncio.sleep(0)
    rest[1].cancel()  # one that waits gives up
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *rest, return_exceptions=True)
    assert done == ["a1", "b1", "c1", "a3", "b2"]
    threads.stop()


async def test_who_reads_much_waits_behind_himself(threads: ReaderThreads) -> None:
    gate, turns = Event(), threads._readers
    assert turns.executor is not None
    turns.executor = began = BegunWork(turns.executor)

    async def read(work: Callable[[], object], address: str) -> None:
        turn.set(address)
        await threads.run(work, address)

    readers = [asyncio.create_task(read(gate.wait, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    rest = [asyncio.create_task(read(list, "a")) for _ in range(100)]
    rest.append(asyncio.create_task(read(list, "b")))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*readers, *rest)
    assert len(began.order) == 103
    assert began.order.index("b") <= 4, "two under way, and two of the other for two threads"
    threads.stop()


async def test_a_caller_that_gives_up_leaves_the_turn_to_the_next(threads: ReaderThreads) -> None:
    gate, done = Event(), list[str]()
    running = asyncio.create_task(threads.run_filter(gate.wait, "a"))
    await asyncio.sleep(0)
    after = asyncio.create_task(threads.run_filter(_noting(done, "b"), "b"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not done, "the thread is busy still"
    gate.set()
    await after
    assert done == ["b"]
    threads.stop()


class ByHand(Executor):
    """A thread whose work ends when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(Future())
        return self.jobs[-1]


@pytest.mark.parametrize("turns_of_loop", range(7))
async def test_a_turn_is_not_lost_with_a_caller_that_gives_up_as_it_comes(turns_of_loop: int) -> None:
    """Before, while and after it gets its turn: a turn that is lost is lost for good."""
    thread = ByHand()
    threads = ReaderThreads(filters=thread)
    first, second, third = (asyncio.create_task(threads.run_filter(lambda: 1, name)) for name in "abc")
    await until(lambda: len(thread.jobs) == 1)
    thread.jobs[0].set_result(1)
    for _ in range(turns_of_loop):
        await asyncio.sleep(0)
    second.cancel()
    for ended in range(1, 3):
        await until(lambda ended=ended: len(thread.jobs) > ended or third.done(), 20)
        if third.done():
            break
        assert len(thread.jobs) == ended + 1, "one after the other"
        thread.jobs[ended].set_result(1)
    assert await asyncio.gather(first, third) == [1, 1]
    with pytest.raises(asyncio.CancelledError):
        await second
    after = asyncio.create_task(threads.run_filter(lambda: 1, "d"))
    await until(lambda: not thread.jobs[-1].done(), 20)
    thread.jobs[-1].set_result(1)
    assert await after == 1


async def test_a_caller_that_gives_up_while_it_waits_gives_no_turn_to_another() -> None:
    thread = ByHand()
    threads = ReaderThreads(filters=thread)
    first, second, third = (asyncio.create_task(threads.run_filter(lambda: 1, name)) for name in "abc")
    await until(lambda: len(thread.jobs) == 1)
    second.cancel()
    await until(second.done)
    for _ in range(7):
        await asyncio.sleep(0)
    assert len(thread.jobs) == 1, "the thread is busy still"
    thread.jobs[0].set_result(1)
    await until(lambda: len(thread.jobs) == 2)
    thread.jobs[1].set_result(1)
    assert await asyncio.gather(first, third) == [1, 1]


async def test_a_filter_that_fails_tells_its_caller_and_no_other(threads: ReaderThreads) -> None:
    def fail() -> None:
        raise ValueError("no such property")

    with pytest.raises(ValueError, match="no such property"):
        await threads.run_filter(fail, "a")
    assert await threads.run_filter(lambda: 1, "a") == 1
    threads.stop()


def _refuse(*_: Any) -> Any:
    raise RuntimeError("can't start new thread")


async def test_a_job_that_cannot_begin_keeps_no_turn() -> None:
    """Two of them stopped all reads of a node for ever."""
    executor = ThreadPoolExecutor(1)
    threads = ReaderThreads(filters=executor)
    submit = executor.submit
    for _ in range(3):
        executor.submit = _refuse  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(threads.run_filter(lambda: 7, "a"), 60)
        executor.submit = submit  # type: ignore[method-assign]
    assert await asyncio.wait_for(threads.run_filter(lambda: 7, "a"), 60) == 7
    threads.stop()


async def test_nobody_waits_for_a_turn_of_threads_that_have_stopped(threads: ReaderThreads) -> None:
    gate = Event()
    waiting = [asyncio.create_task(threads.run_filter(gate.wait, "a")) for _ in range(4)]
    await asyncio.sleep(0)
    threads.stop()
    gate.set()
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert ends[0] is True
    assert all(isinstance(end, RuntimeError) for end in ends[1:])
