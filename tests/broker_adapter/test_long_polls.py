"""Pulls that wait for messages."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.server.broker import LongPolls


async def begun(polls: LongPolls, *pulls: tuple[str, int, int]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(polls.wait(*pull)) for pull in pulls]
    await asyncio.wait(tasks, timeout=0)
    return tasks


async def ended(*tasks: asyncio.Task[None]) -> list[bool]:
    await asyncio.wait(tasks, timeout=0)
    return [task.done() for task in tasks]


async def test_an_arrival_wakes_whom_it_concerns_and_nobody_else() -> None:
    polls = LongPolls(10)
    tasks = await begun(polls, ("t", 0, 5), ("t", 0, 6), ("t", 1, 0), ("u", 0, 5))
    polls.arrived([("t", 0, 6)])
    assert await ended(*tasks) == [True, False, False, False]
    polls.arrived([("t", 0, 7), ("u", 0, 6), ("nobody", 0, 1)])
    assert await ended(*tasks) == [True, True, False, True]
    assert len(polls) == 1
    tasks[2].cancel()


async def test_whoever_gives_up_leaves_no_trace() -> None:
    polls = LongPolls(1)
    (task,) = await begun(polls, ("t", 0, 5))
    with pytest.raises(ReadFailed) as caught:
        await polls.wait("t", 0, 5)
    assert caught.value.status is Status.TOO_MANY_HELD_PULLS
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(polls) == 0
    polls.arrived([("t", 0, 6)])


async def test_a_change_of_role_and_the_end_wake_all() -> None:
    polls = LongPolls(10)
    tasks = await begun(polls, ("t", 0, 5), ("u", 0, 5))
    polls.wake_all()
    assert await ended(*tasks) == [True, True]
    (task,) = await begun(polls, ("t", 0, 5))
    polls.close()
    assert await ended(task) == [True]
    await polls.wait("t", 0, 5)


async def test_a_queue_that_has_grown_before_one_waits_keeps_nobody_waiting() -> None:
    polls = LongPolls(10)
    seen: list[int] = []

    def has_grown() -> bool:
        seen.append(len(polls))
        return True

    await polls.wait("t", 0, 5, has_grown)
    assert seen == [1], "it is asked when an arrival would be noticed, not before"
    assert len(polls) == 0


async def test_who_waits_again_at_once_is_woken_though_others_of_the_same_arrival_go_later() -> None:
    polls = LongPolls(10)

    async def twice() -> None:
        for offset in (5, 6):
            await polls.wait("t", 0, offset)

    task = asyncio.create_task(twice())
    others = await begun(polls, ("t", 0, 5), ("t", 0, 5))
    polls.arrived([("t", 0, 6)])
    assert await ended(task, *others) == [False, True, True]
    polls.arrived([("t", 0, 7)])
    assert await ended(task) == [True]
