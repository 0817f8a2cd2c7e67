"""When deferred messages are met: each at its own time, once, and not all of them in one step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.commitlog.message_writer import AnyTopic, MessageWriter
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.errors import Busy, ReadFailed, Status
from broker_adapter.format.sys_flag import COMPRESSED, TRANSACTION_MASK
from broker_adapter.pop import deferred_delivery as module
from broker_adapter.pop.api import Half, OrphanedHalf, Resolution
from broker_adapter.pop.commands import Checked, Defer, DeferredKind, Element, End
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.deferred_delivery import DeferredDelivery
from broker_adapter.pop.records import encode
from broker_adapter.pop.sender import Sender
from broker_adapter.pop.state import DeliveryState
from broker_adapter.pop.timetable import Timetable
from tests.node.local import until

ID = bytes(range(16))
TOPIC = TopicConfig("t", 1, 1)
START = 1_000_000
SETTINGS = {"check_first_ms": 1000, "check_again_ms": 1000, "max_checks": 15}


class World:
    """Deferred delivery. Its commands are applied in the next step, or refused, at a time a test sets."""

    max_command_bytes = 1 << 20

    def __init__(self, **settings: int) -> None:
        self.now_ms = START
        self.index = 0
        self.refuses: type[Element] | None = None
        self.is_full = False
        self.asked: list[OrphanedHalf] = []
        self.submitted = 0
        self.elements: list[Element] = []
        self.topics = AnyTopic()
        self.outgoing: list[OutgoingMessage] = []
        self._outcomes: list[Any] = []
        self.state = DeliveryState(on_outcomes=lambda _, outcomes: self._outcomes.extend(outcomes))
        committer, writer = cast(Committer, self), cast(MessageWriter, self)
        self.deferred = DeferredDelivery(
            self.state,
            committer,
            writer,
            Sender(self.state, committer, writer),
            now_ms=lambda: self.now_ms,
            settings=DeliverySettings(
                check_first_ms=1000, check_again_ms=1000, **{"max_checks": 15, **settings}
            ),
        )
        self.deferred.on_orphan(self.asked.append)
        self.deferred.start()

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        return max(0, queue_id)

    def records(self, topic: str, queue_id: int, messages: list[OutgoingMessage], **_: Any) -> Any:
        self.outgoing = messages
        return SimpleNamespace(topic=topic, queue_id=queue_id, batch=SimpleNamespace(sizes=[]))

    def submit(self, request: Request) -> None:
        if self.is_full:
            raise Busy(Status.TOO_MANY_PENDING_BYTES, "try again later")
        self.submitted += 1
        asyncio.get_running_loop().call_soon(self.settle, request)

    def settle(self, request: Request) -> None:
        if self.refuses is not None and isinstance(request.elements[0], self.refuses):
            request.fail(Busy(Status.DISK_FULL, "no room"))
        else:
            self.elements += request.elements
            self.index += 1
            self._outcomes.clear()
            self.state.apply(self.index, self.now_ms, encode(request.elements, ID))
            request.applied = Done([], list(self._outcomes))
            request.settle(request.applied)
        request.release()

    async def look(self) -> None:
        self.deferred._look()
        for _ in range(3):
            await asyncio.sleep(0)

    async def half(self, topic: TopicConfig = TOPIC) -> Half:
        return await self.deferred.half(topic, OutgoingMessage(b"x"), "", "p", 0, -1, "", 1000)


async def test_refused_ends_do_not_multiply_the_checks_of_a_half_message() -> None:
    world = World()
    half = await world.half()
    world.refuses = End
    for _ in range(14):
        with pytest.raises(Busy):
            await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
    assert len(world.deferred._due) == 1
    for number in range(1, 16):
        world.now_ms += 1000
        for _ in range(3):
            await world.look()
        assert [one.checks for one in world.asked] == list(range(1, number + 1))
    world.deferred.stop()


async def test_one_check_of_a_half_message_is_under_way_at_a_time() -> None:
    world = World()
    half = await world.half()
    under_way: list[Request] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    world.now_ms += 1000
    await world.look()
    world.settle, world.refuses = settle, End  # type: ignore[method-assign]
    with pytest.raises(Busy):
        await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
    world.now_ms += 5000
    await world.look()
    assert [type(one) for one in world.elements] == [Defer]
    world.settle(under_way[0])
    await asyncio.sleep(0)
    world.now_ms += 1000
    await world.look()
    assert [type(one) for one in world.elements] == [Defer, Checked, Checked]
    world.deferred.stop()


async def test_so_many_that_are_due_at_once_are_met_in_many_steps() -> None:
    world = World()
    for _ in range(module._MET * 3 + 1):
        await world.half()
    count, world.submitted = world.submitted, 0
    world.now_ms += 1000
    for step in range(1, 5):
        world.deferred._look()
        assert world.submitted == min(step * module._MET, count)
    world.deferred.stop()


async def test_those_that_have_gone_before_they_were_due_are_looked_at_in_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LOOKED_AT", 2)
    world = World()
    for number in range(5):
        world.deferred._due.put(number, START)
    left = []
    for _ in range(3):
        world.deferred._look()
        left.append(len(world.deferred._due))
    assert left == [3, 1, 0]
    world.deferred.stop()


async def test_a_new_leadership_lists_what_is_held_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(25):
        await world.half()
    world.deferred.stop()
    monkeypatch.setattr(module, "_LOOKED_AT", 10)
    world.deferred.start()
    listed = []
    for _ in range(3):
        world.deferred._look()
        listed.append(len(world.deferred._due))
    assert listed == [10, 20, 25]
    world.deferred.stop()


async def test_what_there_is_no_room_for_is_tried_again_all_together() -> None:
    world = World()
    for _ in range(9):
        await world.half()
    world.elements.clear()
    world.now_ms += 1000
    world.is_full = True
    await world.look()
    assert world.deferred._timer is not None
    assert world.deferred._timer.when() - asyncio.get_running_loop().time() > 0.9
    world.is_full = False
    world.now_ms += 1000
    await world.look()
    assert len(world.elements) == 9
    world.deferred.stop()


def test_a_timetable_has_one_time_of_each_and_takes_them_in_order() -> None:
    table = Timetable()
    for when in range(1000):
        table.put(1, when)
        table.put(2, 5)
    assert len(table) == 2
    assert len(table._heap) < 100
    assert [table.take_due(999) for _ in range(3)] == [2, 1, None]
    table.put(1, 7)
    assert (table.take_due(6), table.first(), table.take_due(7), table.first()) == (None, 7, 1, None)


def test_a_time_that_was_replaced_is_over_also_when_it_was_the_earlier_one() -> None:
    table = Timetable()
    for number, when in ((1, 5), (2, 7), (1, 9)):
        table.put(number, when)
    assert table.first() == 7
    assert [table.take_due(9) for _ in range(3)] == [2, 1, None]


async def test_a_new_leadership_begins_with_nothing_of_the_one_before() -> None:
    """A check that was under way, and the pause after a want of room, were those of the other one."""
    world = World()
    await world.half()
    under_way: list[Request] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    world.now_ms += 1000
    await world.look()
    world.settle = settle  # type: ignore[method-assign]
    await world.half()
    world.now_ms += 1000
    world.is_full = True
    await world.look()
    assert len(under_way) == 1 and not world.asked
    world.deferred.stop()
    world.is_full = False
    world.deferred.start()
    assert world.deferred._timer is not None
    assert world.deferred._timer.when() - asyncio.get_running_loop().time() < 0.9
    await until(lambda: len(world.asked) == 2)
    world.deferred.stop()


async def test_a_message_whose_end_was_refused_is_ended_later() -> None:
    world = World(max_checks=1)
    await world.half()
    world.now_ms += 1000
    await world.look()
    assert [one.checks for one in world.asked] == [1]
    world.refuses = End
    world.now_ms += 1000
    await world.look()
    assert len(world.state.deferred.all) == 1
    world.refuses = None
    world.now_ms += 1000
    await world.look()
    assert not world.state.deferred.all
    world.deferred.stop()


async def test_what_an_earlier_version_took_in_with_bits_of_transactions_is_moved_without_them() -> None:
    """With them no queue takes it, and it would be tried again for ever."""
    world = World()
    world.deferred.stop()
    defer = Defer(
        DeferredKind.DELAYED,
        "t",
        0,
        START,
        b"",
        "",
        "",
        0,
        COMPRESSED | TRANSACTION_MASK,
        START,
        b"",
        "",
        b"x",
    )
    world.index = 1
    world.state.apply(1, START, encode([defer], ID))
    world.deferred.start()
    await until(lambda: not world.state.deferred.all)
    assert [one.sys_flag for one in world.outgoing] == [COMPRESSED]
    world.deferred.stop()


async def test_what_was_taken_in_or_refused_leaves_room_for_the_next() -> None:
    world = World(max_held_bytes=2000)
    for _ in range(20):
        half = await world.half()
        await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
        world.refuses = Defer
        with pytest.raises(Busy, match="no room"):
            await world.half()
        world.refuses = None
    assert world.state.deferred.bytes == 0
    world.deferred.stop()


#: Their checksums, which stand in transaction ids, are the same.
ALIKE = ("orders-29685295", "orders-32060020")


async def test_the_end_of_a_transaction_is_told_in_its_own_topic_only() -> None:
    world = World()
    half = await world.half(TopicConfig(ALIKE[0], 1, 1))
    await world.deferred.end_transaction(ALIKE[0], half.transaction_id, Resolution.ROLLBACK, 1000)
    await world.deferred.end_transaction(ALIKE[0], half.transaction_id, Resolution.ROLLBACK, 1000)  # repeated
    for resolution in Resolution:
        with pytest.raises(ReadFailed) as error:
            await world.deferred.end_transaction(ALIKE[1], half.transaction_id, resolution, 1000)
        assert error.value.status is Status.TRANSACTION_UNKNOWN and "ROLLED_BACK" not in str(error.value)
    world.deferred.stop()


async def test_the_end_of_a_delayed_message_is_not_told_as_that_of_a_transaction() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    delayed = await world.deferred.delay(TOPIC, OutgoingMessage(b"x"), "", due_ms, -1, "", 1000)
    await world.deferred.recall("t", delayed.recall_handle, 1000)
    with pytest.raises(ReadFailed) as error:
        await world.deferred.end_transaction("t", delayed.recall_handle, Resolution.UNKNOWN, 1000)
    assert error.value.status is Status.TRANSACTION_UNKNOWN and "RECALLED" not in str(error.value)
    world.deferred.stop()


async def test_the_ends_of_transactions_go_with_their_topic() -> None:
    world = World()
    half = await world.half()
    await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
    world.state.topic_cut("other")
    await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
    world.state.topic_cut("t")
    with pytest.raises(ReadFailed, match="unknown"):
        await world.deferred.end_transaction("t", half.transaction_id, Resolution.ROLLBACK, 1000)
    world.deferred.stop()
