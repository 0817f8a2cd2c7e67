"""What is pending for nothing is noticed by the master, and goes by commands of the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery import receive_queues as receive_queues_module
from broker_adapter.delivery import upkeep as upkeep_module
from broker_adapter.delivery.receive_queues import GroupTopic, ReceiveQueues
from broker_adapter.delivery.upkeep import Upkeep
from broker_adapter.delivery_state.commands import DeferredKind, Element, Fold, PurgeBelow, QueueKey
from broker_adapter.delivery_state.deferred_messages import DeferredMessage
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.put.committer import Committer, PutRequest

DAY_MS = 86_400_000
KEY = QueueKey("g", "t", 0)


class World:
    def __init__(self, max_pending: int = 1000) -> None:
        self.state = DeliveryState()
        self.receive_queues = ReceiveQueues()
        self.least: Counter[tuple[str, int]] = Counter()
        self.now_ms = DAY_MS
        self.submitted: list[Element] = []
        self.upkeep = Upkeep(
            self.state,
            cast(Committer, self),
            self.receive_queues,
            self,
            now_ms=lambda: self.now_ms,
            settings=DeliverySettings(max_pending=max_pending),
        )

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.least[topic, queue_id], 1 << 40

    def submit(self, request: PutRequest) -> None:
        self.submitted += request.elements

    def give(self, count: int, key: QueueKey = KEY) -> None:
        popped = PoppedMessage(1, DAY_MS, 1, "c", "", False, 0)
        self.state.restore(QueueDelivery(key, count), [(offset, popped) for offset in range(count)])

    def look(self) -> list[Element]:
        self.submitted.clear()
        self.upkeep.run_step()
        self.upkeep.stop()
        return list(self.submitted)


async def test_what_was_purged_is_told_to_the_log_once_for_all_groups() -> None:
    world = World()
    world.give(5)
    world.give(7, QueueKey("h", "t", 0))
    world.give(7, QueueKey("h", "t", 1))
    assert world.look() == []
    world.least["t", 0] = 3
    assert world.look() == [PurgeBelow("t", 0, 3)]


async def test_what_nobody_wants_for_a_day_is_folded() -> None:
    world = World()
    world.give(5)
    world.now_ms += DAY_MS - 1
    assert world.look() == []
    world.now_ms += 1
    assert world.look() == [Fold(KEY, DAY_MS, upkeep_module._MESSAGES)]
    world.receive_queues.queue(KEY).reserved.add(3)  # it is on its way to somebody
    assert world.look() == []


async def test_it_takes_less_when_there_is_little_room_left() -> None:
    world = World(max_pending=8)
    world.give(5)
    world.now_ms += 600_000
    assert world.look() == [Fold(KEY, 600_000, upkeep_module._MESSAGES)]


async def test_a_step_looks_at_so_many_queues_and_the_next_one_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for queue_id in range(25):
        world.give(1, QueueKey("g", "t", queue_id))
        world.least["t", queue_id] = 1
    monkeypatch.setattr(upkeep_module, "_QUEUES", 10)
    steps: list[int] = []
    loop = asyncio.get_running_loop()
    calls = []
    monkeypatch.setattr(loop, "call_later", lambda delay, *call: calls.append((delay, call)))
    world.upkeep.run_step()
    while calls[-1][0] < 1:
        steps.append(len(world.submitted))
        _, (again, *left) = calls[-1]
        again(*left)
    assert (steps, len(world.submitted)) == ([10, 20], 25)


async def test_a_step_looks_at_fewer_queues_that_have_much() -> None:
    world = World(max_pending=1 << 20)
    for number in range(50):
        world.give(4_000, QueueKey("g", "t", number))
        world.least["t", number] = 1
    assert len(world.look()) == 10


class _Lock:
    """Counts what is pending less each time when it is given away."""

    def __init__(self, state: DeliveryState) -> None:
        self._lock, self._state = state.lock, state
        self.pending: list[int] = []

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self.pending.append(self._state.pending_count + len(self._state.deferred))
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_purge_of_much_lets_others_have_the_lock_meanwhile() -> None:
    """The event loop waits for it: 200,000 messages took tenths of a second."""
    world = World()
    world.give(10_500)
    world.state.lock = lock = _Lock(world.state)  # type: ignore[assignment]
    world.state.apply(1, DAY_MS, encode([PurgeBelow("t", 0, 10_000)]))
    assert lock.pending == [8_500, 6_500, 4_500, 2_500, 500, 500]


def test_a_topic_that_ends_with_many_delayed_messages_likewise() -> None:
    world = World()
    message = DeferredMessage(b"", DeferredKind.DELAYED, "t", 0, b"")
    for number in range(5_000):
        world.state.deferred.put(number, message)
    world.state.lock = lock = _Lock(world.state)  # type: ignore[assignment]
    world.state.topic_cut("t")
    assert lock.pending == [3_000, 1_000, 0]


async def test_queues_that_say_nothing_are_forgotten_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and topics go, and nobody asks for them any more."""
    monkeypatch.setattr(upkeep_module, "_VIEWS", 20)
    world = World()
    keys = [QueueKey(f"g{number}", "t", 0) for number in range(50)]
    for key in keys:
        world.receive_queues.queue(key)
    busy = keys[7], keys[8], keys[49]
    world.receive_queues.queue(busy[0]).under_way = 1
    world.receive_queues.queue(busy[1]).is_read = True
    world.receive_queues.queue(busy[2]).reserved.add(3)
    kept = [world.receive_queues.queue(key) for key in busy]
    counts = []
    for _ in range(4):
        world.look()
        counts.append(len(world.receive_queues._queues))
    assert counts == [50, 32, 12, 3]
    assert [world.receive_queues.find(key) for key in busy] == kept
    kept[0].under_way = 0
    world.look(), world.look()
    assert world.receive_queues.find(busy[0]) is None


def test_turns_of_so_many_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_queues_module, "_MAX_TURNS", 3)
    receive_queues = ReceiveQueues()
    for number in range(10):
        receive_queues.turn(GroupTopic(f"g{number}", "t"))
        assert len(receive_queues._turns) <= 3
    assert receive_queues.turn(GroupTopic("g9", "t")) == 1, "known ones go on"


async def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while queues are made again, of which nothing can be said then."""
    world = World()
    world.give(1)

    def no_bounds(topic: str, queue_id: int) -> tuple[int, int]:
        raise ReadFailed(Status.NOT_CONFIRMED, "not yet")

    monkeypatch.setattr(world, "bounds", no_bounds)
    world.upkeep.run_step()
    assert world.upkeep._timer is not None
    world.upkeep.stop()
