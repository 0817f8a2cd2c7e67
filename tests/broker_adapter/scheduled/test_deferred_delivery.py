"""When deferred messages are met: each at its own time, once, and not all of them in one step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state.commands import Defer, DeferredKind, EndDeferred, Ending, RecordCheck
from broker_adapter.delivery_state.records import encode
from broker_adapter.errors import Busy, IllegalMessage, ReadFailed, Status
from broker_adapter.put.committer import PutRequest
from broker_adapter.put.message_writer import AnyTopic
from broker_adapter.scheduled import deferred_delivery as module
from broker_adapter.scheduled.deferring import DeferRequest, Resolution, TransactionEnd
from broker_adapter.scheduled.timetable import Timetable
from broker_adapter.wire.sys_flag import COMPRESSED, TRANSACTION_MASK
from dledger.infra.loops.turns import LARGE_BYTES, MAX_WOKEN
from tests.broker_adapter.scheduled.deferred_world import ID, START, TOPIC, World, delayed
from tests.node.local import until


async def test_refused_ends_do_not_multiply_the_checks_of_a_half_message() -> None:
    world = World()
    half = await world.half()
    world.refuses = EndDeferred
    for _ in range(14):
        with pytest.raises(Busy):
            await world.deferred.end_transaction(
                TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000
            )
    assert len(world.deferred._due) == 1
    for number in range(1, 16):
        world.now_ms += 1000
        for _ in range(3):
            await world.look()
        assert [one.checks for one in world.asked] == list(range(1, number + 1))
    world.refuses = None
    world.now_ms += 1000
    await world.look()
    assert len(world.asked) == 15 and not world.state.deferred, "given up"
    world.deferred.stop()


@pytest.mark.parametrize(("size", "most"), [(1, MAX_WOKEN), (LARGE_BYTES, 1)])
async def test_questions_about_many_half_messages_leave_turns_of_the_loop_to_others(
    size: int, most: int
) -> None:
    """The log has a hundred checks at once, and each question copies its message."""
    world, turns, loop = World(), [0], asyncio.get_running_loop()
    asked_in = Counter[int]()
    world.deferred.on_orphan(lambda half: asked_in.update([turns[0]]))
    for _ in range(50):
        await world.deferred.half(
            DeferRequest(TOPIC, OutgoingMessage(bytes(size)), "", timeout_ms=1000), "p", 0
        )

    def next_turn() -> None:
        turns[0] += 1
        loop.call_soon(next_turn)

    next_turn()
    world.now_ms += 1000
    await world.look()
    await until(lambda: asked_in.total() == 50)
    assert max(asked_in.values()) <= most
    world.deferred.stop()


async def test_one_check_of_a_half_message_is_under_way_at_a_time() -> None:
    world = World()
    half = await world.half()
    under_way: list[PutRequest] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    world.now_ms += 1000
    await world.look()
    world.settle, world.refuses = settle, EndDeferred  # type: ignore[method-assign]
    with pytest.raises(Busy):
        await world.deferred.end_transaction(
            TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000
        )
    world.now_ms += 5000
    await world.look()
    assert [type(one) for one in world.elements] == [Defer]
    world.settle(under_way[0])
    await asyncio.sleep(0)
    world.now_ms += 1000
    await world.look()
    assert [type(one) for one in world.elements] == [Defer, RecordCheck, RecordCheck]
    world.deferred.stop()


async def test_so_many_that_are_due_at_once_are_met_in_many_steps() -> None:
    world = World()
    for _ in range(module._PROCESSED * 3 + 1):
        await world.half()
    count, world.submitted = world.submitted, 0
    world.now_ms += 1000
    for step in range(1, 5):
        world.deferred._process_due()
        assert world.submitted == min(step * module._PROCESSED, count)
    world.deferred.stop()


async def test_those_that_have_gone_before_they_were_due_are_looked_at_in_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_EXAMINED", 2)
    world = World()
    for number in range(5):
        world.deferred._due.put(number, START)
    left = []
    for _ in range(3):
        world.deferred._process_due()
        left.append(len(world.deferred._due))
    assert left == [3, 1, 0]
    world.deferred.stop()


async def test_a_new_leadership_lists_what_is_deferred_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(25):
        await world.half()
    world.deferred.stop()
    monkeypatch.setattr(module, "_EXAMINED", 10)
    world.deferred.start()
    listed = []
    for _ in range(3):
        world.deferred._process_due()
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
    under_way: list[PutRequest] = []
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
    world.refuses = EndDeferred
    world.now_ms += 1000
    await world.look()
    assert len(world.state.deferred) == 1
    world.refuses = None
    world.now_ms += 1000
    await world.look()
    assert not world.state.deferred
    world.deferred.stop()


async def test_a_delayed_message_whose_end_was_refused_is_moved_later() -> None:
    world = World()
    await delayed(world, 2)
    world.refuses = EndDeferred
    world.now_ms += 1000
    world.deferred._process_due()
    await until(lambda: world.deferred._moving is None and not world.deferred._ending)
    assert len(world.state.deferred) == 2
    world.refuses = None
    world.now_ms += 1000
    world.deferred._process_due()
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_a_message_is_moved_when_time_steps_over_a_stop_while_it_is_waited_for() -> None:
    world, night_ms = World(), 8 * 3_600_000
    put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", timeout_ms=1000)
    await world.deferred.delay(put, world.now_ms + night_ms, 0)
    await until(lambda: world.deferred._listing is None and world.deferred._listed[0] > world.now_ms)
    world.now_ms += night_ms
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_a_message_comes_into_a_queue_that_there_is_and_not_behind_the_end_of_its_topic() -> None:
    class Fewer(AnyTopic):
        def fitting_queue(self, topic: str, queue_id: int) -> int:
            return queue_id % 2

    world = World()
    world.topics = Fewer()
    put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", 3, timeout_ms=1000)
    await world.deferred.delay(put, world.now_ms + 1000, 0)
    moves: list[PutRequest] = []
    world.settle = moves.append  # type: ignore[method-assign,assignment]
    world.now_ms += 1000
    world.deferred._process_due()
    await until(lambda: len(moves) == 1)
    assert [one.queue_id for one in moves[0].queued] == [1]
    is_due = moves[0].is_due
    assert is_due is not None and is_due()
    world.state.topic_cut("t")
    assert not is_due(), "the topic may be another one of its name by now"
    world.deferred.stop()


async def test_a_message_that_is_due_when_the_list_ends_is_watched() -> None:
    """The list goes on behind it: no later one has it."""
    world = World()
    await world.look()
    await until(lambda: world.deferred._listing is None)
    last_ms = world.deferred._watched_until_ms
    assert last_ms > world.now_ms
    put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", timeout_ms=1000)
    await world.deferred.delay(put, last_ms, 0)
    world.now_ms = last_ms
    world.deferred._process_due()
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_what_is_listed_anew_while_a_page_is_read_begins_with_what_is_due_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    world, pages, run = World(), 0, World.run
    await delayed(world, 6)
    world.deferred.stop()

    async def anew(work: Callable[[], Any], name: str) -> Any:
        nonlocal pages
        rows = await run(world, work, name)
        pages += 1
        if pages == 2:  # as when too many new ones have come meanwhile
            world.deferred._restart_listing()
        return rows

    monkeypatch.setattr(world.deferred, "_run", anew)
    world.deferred.start()
    await until(lambda: pages > 2 and world.deferred._listing is None)
    assert len(world.deferred._due) == 6
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
    await until(lambda: not world.state.deferred)
    assert [one.sys_flag for one in world.outgoing] == [COMPRESSED]
    world.deferred.stop()


async def test_what_was_taken_in_or_refused_leaves_room_for_the_next() -> None:
    world = World(max_held_bytes=2000)
    for _ in range(20):
        half = await world.half()
        await world.deferred.end_transaction(
            TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000
        )
        world.refuses = Defer
        with pytest.raises(Busy, match="no room"):
            await world.half()
        world.refuses = None
    assert world.state.deferred.bytes == 0
    world.deferred.stop()


async def test_what_is_on_its_way_into_the_state_takes_room_too() -> None:
    """Else as many as come at once, of whatever size, would be taken."""
    world = World(max_held_bytes=8000)
    taken = await asyncio.gather(*(world.half() for _ in range(100)), return_exceptions=True)
    refused = [one for one in taken if isinstance(one, Busy)]
    assert {one.status for one in refused} == {Status.TOO_MANY_HELD_MESSAGES}
    assert 0 < world.state.deferred.bytes <= 6000, "an address alone has three quarters"
    assert len(refused) == 100 - len(world.state.deferred)
    world.deferred.stop()


async def test_names_of_topics_and_clients_take_memory_as_long_as_messages_wait_for_them() -> None:
    world = World()
    for number in range(50):
        due_ms = world.now_ms + 1000
        topic = TopicConfig(f"t{number}", 1, 1)
        message, host = OutgoingMessage(b"x"), f"10.0.0.{number}:1"
        delayed = await world.deferred.delay(DeferRequest(topic, message, "", -1, host, 1000), due_ms, 0)
        await world.deferred.recall(topic.name, delayed.recall_handle, 1000)
    deferred = world.state.deferred
    assert not deferred and not deferred._rows_of and not deferred._delayed_of
    world.deferred.stop()


#: Their checksums, which stand in transaction ids, are the same.
ALIKE = ("orders-29685295", "orders-32060020")


async def test_the_end_of_a_transaction_is_told_in_its_own_topic_only() -> None:
    world = World()
    half = await world.half(TopicConfig(ALIKE[0], 1, 1))
    await world.deferred.end_transaction(
        TransactionEnd(ALIKE[0], half.transaction_id, Resolution.ROLLBACK), 1000
    )
    await world.deferred.end_transaction(
        TransactionEnd(ALIKE[0], half.transaction_id, Resolution.ROLLBACK), 1000
    )  # repeated
    for resolution in Resolution:
        with pytest.raises(ReadFailed) as error:
            await world.deferred.end_transaction(
                TransactionEnd(ALIKE[1], half.transaction_id, resolution), 1000
            )
        assert error.value.status is Status.TRANSACTION_UNKNOWN and "ROLLED_BACK" not in str(error.value)
    world.deferred.stop()


async def test_the_end_of_a_delayed_message_is_not_told_as_that_of_a_transaction() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", timeout_ms=1000)
    delayed = await world.deferred.delay(put, due_ms, 0)
    await world.deferred.recall("t", delayed.recall_handle, 1000)
    with pytest.raises(ReadFailed) as error:
        await world.deferred.end_transaction(
            TransactionEnd("t", delayed.recall_handle, Resolution.UNKNOWN), 1000
        )
    assert error.value.status is Status.TRANSACTION_UNKNOWN and "RECALLED" not in str(error.value)
    world.deferred.stop()


async def test_the_ends_of_transactions_go_with_their_topic() -> None:
    world = World()
    half = await world.half()
    await world.deferred.end_transaction(TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000)
    world.state.topic_cut("other")
    await world.deferred.end_transaction(TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000)
    world.state.topic_cut("t")
    with pytest.raises(ReadFailed, match="unknown"):
        await world.deferred.end_transaction(
            TransactionEnd("t", half.transaction_id, Resolution.ROLLBACK), 1000
        )
    world.deferred.stop()


async def test_delayed_messages_are_read_from_the_log_when_they_are_due_and_many_at_once() -> None:
    world = World()
    await delayed(world, 30, 5000)
    assert all(not one.command for one in world.state.deferred.values())
    assert world.state.deferred.first_pos() == 1000 and world.state.deferred.bytes < 30 * 500
    await world.look()
    assert not world.reads
    world.now_ms += 1000
    await world.look()
    await until(lambda: not world.state.deferred)
    assert [len(places) for places in world.reads] == [30]
    assert world.state.deferred.first_pos() is None
    world.deferred.stop()


async def test_no_more_of_delayed_messages_is_in_memory_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOVING_BYTES", 20_000)
    world = World()
    await delayed(world, 30, 5000)
    world.now_ms += 1000
    under_way: list[PutRequest] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    world.records = lambda topic, queue_id, messages, **_: SimpleNamespace(  # type: ignore[method-assign]
        topic=topic, queue_id=queue_id, batch=SimpleNamespace(sizes=[len(one.body) for one in messages])
    )
    for _ in range(10):
        await world.look()
    assert [len(places) for places in world.reads] == [4]
    world.settle = settle  # type: ignore[method-assign]
    for request in under_way:
        settle(request)
    await until(lambda: not world.state.deferred)
    assert max(map(len, world.reads)) == 4 and len(world.reads) == 8
    world.deferred.stop()


async def test_a_delayed_message_that_cannot_be_read_holds_up_no_other() -> None:
    world = World()
    handles = await delayed(world, 5)
    world.unreadable.add(3000)
    world.now_ms += 1000
    await world.look()
    await until(lambda: len(world.state.deferred) == 1)
    with pytest.raises(ReadFailed) as error:
        await world.deferred.recall("t", handles[2], 1000)
    assert error.value.status is Status.BEING_REPAIRED
    reads = len(world.reads)
    await world.look()
    assert len(world.reads) == reads
    world.unreadable.clear()
    world.now_ms += 60_000
    await world.look()
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_a_recall_that_reads_while_the_message_becomes_due_is_too_late() -> None:
    world = World()
    (handle,) = await delayed(world, 1)
    await until(lambda: len(world.deferred._due) == 1)
    world.now_ms += 1000
    world.deferred._process_due()
    recalling = asyncio.ensure_future(world.deferred.recall("t", handle, 1000))
    with pytest.raises(ReadFailed) as error:
        await recalling
    assert error.value.status is Status.DELAYED_UNKNOWN
    assert [one.ending for one in world.elements if isinstance(one, EndDeferred)] == [Ending.MOVED]
    world.deferred.stop()


async def test_a_message_that_was_taken_in_before_the_log_was_read_is_moved_from_memory() -> None:
    world = World()
    world.deferred.stop()
    defer = Defer(DeferredKind.DELAYED, "t", 0, START, b"", "", "", 0, 0, START, b"", "", b"x")
    world.index = 1
    world.state.apply(1, START, encode([defer], ID))
    assert world.state.deferred.first_pos() is None
    world.deferred.start()
    await until(lambda: not world.state.deferred)
    assert [one.body for one in world.outgoing] == [b"x"] and not world.reads
    world.deferred.stop()


async def test_no_time_is_further_away_than_the_longest() -> None:
    world = World()
    most = DeliverySettings().max_delay_ms
    assert most == 40 * 24 * 3_600_000
    put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", timeout_ms=1000)
    with pytest.raises(IllegalMessage) as refused:
        await world.deferred.delay(put, START + most + 1, 0)
    assert refused.value.status is Status.DELAY_TOO_LONG
    with pytest.raises(IllegalMessage) as refused:
        await world.deferred.half(put, "p", most + 1)
    assert refused.value.status is Status.DELAY_TOO_LONG
    await world.deferred.delay(put, START + most, 0)
    await world.deferred.half(put, "p", most)
    assert len(world.state.deferred) == 2
    world.deferred.stop()


@pytest.mark.parametrize("ending", [Resolution.COMMIT, Resolution.ROLLBACK])
async def test_a_transaction_that_has_ended_does_not_end_otherwise(ending: Resolution) -> None:
    world = World()
    half = await world.half()
    other = Resolution.COMMIT if ending is Resolution.ROLLBACK else Resolution.ROLLBACK
    for resolution in (ending, ending, Resolution.UNKNOWN):
        await world.deferred.end_transaction(TransactionEnd("t", half.transaction_id, resolution), 1000)
    with pytest.raises(ReadFailed) as refused:
        await world.deferred.end_transaction(TransactionEnd("t", half.transaction_id, other), 1000)
    assert refused.value.status is Status.TRANSACTION_UNKNOWN
    world.deferred.stop()


async def test_what_comes_in_while_all_are_listed_anew_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list may be behind it already."""
    monkeypatch.setattr(module, "_PAGE", 2)
    world, pages, run = World(), 0, World.run
    await delayed(world, 6)
    world.deferred.stop()

    async def anew(work: Callable[[], Any], name: str) -> Any:
        nonlocal pages
        rows = await run(world, work, name)
        pages += 1
        if pages == 2:
            world.deferred._restart_listing()
        elif pages == 4:
            put = DeferRequest(TOPIC, OutgoingMessage(b"x"), "", timeout_ms=1000)
            await world.deferred.delay(put, START + 500, 0)
        return rows

    monkeypatch.setattr(world.deferred, "_run", anew)
    world.deferred.start()
    await until(lambda: pages > 4 and world.deferred._listing is None)
    assert len(world.deferred._due) == 7
    world.deferred.stop()


async def test_what_was_on_its_way_under_the_leadership_before_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await delayed(world, 1)
    world.records = lambda topic, queue_id, messages, **_: SimpleNamespace(  # type: ignore[method-assign]
        topic=topic, queue_id=queue_id, batch=SimpleNamespace(sizes=[len(one.body) for one in messages])
    )
    under_way: list[PutRequest] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    world.now_ms += 1000
    world.deferred._process_due()
    await until(lambda: len(under_way) == 1)
    monkeypatch.setattr(module, "_MOVING_BYTES", 1)
    assert world.deferred._is_full()
    world.deferred.stop()
    world.settle = settle  # type: ignore[method-assign]
    world.deferred.start()
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_a_list_that_failed_is_made_again() -> None:
    world, run, failed = World(), World.run, 0
    await delayed(world, 3)
    world.deferred.stop()

    async def failing(work: Callable[[], Any], name: str) -> Any:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise OSError("the disk")
        return await run(world, work, name)

    world.deferred._run = failing
    world.deferred.start()
    await until(lambda: failed == 1 and world.deferred._listing is None)
    assert not world.deferred._due
    world.now_ms += 1000
    world.deferred._arm()
    await until(lambda: not world.state.deferred)
    world.deferred.stop()


async def test_the_next_check_of_a_half_message_is_as_late_as_it_is_to_be() -> None:
    world = World()
    await world.half()
    (number,) = world.state.deferred
    world.apply([RecordCheck(number, START + 60_000)])
    assert (world.state.deferred[number].due_ms, world.state.deferred[number].checks) == (START + 60_000, 1)
    world.deferred.stop()
