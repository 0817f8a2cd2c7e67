"""Thousands of groups that wait for one message: no turn of the event loop is for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.delivery.api import Delivery
from broker_adapter.delivery.receive_queues import ReceiveQueues
from broker_adapter.delivery.receiver import _QUEUES_PER_STEP, Receiver
from broker_adapter.server.program import BrokerProgram
from dledger.infra.loops.turns import MAX_WOKEN, wake_queue
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.delivery.test_node import bodies, send
from tests.node.local import until
from tests.node.loop.test_turns import Turns

GROUPS = 2_000
#: A turn of the loop may take what the one before has left.
MOST_IN_A_TURN = 2 * MAX_WOKEN


async def waiting_groups(
    program: BrokerProgram, count: int, queues: int = 1
) -> list[asyncio.Task[list[Delivery]]]:
    """A receive of each of so many groups, all of them waiting for a message of "t"."""
    await program.broker.put_topic(TopicConfig("t", queues, queues))
    for first in range(0, count, 500):
        names = [f"g{number}" for number in range(first, min(first + 500, count))]
        await asyncio.gather(*[program.broker.put_group(GroupConfig(name)) for name in names])
    receive = partial(program.delivery.receive, topic="t", client_id="c", invisible_ms=600_000)
    tasks = [asyncio.create_task(receive(f"g{number}", wait_ms=600_000)) for number in range(count)]
    await until(lambda: program.delivery.figures().waiting_receives == count and not len(wake_queue()))
    return tasks


class Watched:
    """How many receives look, and how many are answered, in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tasks: list[asyncio.Task[list[Delivery]]]) -> None:
        turns = Turns(monkeypatch)
        self.looks, self.answers = Counter[int](), Counter[int]()
        self.queues = Counter[int]()
        plan, plan_queue = Receiver._plan_some, Receiver.plan_queue

        def counted(receiver: Receiver, *arguments: Any) -> int:
            self.looks[turns.now] += 1
            return plan(receiver, *arguments)

        def queue_counted(receiver: Receiver, *arguments: Any) -> object:
            self.queues[turns.now] += 1
            return plan_queue(receiver, *arguments)

        monkeypatch.setattr(Receiver, "_plan_some", counted)
        monkeypatch.setattr(Receiver, "plan_queue", queue_counted)
        for task in tasks:
            task.add_done_callback(lambda _: self.answers.update([turns.now]))

    def check(self) -> None:
        assert self.looks.total() >= GROUPS
        assert max(self.looks.values()) <= MOST_IN_A_TURN
        assert max(self.answers.values()) <= MOST_IN_A_TURN


@pytest.mark.slow
async def test_one_message_for_thousands_of_groups_reaches_each_and_a_turn_serves_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_held_pulls": GROUPS}
    async with brokers(tmp_path, 1, settings) as cluster:
        program = await cluster.master()
        tasks = await waiting_groups(program, GROUPS)
        watched = Watched(monkeypatch, tasks)
        await send(program, "a")
        assert [bodies(found) for found in await asyncio.gather(*tasks)] == [["a"]] * GROUPS
        watched.check()


async def test_the_end_of_a_leadership_ends_thousands_of_receives_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1, {"max_held_pulls": GROUPS}) as cluster:
        program = await cluster.master()
        tasks = await waiting_groups(program, GROUPS)
        watched = Watched(monkeypatch, tasks)
        program.writer.stop()
        program.delivery.wake_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert max(watched.answers.values()) <= MOST_IN_A_TURN


async def test_times_of_thousands_that_come_together_are_looked_at_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1, {"max_held_pulls": GROUPS}) as cluster:
        program = await cluster.master()
        loop = asyncio.get_running_loop()
        timers: list[Callable[[], object]] = []
        call_at = loop.call_at

        def kept(when: float, callback: Any, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            if getattr(callback, "__func__", None) is ReceiveQueues.wake:
                timers.append(partial(callback, *arguments))
            return call_at(when, callback, *arguments, **options)

        monkeypatch.setattr(loop, "call_at", kept)
        tasks = await waiting_groups(program, GROUPS)
        await until(lambda: len(timers) == GROUPS)
        watched = Watched(monkeypatch, tasks)
        for timer in timers[:]:
            timer()
        await until(lambda: len(timers) == 2 * GROUPS)  # all have looked, and wait again
        assert watched.looks.total() == GROUPS
        assert max(watched.looks.values()) <= MOST_IN_A_TURN
        program.writer.stop()
        program.delivery.wake_all()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_topic_of_many_queues_is_looked_at_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1, {"max_held_pulls": 100}) as cluster:
        program = await cluster.master()
        tasks = await waiting_groups(program, 100, queues=1_024)
        watched = Watched(monkeypatch, tasks)
        await send(program, "a")
        assert [bodies(found) for found in await asyncio.gather(*tasks)] == [["a"]] * 100
        assert watched.queues.total() > 0
        assert max(watched.queues.values()) <= MOST_IN_A_TURN * _QUEUES_PER_STEP
        assert max(watched.looks.values()) <= MOST_IN_A_TURN
