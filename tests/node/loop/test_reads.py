"""How far reads go, and how linearizable read points are shared."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dledger.errors import Code, Overloaded, ReadFailed
from dledger.infra.loops.readable import ReadableLog
from dledger.node.members.read_points import ReadPoints
from dledger.node.node_log import LogSurroundings, NodeLog


async def test_readable_is_what_is_committed_and_stored() -> None:
    log = ReadableLog(-1, -1, 10)
    log.committed(5)
    assert log.index == -1
    log.stored(0, 3)
    assert log.index == 3
    log.stored(0, 9)
    assert log.index == 5


async def test_a_queued_truncation_hides_what_it_will_remove() -> None:
    """Committed may pass an index whose old entry is still on the disk: that entry must not be read."""
    log = ReadableLog(2, 9, 10)
    log.truncating(1, 4)
    log.committed(7)
    assert log.index == 4
    log.stored(0, 9)  # a write of before the truncation completes: void
    assert log.index == 4
    log.stored(1, 8)
    assert log.index == 7


async def test_a_log_that_is_being_replaced_counts_as_far_as_it_did() -> None:
    """The old one may reach beyond the new begin, with entries that were never committed."""
    log = ReadableLog(2, 50, 10)
    log.resetting(1, 40)
    assert log.index == 2
    log.stored(0, 50)
    log.committed(45)
    assert log.index == 2
    log.stored(1, 40)
    assert log.index == 40


async def test_waiters_are_woken_in_order_of_index() -> None:
    log = ReadableLog(0, 100, 10)
    waits = [asyncio.create_task(log.wait(i, None)) for i in (30, 10, 20)]
    await asyncio.wait(waits, timeout=0)
    log.committed(20)
    await asyncio.gather(waits[1], waits[2])
    assert not waits[0].done()
    log.committed(30)
    await waits[0]


async def test_waits_end_with_numbered_errors() -> None:
    log = ReadableLog(0, 0, 1)
    with pytest.raises(ReadFailed) as timed_out:
        await log.wait(5, 1)
    assert timed_out.value.code is Code.READ_NOT_CONFIRMED
    waiting = asyncio.create_task(log.wait(5, None))
    await asyncio.wait([waiting], timeout=0)
    with pytest.raises(Overloaded) as full:
        await log.wait(6, None)
    assert full.value.code is Code.TOO_MANY_WAITING_READS
    log.close(ReadFailed("stopping", code=Code.READ_NOT_CONFIRMED))
    with pytest.raises(ReadFailed, match="stopping"):
        await waiting
    with pytest.raises(ReadFailed, match="stopping"):
        await log.wait(7, None)
    await log.wait(0, None)


async def test_a_cancelled_wait_leaves_the_others_in_order() -> None:
    log = ReadableLog(0, 100, 10)
    waits = [asyncio.create_task(log.wait(i, None)) for i in (5, 6, 7, 8)]
    await asyncio.wait(waits, timeout=0)
    waits[0].cancel()
    waits[2].cancel()
    await asyncio.wait([waits[0], waits[2]])
    log.committed(8)
    await asyncio.gather(waits[1], waits[3])


class Leader:
    """Confirms read points when told to."""

    def __init__(self) -> None:
        self.rounds: list[asyncio.Future[int]] = []
        self.asked = asyncio.Event()

    async def confirm(self) -> int:
        self.rounds.append(asyncio.get_running_loop().create_future())
        self.asked.set()
        return await self.rounds[-1]


async def test_a_bug_in_a_round_leaves_nobody_waiting() -> None:
    """And those who ask next get a round of their own."""
    leader = Leader()
    points = ReadPoints(leader.confirm, 100, 60_000)
    first = asyncio.create_task(points.get())
    await leader.asked.wait()
    later = asyncio.create_task(points.get())
    await asyncio.wait([later], timeout=0)
    leader.asked.clear()
    leader.rounds[0].set_exception(ZeroDivisionError("a bug"))
    for waiting in (first, later):
        with pytest.raises(ReadFailed, match="a bug"):
            await asyncio.wait_for(waiting, 30)
    next_one = asyncio.create_task(points.get())
    await leader.asked.wait()
    leader.rounds[1].set_result(7)
    assert await next_one == 7


async def test_requests_never_join_the_round_that_is_under_way() -> None:
    leader = Leader()
    points = ReadPoints(leader.confirm, 100, 5000)
    first = asyncio.create_task(points.get())
    await leader.asked.wait()
    leader.asked.clear()
    later = [asyncio.create_task(points.get()) for _ in range(10)]
    await asyncio.wait(later, timeout=0)
    leader.rounds[0].set_result(1)
    assert await first == 1
    await leader.asked.wait()
    assert not any(task.done() for task in later)
    leader.rounds[1].set_result(2)
    assert await asyncio.gather(*later) == [2] * 10
    assert len(leader.rounds) == 2


async def test_a_round_that_fails_fails_its_readers_only() -> None:
    leader = Leader()
    points = ReadPoints(leader.confirm, 100, 5000)
    first = asyncio.create_task(points.get())
    await leader.asked.wait()
    leader.asked.clear()
    second = asyncio.create_task(points.get())
    await asyncio.wait([second], timeout=0)
    leader.rounds[0].set_exception(ReadFailed("deposed", code=Code.READ_NOT_CONFIRMED))
    with pytest.raises(ReadFailed, match="deposed"):
        await first
    await leader.asked.wait()
    leader.rounds[1].set_result(4)
    assert await second == 4


async def test_rounds_are_bounded_in_time_and_readers_in_number() -> None:
    leader = Leader()
    points = ReadPoints(leader.confirm, 1, 1)
    with pytest.raises(ReadFailed) as slow:
        await points.get()
    assert slow.value.code is Code.READ_NOT_CONFIRMED
    points = ReadPoints(leader.confirm, 1, 60_000)
    leader.asked.clear()
    tasks = [asyncio.create_task(points.get())]
    await leader.asked.wait()
    tasks.append(asyncio.create_task(points.get()))
    await asyncio.wait(tasks, timeout=0)
    with pytest.raises(Overloaded) as full:
        await points.get()
    assert full.value.code is Code.TOO_MANY_WAITING_READS
    await points.stop()
    for task in tasks:
        with pytest.raises(ReadFailed, match="stopping"):
            await task


async def test_a_new_leader_reads_although_its_request_to_the_old_one_hangs() -> None:
    """The old leader is isolated: without an end, its request would hold up all later reads."""
    asked, leads = asyncio.Event(), False

    class Isolated:
        async def read_index(self, timeout: float) -> int:
            asked.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    class Shell:
        def append(self) -> None: ...

        async def read_index(self) -> int:
            return 7

    around = LogSurroundings(
        leader=cast("Any", Isolated),
        leads=lambda: leads,
        needs_image=lambda: False,
        begin_index=lambda: 0,
        on_damage=lambda index: None,
    )
    nothing = cast("Any", None)
    limits = {"max_waiting_reads": 100, "read_timeout_ms": 60_000, "owned": False}
    shell = cast("Any", Shell())
    log = NodeLog("g", nothing, nothing, shell, nothing, nothing, nothing, around, **cast("Any", limits))
    first = asyncio.create_task(log.read_index())
    await asked.wait()
    later = asyncio.create_task(log.read_index())
    leads = True
    log.role_changed()
    assert await asyncio.wait_for(asyncio.gather(first, later), 30) == [7, 7]
    asked.clear()
    leads = False
    hanging = asyncio.create_task(log.read_index())
    await asked.wait()
    await log._points.stop()
    with pytest.raises(ReadFailed, match="stopping"):
        await hanging
