"""All limits of a broker are full at once: no step of the event loop goes through much of what there is.

Steps are measured by the lines of Python that they execute, which no other load of the machine changes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.events import Handle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, OutgoingMessage, QueueOffset, TopicConfig
from broker_adapter.delivery_state.commands import DeferredKind, Ending, QueueKey
from broker_adapter.delivery_state.deferred_messages import (
    MAX_ENDS,
    DeferredMessage,
    EndedMessage,
    LogPosition,
)
from broker_adapter.delivery_state.duplicate_filter import MAX_IDS, SendIdentity
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.errors import BrokerError
from broker_adapter.metadata.state import MAX_GROUPS, MAX_TOPICS
from broker_adapter.metadata.values import Group
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.program import BrokerProgram
from dledger.infra.loops.turns import wake_queue
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.sending import send_to
from tests.node.local import until

PENDING, OF_A_QUEUE, CLIENTS = 200_000, 20_000, 10_000
DELAYED, WAITING = 250_000, 2_000
#: An append of 1,024 changes takes 50,000 to 70,000 lines, about 7 ms; one renewal of all that is pending
#: 8,600,000.
MOST_LINES = PENDING * 3 // 4


class Lines:
    """Counts the lines that each callback of the event loop executes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.where = 0, ""
        self._now = 0
        run = Handle._run

        def traced(handle: Handle) -> None:
            before, self._now = sys.gettrace(), 0
            sys.settrace(self._enter)
            try:
                run(handle)
            finally:
                sys.settrace(before)
            if self._now > self.most:
                callback: Any = handle._callback  # type: ignore[attr-defined]
                self.most, self.where = self._now, repr(getattr(callback, "__self__", callback))[:300]

        monkeypatch.setattr(Handle, "_run", traced)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self._now += 1
        return self._line


def fill_metadata(program: BrokerProgram) -> None:
    """All topics and groups that there may be, beside what there is."""
    state, nothing = program.metadata, MappingProxyType[str, Any]({})
    offsets = MappingProxyType({("t", 0): 0})
    topics = {f"x{n}": TopicConfig(f"x{n}", 1, 1) for n in range(MAX_TOPICS - len(state.topics))}
    state._topics = MappingProxyType({**state.topics, **topics})
    names = [f"g{n}" for n in range(MAX_GROUPS - len(state.groups()))]
    state._groups = {name: Group(GroupConfig(name), 0, nothing, offsets) for name in names}
    state._offset_count = len(names)


def fill_delivery(program: BrokerProgram) -> None:
    state, now_ms = program.delivery_state, program.node.cluster_time_ms()
    place = LogPosition(5, 300)
    delayed = DeferredMessage(b"", DeferredKind.DELAYED, "t", now_ms + 600_000, b"", 0, place)
    with state.lock:
        for number in range(PENDING // OF_A_QUEUE):
            owners = ["all"] if number == 0 else [f"c{client}" for client in range(CLIENTS)]
            # Less than half of the usual time is left: each is due to be renewed.
            given = [PoppedMessage(1, now_ms + 25_000, 1, owner, "", True, now_ms) for owner in owners]
            pending = [(at, given[at % len(given)]) for at in range(OF_A_QUEUE)]
            state.restore(QueueDelivery(QueueKey(f"g{number}", "t", 0), OF_A_QUEUE), pending)
        for number in range(DELAYED):
            state.deferred.put(1 << 40 | number, delayed)
            if state.deferred.is_full:
                state.deferred.write()
                state.deferred.written()
        for number in range(MAX_ENDS):
            state.deferred.remember(EndedMessage(1 << 41 | number, Ending.MOVED, now_ms, "t"))
        for number in range(MAX_IDS):
            identity = SendIdentity(number.to_bytes(16, "big"), b"c" * 16, now_ms)
            state.ids.put(identity, 0, number, now_ms)


async def waiting(program: BrokerProgram) -> list[asyncio.Task[Any]]:
    """A receive of each of so many groups."""
    receive = partial(program.delivery.receive, topic="t", client_id="w", invisible_ms=600_000)
    tasks = [asyncio.create_task(receive(f"g{n + 1_000}", wait_ms=600_000)) for n in range(WAITING)]
    await until(lambda: program.delivery.figures().waiting_receives == WAITING and not len(wake_queue()))
    return tasks


def calls(program: BrokerProgram) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What clients ask of a broker, and what it does of itself."""
    broker, delivery = program.broker, program.delivery
    message = OutgoingMessage(b"x")
    later_ms = int(time.time() * 1000) + 600_000

    async def now(work: Callable[[], object]) -> None:
        work()

    return {
        "send": lambda: send_to(program, "t", message, message_id="1"),
        "send_delayed": lambda: delivery.send_delayed("t", message, message_id="2", deliver_at_ms=later_ms),
        "receive": lambda: delivery.receive("g1", "t", client_id="c1", wait_ms=1),
        "ack": lambda: delivery.ack("g1", "t", ["?"] * 1_024),
        "heard_of": lambda: now(lambda: delivery.heard_of("all")),
        "renew": lambda: now(delivery._renewals.renew),
        "upkeep": lambda: now(delivery._upkeep.run_step),
        "carry": lambda: delivery._carrier._is_worth_it(1 << 62, 1 << 62),
        "release": lambda: delivery.release("all"),
        "put_topic": lambda: broker.put_topic(TopicConfig("x1", 2, 2)),
        "one topic too many": lambda: broker.put_topic(TopicConfig("more", 1, 1)),
        "delete_topic": lambda: broker.delete_topic("x2"),
        "put_group": lambda: broker.put_group(GroupConfig("g5000")),
        "delete_group": lambda: broker.delete_group("g5001"),
        "commit": lambda: broker.commit_offsets("g5002", [QueueOffset("t", 0, 0)]),
        "reset": lambda: broker.reset_offsets("g9", [QueueOffset("t", 0, 0)]),
        "expiry of topics": program.topic_expiry.sweep,
        "expiry of groups": program.group_expiry.sweep,
        "status": lambda: now(BrokerStatus(program).shown),
    }


async def asking(call: Callable[[], Awaitable[Any]]) -> None:
    await call()


async def settled(program: BrokerProgram) -> None:
    """All steps that were begun have been taken: hundreds of renewals, each line of which is counted."""
    await until(lambda: not len(wake_queue()) and not program.delivery._renewals._step_timers, within_s=600)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_step_of_the_loop_grows_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_held_pulls": WAITING + 1, "checkpoint_ms": 600_000}
    async with brokers(tmp_path, 1, settings) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        fill_metadata(program)
        fill_delivery(program)
        tasks = await waiting(program)
        figures = program.delivery.figures()
        assert (figures.pending, len(program.metadata.topics)) == (PENDING, MAX_TOPICS)
        longest: dict[str, tuple[int, str]] = {}
        try:
            for name, call in calls(program).items():
                with monkeypatch.context() as patch:
                    lines = Lines(patch)
                    with suppress(BrokerError):  # most limits refuse by now
                        await asyncio.create_task(asking(call))  # its first step counts, too
                    await settled(program)
                longest[name] = (lines.most, lines.where)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert {name: found for name, found in longest.items() if found[0] > MOST_LINES} == {}
        assert {name for name, found in longest.items() if not found[0]} == set()
