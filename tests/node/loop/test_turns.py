"""Herds that wait for one event are woken a few in each turn of the event loop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from dledger.infra.loops.turns import MAX_WOKEN, WakeQueue, large_turns, settle, wake_queue


class Turns:
    """Counts the turns of the running loop; it makes none of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        select = selector.select

        def counted(timeout: float | None = None) -> object:
            self.now += 1
            return select(timeout)

        monkeypatch.setattr(selector, "select", counted)


async def test_few_are_woken_at_once_and_many_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, turns, woken = WakeQueue(limit=3), Turns(monkeypatch), Counter[int]()
    for _ in range(3):
        queue.add("t", lambda: woken.update([turns.now]))
    assert woken == {0: 3}, "nobody else wants to be woken in this turn"
    for _ in range(2_000):
        queue.add("t", lambda: woken.update([turns.now]))
    while len(queue):
        await asyncio.sleep(0)
    assert woken.total() == 2_003, "no wake-up is lost"
    assert max(woken.values()) <= 2 * 3, "a turn may begin with what the one before has left"


async def test_turns_that_were_not_used_are_not_saved_for_a_herd() -> None:
    queue, woken = WakeQueue(limit=3), 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    for _ in range(50):
        queue.add("t", wake)
        await asyncio.sleep(0)
    for _ in range(100):
        queue.add("t", wake)
    assert woken <= 50 + 3
    while len(queue):
        await asyncio.sleep(0)


async def test_keys_take_turns_and_each_keeps_its_order() -> None:
    queue: WakeQueue = WakeQueue(limit=1)
    woken: list[str] = []
    for name in ("now", "a1", "a2", "a3", "b1", "c1"):
        queue.add(name[0], partial(woken.append, name))
    while len(queue):
        await asyncio.sleep(0)
    assert woken == ["now", "a1", "b1", "c1", "a2", "a3"]


async def test_those_who_have_gone_take_no_place() -> None:
    queue = WakeQueue(limit=1)
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(1_000)]
    for gone in futures[:-1]:
        gone.cancel()
    queue.each("t", futures, settle)
    assert futures[-1].done(), "at once"
    assert len(queue) == 0


async def test_what_comes_while_others_are_woken_is_woken_too() -> None:
    queue, woken = WakeQueue(limit=2), list[int]()

    def wake(number: int) -> bool:
        woken.append(number)
        if number < 100:
            queue.add("later", lambda: woken.append(number + 1_000))
        return True

    queue.each("t", range(100), wake)
    while len(queue):
        await asyncio.sleep(0)
    assert sorted(woken) == [*range(100), *range(1_000, 1_100)]


async def test_a_wake_up_that_fails_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    queue, woken = WakeQueue(limit=1), list[int]()
    queue.add("t", lambda: None)

    def fail() -> None:
        raise ValueError("a mistake")

    queue.add("t", fail)
    queue.add("t", lambda: woken.append(1))
    while len(queue):
        await asyncio.sleep(0)
    assert woken == [1]
    assert "a mistake" in caplog.text


async def test_whoever_waits_for_a_turn_gets_one_and_may_go() -> None:
    queue = WakeQueue(limit=1)
    await asyncio.wait_for(queue.turn("t"), 60)
    waiting = [asyncio.create_task(queue.turn("t")) for _ in range(100)]
    await asyncio.sleep(0)
    for one in waiting[::2]:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.cancelled() for one in waiting[1::2]] == [False] * 50


@pytest.mark.parametrize("seed", range(20))
async def test_callers_with_one_key_run_in_order_even_while_another_one_resumes(seed: int) -> None:
    """A caller that asks for a turn, after an earlier one was given its turn and before that one runs."""
    choice, queue, ran, tasks = random.Random(seed), WakeQueue(limit=2), list[tuple[str, int]](), []

    async def run(key: str, number: int) -> None:
        await queue.turn(key)
        ran.append((key, number))

    for _ in range(100):
        for _ in range(choice.randrange(4)):
            tasks.append(asyncio.create_task(run(choice.choice("ab"), len(tasks))))
            if choice.random() < 0.1:
                tasks[-1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    for key in "ab":
        numbers = [number for of, number in ran if of == key]
        assert numbers == sorted(numbers)
    assert len(ran) == sum(not one.cancelled() for one in tasks) > 50
    assert not queue._resuming and not len(queue)


async def test_all_herds_of_a_loop_share_one_queue() -> None:
    assert wake_queue() is wake_queue()
    assert wake_queue()._limit == MAX_WOKEN


def test_where_no_loop_runs_nobody_is_woken() -> None:
    woken = list[int]()
    wake_queue().add("t", lambda: woken.append(1))
    assert woken == []


async def test_other_work_of_the_loop_comes_between_two_large_pieces() -> None:
    """A timer that is due, such as that of a heartbeat, waits for one of them at most."""
    done, loop = list[str](), asyncio.get_running_loop()

    async def work(client: str) -> None:
        await large_turns().turn(client)
        done.append("large")
        loop.call_soon(done.append, "other")

    await asyncio.gather(*[work(client) for client in "aaabb"])
    await asyncio.sleep(0)
    assert done == ["large", "other"] * 5


async def test_large_pieces_of_one_client_do_not_come_before_those_of_another() -> None:
    done = list[str]()

    async def work(client: str) -> None:
        await large_turns().turn(client)
        done.append(client)

    await asyncio.gather(*[work(client) for client in "aaaab"])
    assert done == ["a", "a", "b", "a", "a"]


async def test_a_caller_that_is_cancelled_before_it_uses_its_turn_delays_no_later_wake_up() -> None:
    queue, woken = WakeQueue(limit=1), list[int]()
    callers = [asyncio.create_task(queue.turn("t")) for _ in range(2)]
    await asyncio.sleep(0)
    # The next turn of the loop gives the second caller its turn, and then cancels it.
    asyncio.get_running_loop().call_soon(callers[1].cancel)
    await asyncio.wait(callers)
    assert [one.cancelled() for one in callers] == [False, True]
    while queue._is_armed:
        await asyncio.sleep(0)
    queue.add("t", lambda: woken.append(1))
    assert woken == [1] and not queue._resuming
