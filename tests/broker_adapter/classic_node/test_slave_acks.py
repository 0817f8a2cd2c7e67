"""Appends that are answered when a slave has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from broker_adapter.classic_node.group_commit import AsyncRule, ClassicOutcome, GroupCommit
from broker_adapter.errors import Status
from dledger import AppendOutcome, Indeterminate
from dledger.platform import NodeMetrics
from tests.node.local import until

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


def append(commit: GroupCommit, disk: Disk) -> asyncio.Future[AppendOutcome]:
    begin = disk.end_offset
    disk.end_offset += 100
    return commit.appended(begin, disk.end_offset, ClassicOutcome(begin, 1, 0, begin), LONG_MS)


@pytest.mark.parametrize("rule", [None, AsyncRule()])
@pytest.mark.parametrize("missing", [None, Status.FLUSH_SLAVE_TIMEOUT, Status.SLAVE_NOT_AVAILABLE])
async def test_a_slave_is_asked_for_the_end_of_the_records(
    rule: AsyncRule | None, missing: Status | None
) -> None:
    asked = []

    async def acknowledged(offset: int, timeout_ms: int) -> Status | None:
        asked.append((offset, 0 < timeout_ms <= LONG_MS))
        return missing

    async with committing(rule) as (commit, disk):
        commit.acknowledged = acknowledged
        outcome = await append(commit, disk)
        assert isinstance(outcome, ClassicOutcome) and outcome.shortfall is missing
        assert asked == [(100, True)] and commit.pending_bytes == 0


async def test_who_waits_for_a_slave_when_the_broker_stops_is_left_in_doubt() -> None:
    async def never(offset: int, timeout_ms: int) -> Status | None:
        await asyncio.Future()
        return None

    async with committing() as (commit, disk):
        commit.acknowledged = never
        waiting = append(commit, disk)
        await until(lambda: disk.flushed_offset == 100)
        assert not waiting.done()
        await commit.stop()
        with pytest.raises(Indeterminate):
            await waiting
