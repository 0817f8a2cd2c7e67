"""Group commit: who is answered when, and what becomes of a disk that fails or hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.log.classic.node.appends import ClassicAppends
from broker_adapter.log.classic.node.group_commit import AsyncRule, ClassicOutcome, GroupCommit, async_rule
from dledger import AppendOutcome, Indeterminate
from dledger.metrics import NodeMetrics
from tests.node.local import until


class SlowLog:
    """A log whose flushes end when the test lets them."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.flushes = 0
        self.may_go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.failure: Exception | None = None

    def flush(self) -> int:
        end = self.end_offset
        self.begun.release()
        self.may_go.acquire()
        if self.failure is not None:
            raise self.failure
        self.flushes += 1
        self.flushed_offset = end
        return end


class World:
    def __init__(self) -> None:
        self.log = SlowLog()
        self.flushed: list[int] = []
        self.failure: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()

    def append(
        self, commit: GroupCommit, end: int, timeout_ms: int = 60_000
    ) -> asyncio.Future[AppendOutcome]:
        begin, self.log.end_offset = self.log.end_offset, end
        return commit.appended(begin, end, ClassicOutcome(begin, 1, 1, begin), timeout_ms)

    async def started(self) -> None:
        await asyncio.to_thread(self.log.begun.acquire)


@asynccontextmanager
async def commits(
    rule: AsyncRule | None = None,
    on_flushed: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[tuple[World, GroupCommit]]:
    world, thread = World(), ThreadPoolExecutor(1)

    def flushed() -> None:
        world.flushed.append(world.log.flushed_offset)
        on_flushed()

    commit = GroupCommit(
        world.log,
        thread,
        NodeMetrics(),
        rule=rule,
        on_flushed=flushed,
        on_failure=world.failure.set_result,
        now=now,
    )
    commit.start()
    try:
        yield world, commit
    finally:
        world.log.may_go.release(100)
        await commit.stop()
        thread.shutdown()


def put_status(outcome: AppendOutcome) -> Status | None:
    assert isinstance(outcome, ClassicOutcome)
    return outcome.put_status


async def test_a_group_is_what_was_appended_while_the_one_before_was_synced() -> None:
    async with commits() as (world, commit):
        first = world.append(commit, 100)
        await world.started()
        rest = [world.append(commit, end) for end in (200, 300, 400)]
        assert commit.pending_bytes == 400
        world.log.may_go.release()
        assert put_status(await first) is None
        assert not any(future.done() for future in rest)
        await world.started()
        world.log.may_go.release()
        assert [put_status(one) for one in await asyncio.gather(*rest)] == [None] * 3
        assert world.log.flushes == 2 and world.flushed == [100, 400]
        assert commit.pending_bytes == 0


async def test_a_disk_that_hangs_ends_waiting_and_the_message_may_be_stored_later() -> None:
    is_flushed = asyncio.Event()
    async with commits(on_flushed=is_flushed.set) as (world, commit):
        late, patient = world.append(commit, 10, 1), world.append(commit, 20)
        assert put_status(await late) is Status.FLUSH_DISK_TIMEOUT
        assert not patient.done()
        world.log.may_go.release(2)
        assert put_status(await patient) is None
        await is_flushed.wait()
        assert world.log.flushed_offset >= 10


async def test_a_slave_has_the_rest_of_the_time_and_bytes_are_pending_until_it_answers() -> None:
    copies: dict[int, asyncio.Future[Status | None]] = {}
    rests_ms: dict[int, int] = {}

    def acknowledged(offset: int, rest_ms: int) -> asyncio.Future[Status | None]:
        rests_ms[offset] = rest_ms
        copies[offset] = asyncio.get_running_loop().create_future()
        return copies[offset]

    is_flushed = asyncio.Event()
    async with commits(on_flushed=is_flushed.set) as (world, commit):
        commit.acknowledged = acknowledged
        late, short, patient = (
            world.append(commit, 10 * at, timeout_ms)
            for at, timeout_ms in ((1, 1), (2, 600_000), (4, 6_000_000))
        )
        assert put_status(await late) is Status.FLUSH_DISK_TIMEOUT
        assert commit.pending_bytes == 30
        world.log.may_go.release(3)
        outcomes = await asyncio.gather(short, patient)
        await until(lambda: len(copies) == 2)
        assert list(copies) == [20, 40], "the first append has its put status"
        assert 300_000 < rests_ms[20] <= 600_000 < 3_000_000 < rests_ms[40] <= 6_000_000
        found = [one.copied for one in outcomes if isinstance(one, ClassicOutcome)]
        assert found == [copies[20], copies[40]] and commit.pending_bytes == 30
        copies[40].set_result(Status.FLUSH_SLAVE_TIMEOUT)
        await until(lambda: commit.pending_bytes == 10)
        assert not copies[20].done()
        copies[20].set_result(None)
        await until(lambda: commit.pending_bytes == 0)


async def test_the_put_status_of_an_append_is_that_of_its_disk_or_else_of_its_slave() -> None:
    appends, copied = ClassicAppends.__new__(ClassicAppends), asyncio.get_running_loop().create_future()
    late = appends.put_status(ClassicOutcome(0, 1, 1, 0, put_status=Status.FLUSH_DISK_TIMEOUT))
    assert late is not None and await late is Status.FLUSH_DISK_TIMEOUT
    assert appends.put_status(ClassicOutcome(0, 1, 1, 0, copied=copied)) is copied
    assert appends.put_status(ClassicOutcome(0, 1, 1, 0)) is None


@pytest.mark.parametrize(
    "failure", [error_for(Status.LOG_FAILED, "fdatasync"), RuntimeError("a bug"), OSError(5, "x")]
)
@pytest.mark.parametrize("rule", [None, AsyncRule(0.001, 0)])
async def test_a_flush_that_fails_is_told_whatever_it_is(failure: Exception, rule: AsyncRule | None) -> None:
    async with commits(rule) as (world, commit):
        world.log.failure = failure
        answer = world.append(commit, 10)
        world.log.may_go.release()
        assert (await world.failure).status is Status.LOG_FAILED
        assert answer.done() == (rule is not None)
        await commit.stop()
        if rule is None:
            with pytest.raises(Indeterminate):
                await answer


async def test_the_oldest_append_ages_until_it_is_durable_though_it_was_answered() -> None:
    clock_s, is_flushed = [50.0], asyncio.Event()
    async with commits(on_flushed=is_flushed.set, now=lambda: clock_s[0]) as (world, commit):
        assert commit.oldest_ms == 0
        late = world.append(commit, 10, 1)
        await world.started()
        clock_s[0] = 51.5
        young = world.append(commit, 20)
        assert put_status(await late) is Status.FLUSH_DISK_TIMEOUT
        assert commit.oldest_ms == 1500
        world.log.may_go.release()
        await is_flushed.wait()
        assert commit.oldest_ms == 0
        clock_s[0] = 51.75
        assert commit.oldest_ms == 250
        world.log.may_go.release()
        await young
        assert commit.oldest_ms == 0


async def test_nobody_waits_for_the_disk_with_async_flush() -> None:
    clock_s = [50.0]
    async with commits(AsyncRule(0.001, 0), now=lambda: clock_s[0]) as (world, commit):
        await world.append(commit, 10)
        await world.started()
        clock_s[0] = 60
        assert commit.oldest_ms == 0


async def test_async_flush_answers_at_once_and_syncs_later() -> None:
    is_flushed = asyncio.Event()
    async with commits(AsyncRule(0.001, 0), is_flushed.set) as (world, commit):
        answer = world.append(commit, 10)
        assert put_status(answer.result()) is None and not world.log.flushes
        world.log.may_go.release()
        await is_flushed.wait()
        assert world.flushed == [10]


@pytest.mark.parametrize(
    ("flushed", "end", "waited_s", "is_due"),
    [
        (0, 0, 0, False),
        (0, 4 * 4096 - 1, 9, False),
        (0, 4 * 4096, 0, True),
        (4095, 4 * 4096, 0, True),
        (4096, 4 * 4096, 0, False),
        (0, 1, 9.9, False),
        (0, 1, 10, True),
        (7, 7, 10, False),
    ],
)
def test_async_flush_waits_for_pages_or_for_the_thorough_interval(
    flushed: int, end: int, waited_s: float, is_due: bool
) -> None:
    assert AsyncRule().is_due(flushed, end, waited_s) is is_due


def test_the_rule_is_that_of_the_settings() -> None:
    assert async_rule(ClassicSettings()) is None
    assert async_rule(ClassicSettings(flush="ASYNC_FLUSH")) == AsyncRule()
    settings = ClassicSettings(
        flush="ASYNC_FLUSH", flush_interval_ms=20, flush_least_pages=0, flush_thorough_interval_ms=1_000
    )
    assert async_rule(settings) == AsyncRule(0.02, 0, 1.0)
