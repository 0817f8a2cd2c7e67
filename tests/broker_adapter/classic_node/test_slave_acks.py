"""Appends that are answered when a slave has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from broker_adapter.errors import Status
from broker_adapter.log.classic.node.group_commit import AsyncRule, ClassicOutcome, GroupCommit
from dledger import AppendOutcome, Indeterminate
from dledger.metrics import NodeMetrics

LONG_MS = 60_000


class Disk:
    end_offset = 0
    flushed_offset = 0

    def flush(self) -> int:
        self.flushed_offset = self.end_offset
        return self.flushed_offset


@asynccontextmanager
async def committing(rule: AsyncRule | None = None) -> AsyncIterator[tuple[GroupCommit, Disk]]:
    disk, threads = Disk(), ThreadPoolExecutor(1)
    commit = GroupCommit(
        disk, threads, NodeMetrics(), rule=rule, on_flushed=lambda: None, on_failure=lambda _: None
    )
    commit.start()
    try:
        yield commit, disk
    finally:
        await commit.stop()
        threads.shutdown()


def append(commit: GroupCommit, disk: Disk, timeout_ms: int = LONG_MS) -> asyncio.Future[AppendOutcome]:
    begin = disk.end_offset
    disk.end_offset += 100
    return commit.appended(begin, disk.end_offset, ClassicOutcome(begin, 1, 0, begin), timeout_ms)


async def copied(outcome: AppendOutcome) -> Status | None:
    assert isinstance(outcome, ClassicOutcome) and outcome.put_status is None
    return None if outcome.copied is None else await outcome.copied


def known(put_status: Status | None) -> asyncio.Future[Status | None]:
    future: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
    future.set_result(put_status)
    return future


@pytest.mark.parametrize("rule", [None, AsyncRule()])
@pytest.mark.parametrize("missing", [None, Status.FLUSH_SLAVE_TIMEOUT, Status.SLAVE_NOT_AVAILABLE])
async def test_a_slave_is_asked_for_the_end_of_the_records(
    rule: AsyncRule | None, missing: Status | None
) -> None:
    asked = []

    def acknowledged(offset: int, timeout_ms: int) -> asyncio.Future[Status | None]:
        asked.append((offset, 0 < timeout_ms <= LONG_MS))
        return known(missing)

    async with committing(rule) as (commit, disk):
        commit.acknowledged = acknowledged
        outcome = await append(commit, disk)
        assert await copied(outcome) is missing
        assert isinstance(outcome, ClassicOutcome) and (outcome.copied is None) == (missing is None)
        await asyncio.sleep(0)  # the append is counted off in a callback
        assert asked == [(100, True)] and commit.pending_bytes == 0


async def test_what_is_on_the_disk_waits_for_a_slave_for_what_is_left_of_its_time() -> None:
    asked: list[int] = []

    def acknowledged(offset: int, timeout_ms: int) -> asyncio.Future[Status | None]:
        asked.append(timeout_ms)
        return known(Status.FLUSH_SLAVE_TIMEOUT)

    async with committing() as (commit, disk):
        commit.acknowledged = acknowledged
        assert await copied(await append(commit, disk, 30_000)) is Status.FLUSH_SLAVE_TIMEOUT
        assert 0 < asked[0] <= 30_000


async def test_who_needs_no_slave_does_not_wait_for_one_that_says_nothing() -> None:
    answer: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()

    async with committing() as (commit, disk):
        commit.acknowledged = lambda offset, timeout_ms: answer
        outcomes = [await append(commit, disk), await append(commit, disk)]
        assert commit.pending_bytes == 200, "what waits for a slave counts as what waits for the disk"
        answer.set_result(None)
        await asyncio.sleep(0)
        assert [await copied(outcome) for outcome in outcomes] == [None, None]
        assert commit.pending_bytes == 0


async def test_who_waits_for_a_slave_when_the_broker_stops_is_left_in_doubt() -> None:
    async with committing() as (commit, disk):
        commit.acknowledged = lambda offset, timeout_ms: asyncio.get_running_loop().create_future()
        outcome = await append(commit, disk)
        await commit.stop()
        with pytest.raises(Indeterminate):
            await copied(outcome)
        assert commit.pending_bytes == 0


async def test_an_append_that_the_disk_delays_past_its_deadline_does_not_wait_for_a_slave() -> None:
    """Its size is subtracted once, although it becomes durable later."""
    asked, may_flush = list[int](), threading.Event()

    def acknowledged(offset: int, timeout_ms: int) -> asyncio.Future[Status | None]:
        asked.append(offset)
        return asyncio.get_running_loop().create_future()

    async with committing() as (commit, disk):
        commit.acknowledged = acknowledged
        flush = disk.flush
        disk.flush = lambda: (may_flush.wait(), flush())[1]  # type: ignore[method-assign]
        try:
            late, patient = append(commit, disk, 1), append(commit, disk)
            outcome = await late
            assert isinstance(outcome, ClassicOutcome)
            assert outcome.put_status is Status.FLUSH_DISK_TIMEOUT and outcome.copied is None
        finally:
            may_flush.set()
        await patient
        assert asked == [200] and commit.pending_bytes == 100
