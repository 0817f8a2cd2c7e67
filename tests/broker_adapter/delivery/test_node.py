"""Delivery on a real node, through the log and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import (
    PERM_READ,
    PERM_WRITE,
    GroupConfig,
    OutgoingMessage,
    QueueOffset,
    TopicConfig,
)
from broker_adapter.delivery.api import AckStatus, Delivery, Filter
from broker_adapter.delivery_state.commands import Defer, DeferredKind
from broker_adapter.delivery_state.deferred_messages import DeferredMessage
from broker_adapter.delivery_state.handles import deferred_handle
from broker_adapter.errors import (
    Busy,
    IllegalMessage,
    PutIndeterminate,
    PutRefused,
    ReadFailed,
    Status,
    TopicRefused,
)
from broker_adapter.put.sender import PutResult
from broker_adapter.scheduled.deferred_delivery import DeferredDelivery
from broker_adapter.scheduled.deferring import OrphanedHalf, Resolution, StoredDelayed, StoredHalf
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import MAX_PROPERTIES_BYTES, split_properties
from tests.broker_adapter.cluster import brokers, in_step
from tests.broker_adapter.sending import send_to
from tests.node.local import until


def message(text: str, **properties: str) -> OutgoingMessage:
    return OutgoingMessage(text.encode(), properties)


async def test_what_was_sent_is_received_and_acknowledged_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        sent = await asyncio.gather(
            *[send_to(program, "t", message(f"m{i}"), message_id=f"id{i}") for i in range(50)]
        )
        assert len({(one.queue_id, one.queue_offset) for one in sent}) == 50
        again = await send_to(program, "t", message("m7"), message_id="id7")
        assert again[:3] == PutResult(sent[7].queue_id, sent[7].queue_offset, True)[:3]
        at_once = [send_to(program, "u", message("x"), message_id="same") for _ in range(5)]
        same = await asyncio.gather(*at_once)
        assert [one.is_repeated for one in same] == [False, True, True, True, True]
        assert {(one.queue_id, one.queue_offset) for one in same} == {(same[0].queue_id, 0)}
        bodies: list[bytes] = []
        while len(bodies) < 50:
            found = await delivery.receive("g", "t", client_id="c", invisible_ms=30_000, wait_ms=2000)
            bodies += [decode(one.record).body for one in found]
            statuses = await delivery.ack("g", "t", [one.handle for one in found])
            assert statuses == [AckStatus.OK] * len(found)
            assert await delivery.ack("g", "t", [found[0].handle, "?"]) == [AckStatus.INVALID_HANDLE] * 2
        assert sorted(bodies) == sorted(b"m%d" % i for i in range(50))
        assert await delivery.receive("g", "t", client_id="c", wait_ms=1) == []


async def test_what_a_topic_permits_holds_for_messages_one_by_one(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        written, read = TopicConfig("written", 1, 1, PERM_WRITE), TopicConfig("read", 1, 1, PERM_READ)
        for config in (written, read):
            await program.broker.put_topic(config)
        delivery = program.delivery
        await send_to(program, "written", message("a"), message_id="", config=written)
        for known in (None, read):  # by the door that has looked it up, too
            with pytest.raises(TopicRefused) as refused:
                await send_to(program, "read", message("a"), message_id="", config=known)
            assert refused.value.status is Status.TOPIC_NOT_WRITABLE
        with pytest.raises(TopicRefused) as refused:
            await delivery.receive("g", "written", client_id="c")
        assert refused.value.status is Status.TOPIC_NOT_READABLE
        assert await delivery.receive("g", "read", client_id="c") == []


async def test_the_offset_of_a_group_is_the_greater_of_both_ways_to_consume(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g"))
        await send(program, "a", "b", "c")
        receive = partial(program.delivery.receive, "g", "t", client_id="c", invisible_ms=60_000)
        given = await receive(wait_ms=20_000)
        await program.broker.commit_offsets("g", [QueueOffset("t", 0, 2)])
        assert await program.broker.offset("g", "t", 0) == 2
        await program.delivery.ack("g", "t", [one.handle for one in given])
        assert await program.broker.offset("g", "t", 0) == 3
        assert await program.broker.offsets("g") == [QueueOffset("t", 0, 3)]


async def test_an_id_is_stored_once_and_each_handle_has_a_status_of_its_own(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        first = await send_to(program, "t", message("first"), message_id="first")  # which makes the topic
        again = await send_to(program, "t", message("first"), message_id="first")
        assert again[:3] == first._replace(is_repeated=True)[:3]
        sent = await send_to(program, "t", message("m"), message_id="m", queue_id=first.queue_id)
        assert sent[:2] == (first.queue_id, first.queue_offset + 1)
        found = await delivery.receive("g", "t", client_id="c", invisible_ms=30_000, wait_ms=60_000)
        while len(found) < 2:
            found += await delivery.receive("g", "t", client_id="c", invisible_ms=30_000, wait_ms=60_000)
        assert await delivery.ack("g", "t", ["?"]) == [AckStatus.INVALID_HANDLE]
        handles = [found[0].handle, "?", found[1].handle]
        acked = await delivery.ack("g", "t", handles, timeout_ms=60_000)
        assert acked == [AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.OK]
        assert await delivery.ack("g", "t", handles) == [AckStatus.INVALID_HANDLE] * 3


async def test_an_ack_is_waited_for_no_longer_than_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", message("x"), message_id="x")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=30_000, wait_ms=60_000)
        monkeypatch.setattr(delivery._committer, "submit", lambda request: None)
        with pytest.raises(PutIndeterminate):
            await delivery.ack("g", "t", [one.handle], timeout_ms=1)


async def test_a_waiting_receive_is_woken_by_a_send_and_by_a_time_that_is_over(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", message("first"), message_id="1")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=20_000)
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        handle = await delivery.change_invisible("g", "t", one.handle, 50)
        (again,) = await waiting
        assert again.attempt == 2
        with pytest.raises(ReadFailed) as refused:
            await delivery.change_invisible("g", "t", handle, 50)
        assert refused.value.status is Status.HANDLE_INVALID
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        await send_to(program, "t", message("second"), message_id="2")
        assert [decode(found.record).body for found in await waiting] == [b"second"]


async def test_a_receive_that_is_woken_and_goes_wakes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", message("first"), message_id="1")
        await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=20_000)
        receive = partial(delivery.receive, "g", "t", client_id="c", wait_ms=50_000)
        first, second = asyncio.create_task(receive()), asyncio.create_task(receive())
        await until(lambda: delivery.figures().waiting_receives == 2)
        arrived = delivery._receive_queues.arrived

        def arrived_and_gone(topics: Iterable[str]) -> None:
            arrived(topics)
            first.cancel()

        monkeypatch.setattr(delivery._receive_queues, "arrived", arrived_and_gone)
        await send_to(program, "t", message("second"), message_id="2")
        async with asyncio.timeout(20):
            assert bodies(await second) == ["second"]
        assert first.cancelled()


async def test_a_receive_that_ends_without_messages_leaves_times_to_the_next_one(tmp_path: Path) -> None:
    """The first of them is woken by another time, and waits for it no longer than it may."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", message("a"), message_id="a")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=20_000)
        receive = partial(delivery.receive, "g", "t", client_id="c")
        first = asyncio.create_task(receive(wait_ms=2_000))
        second = asyncio.create_task(receive(wait_ms=50_000))
        await until(lambda: delivery.figures().waiting_receives == 2)
        await delivery.change_invisible("g", "t", one.handle, 8_000)
        assert await first == []
        async with asyncio.timeout(20):
            assert bodies(await second) == ["a"]


async def test_delays_and_halves_come_into_their_queues_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        asked: list[OrphanedHalf] = []
        heard = asyncio.Event()

        def ask(half: OrphanedHalf) -> None:
            asked.append(half)
            heard.set()

        delivery.on_orphan(ask)
        now = program.node.cluster_time_ms()
        delayed = await delivery.send_delayed("t", message("d"), message_id="d", deliver_at_ms=now + 200)
        assert await delivery.send_delayed(
            "t", message("d"), message_id="d", deliver_at_ms=now + 200
        ) == StoredDelayed(delayed.recall_handle, True)
        other = await delivery.send_delayed("t", message("r"), message_id="r", deliver_at_ms=now + 60_000)
        assert await delivery.recall("t", other.recall_handle) == "r"
        with pytest.raises(ReadFailed):
            await delivery.recall("t", other.recall_handle)
        half = await delivery.send_half("t", message("h"), message_id="h", client_id="p", check_after_ms=50)
        assert isinstance(half, StoredHalf)
        (found,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=60_000)
        assert decode(found.record).body == b"d"
        await asyncio.wait_for(heard.wait(), 20)
        assert (asked[0].transaction_id, asked[0].client_id) == (half.transaction_id, "p")
        assert decode(asked[0].record).body == b"h"
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        with pytest.raises(ReadFailed):
            await delivery.end_transaction("t", half.transaction_id, Resolution.ROLLBACK)
        (found,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=60_000)
        assert decode(found.record).body == b"h"
        properties = split_properties(decode(found.record).properties)
        assert properties["__transactionId__"] == half.transaction_id
        assert await delivery.receive("g", "t", client_id="c", wait_ms=1) == []


async def test_nobody_ends_what_is_held_for_another_topic(tmp_path: Path) -> None:
    """A handle is easily made up, and who may send to one topic may not to all."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        due_ms = program.node.cluster_time_ms() + 60_000
        await delivery.send_delayed("t", message("d"), message_id="d", deliver_at_ms=due_ms)
        half = await delivery.send_half("t", message("h"), message_id="h", client_id="p")
        kinds = {one.kind: number for number, one in program.delivery_state.deferred.items()}
        with pytest.raises(ReadFailed):
            await delivery.recall("u", deferred_handle("u", kinds[DeferredKind.DELAYED]))
        made_up = deferred_handle("u", kinds[DeferredKind.HALF])
        for resolution in Resolution:
            with pytest.raises(ReadFailed):
                await delivery.end_transaction("u", made_up, resolution)
        assert len(program.delivery_state.deferred) == 2
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)


async def test_a_delayed_message_that_was_in_doubt_comes_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append is committed after who asked was told that nobody knows."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t"))
        put, appends = program.writer.put_together, []

        async def put_later(*what: Any, **more: Any) -> list[int]:
            monkeypatch.undo()
            appends.append(asyncio.create_task(put(*what, **more)))
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, "not known yet")

        monkeypatch.setattr(program.writer, "put_together", put_later)
        at_ms = time.time_ns() // 1_000_000 + 200
        send = partial(program.delivery.send_delayed, "t", message("d"), message_id="d", deliver_at_ms=at_ms)
        with pytest.raises(PutIndeterminate):
            await send()
        assert (await send()).is_repeated
        found = await program.delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert bodies(found) == ["d"]
        await asyncio.gather(*appends)


async def test_a_mistake_with_one_delayed_message_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet, mistakes, found = DeferredDelivery._process, 0, list[str]()

    def fail_while_others_come(
        self: DeferredDelivery, deferred_id: int, held: DeferredMessage, now_ms: int, defer: Defer | None
    ) -> None:
        nonlocal mistakes
        if defer is not None and defer.body == b"poison" and (mistakes < 2 or len(found) < 2):
            mistakes += 1
            raise ZeroDivisionError("a mistake")
        meet(self, deferred_id, held, now_ms, defer)

    monkeypatch.setattr(DeferredDelivery, "_process", fail_while_others_come)
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        now = time.time_ns() // 1_000_000
        for text in ("poison", "d1", "d2"):
            await delivery.send_delayed("t", message(text), message_id=text, deliver_at_ms=now + 100)
        while len(found) < 3:
            found += bodies(await delivery.receive("g", "t", client_id="c", wait_ms=30_000))
        assert sorted(found) == ["d1", "d2", "poison"] and mistakes >= 2
        assert found[-1] == "poison"


async def test_what_was_given_too_often_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await program.broker.put_group(GroupConfig("g", retry_max_times=1))
        await send_to(program, "t", message("x", colour="red"), message_id="x")
        for attempt in (1, 2):
            (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=20, wait_ms=60_000)
            assert one.attempt == attempt
        assert await delivery.receive("g", "t", client_id="c", invisible_ms=20, wait_ms=300) == []
        (dead,) = await delivery.receive("other", "%DLQ%g", client_id="c", wait_ms=60_000)
        properties = split_properties(decode(dead.record).properties)
        assert properties["DLQ_ORIGIN_TOPIC"] == "t"
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == "x"
        assert properties["colour"] == "red"
        offsets = await program.broker.offsets("g")
        assert [one.offset for one in offsets if one.topic == "t"].count(1) == 1


async def test_a_dead_letter_without_room_says_less_of_where_it_comes_from(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await program.broker.put_group(GroupConfig("g", retry_max_times=0, consume_orderly=True))
        full = "x" * (MAX_PROPERTIES_BYTES - len("full12") - len("DLQ_ORIGIN_TOPIC1t2"))
        await send_to(program, "t", [message("a", full=full), message("b")], queue_id=0)
        await in_step(program)
        receive = partial(delivery.receive, "g", "t", client_id="c", max_messages=1, wait_ms=20_000)
        (one,) = await receive(invisible_ms=1)
        await until(lambda: program.node.cluster_time_ms() > one.invisible_until_ms)
        assert bodies(await receive(invisible_ms=60_000)) == ["b"]
        (dead,) = await delivery.receive("other", "%DLQ%g", client_id="c", wait_ms=20_000)
        properties = split_properties(decode(dead.record).properties)
        assert properties == {"full": full, "DLQ_ORIGIN_TOPIC": "t"}


@pytest.mark.parametrize("way", ["is refused", "outlives its client"])
async def test_a_move_to_the_dead_letters_that_ends_early_keeps_nothing_back(
    tmp_path: Path, way: str
) -> None:
    """Of several queues: all that was to be moved is moved by then, or free to be moved later."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        letters = delivery._dead_letters
        make, asked, may_go = letters._make_topic, asyncio.Event(), asyncio.Event()

        async def refuse_or_wait(topic: str) -> None:
            letters._make_topic = make
            asked.set()
            await may_go.wait()
            raise Busy(Status.TOO_MANY_PROPOSALS, "try again")

        await program.broker.put_group(GroupConfig("g", retry_max_times=0, consume_orderly=True))
        await program.broker.put_topic(TopicConfig("t", 3, 3))
        for queue_id in range(3):
            await send_to(program, "t", message(f"{queue_id}"), message_id=f"{queue_id}", queue_id=queue_id)
        given: list[Delivery] = []
        while len(given) < 3:
            given += await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=60_000)
        for one in given:
            await delivery.change_invisible("g", "t", one.handle, 1)
        changed_ms = program.node.cluster_time_ms()
        await until(lambda: program.node.cluster_time_ms() > changed_ms + 1)

        letters._make_topic = refuse_or_wait
        burying = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=1))
        await asked.wait()
        if way == "outlives its client":
            burying.cancel()
        may_go.set()
        await asyncio.gather(burying, return_exceptions=True)

        await until(lambda: program.metadata.topic("%DLQ%g") is not None)
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < 3:
                with suppress(Busy):
                    assert await delivery.receive("g", "t", client_id="c", wait_ms=1) == []
                found += bodies(await delivery.receive("other", "%DLQ%g", client_id="c", wait_ms=50))
        assert sorted(found) == ["0", "1", "2"]


def bodies(found: list[Delivery]) -> list[str]:
    return [decode(one.record).body.decode() for one in found]


async def send(program: BrokerProgram, *texts: str, **properties: str) -> None:
    """Into queue 0, one after the other, until they can be received."""
    for text in texts:
        await send_to(program, "t", message(text, **properties), message_id=text, queue_id=0)
    await in_step(program)


async def test_an_orderly_group_gets_nothing_more_of_a_queue_while_something_is_held(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await program.broker.put_group(GroupConfig("g", consume_orderly=True))
        await send(program, "a", "b", "c", "d")
        first = await delivery.receive(
            "g", "t", client_id="c", max_messages=2, invisible_ms=60_000, attempt_id="one"
        )
        assert bodies(first) == ["a", "b"]
        assert await delivery.receive("g", "t", client_id="d", invisible_ms=60_000, attempt_id="two") == []
        again = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, attempt_id="one")
        assert (bodies(again), [one.attempt for one in again]) == (["a", "b"], [1, 1])
        assert await delivery.ack("g", "t", [first[0].handle]) == [AckStatus.INVALID_HANDLE]
        waiting = asyncio.create_task(
            delivery.receive("g", "t", client_id="d", max_messages=9, invisible_ms=60_000, wait_ms=20_000)
        )
        assert await delivery.ack("g", "t", [again[1].handle]) == [AckStatus.OK]
        await delivery.change_invisible("g", "t", again[0].handle, 0)
        rest = await waiting
        assert (bodies(rest), [one.attempt for one in rest]) == (["a", "c", "d"], [2, 1, 1])
        other = await delivery.receive("h", "t", client_id="c", max_messages=9, invisible_ms=60_000)
        assert bodies(other) == ["a", "b", "c", "d"]


async def test_what_a_filter_does_not_want_is_passed_over(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a", TAGS="red")
        await send(program, "b", TAGS="blue", size="1")
        await send(program, "c", TAGS="blue", size="2")
        await send(program, "d")
        wanted = Filter(frozenset(("blue",)), lambda properties: properties["size"] == "2")
        (one,) = await delivery.receive("g", "t", client_id="c", wanted=wanted, invisible_ms=60_000)
        assert bodies([one]) == ["c"]
        assert await program.broker.offsets("g") == [QueueOffset("t", 0, 2)]
        assert await delivery.ack("g", "t", [one.handle]) == [AckStatus.OK]
        assert await delivery.receive("g", "t", client_id="c") == []
        other = await delivery.receive("h", "t", client_id="c", invisible_ms=60_000)
        assert bodies(other) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("attempt_id", ["", "the same call once more"])
async def test_what_reached_nobody_is_no_attempt(tmp_path: Path, attempt_id: str) -> None:
    """A client goes while its receive waits, or while what it gets is on its way into the log."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        receive = partial(
            program.delivery.receive, "g", "t", invisible_ms=60_000, wait_ms=20_000, attempt_id=attempt_id
        )
        await send(program, "a")
        for _ in range(3):
            task = asyncio.create_task(receive(client_id="gone"))
            while not task.done() and program.delivery.figures().pending == 0:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (one,) = await receive(client_id="c")
        assert (bodies([one]), one.attempt) == (["a"], 1)


async def test_resetting_a_group_gives_everything_again_and_makes_the_handles_void(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a", "b")
        first = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        await delivery.ack("g", "t", [first[0].handle])
        await program.broker.reset_offsets("g", [QueueOffset("t", 0, 0)])
        # Both are done as far as the consumer knows, and neither acknowledgement undoes the reset.
        old = [one.handle for one in first]
        assert await delivery.ack("g", "t", old) == [AckStatus.OK] * 2
        again = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        assert bodies(again) == ["a", "b"]
        assert await delivery.ack("g", "t", old) == [AckStatus.OK] * 2
        new = [one.handle for one in again]
        assert await delivery.ack("g", "t", new) == [AckStatus.OK] * 2
        assert await delivery.ack("g", "t", new) == [AckStatus.INVALID_HANDLE] * 2
        await program.broker.delete_group("g")
        assert delivery.figures().pending == 0


async def test_a_receive_that_waits_goes_by_a_reset_of_what_the_group_was_never_given(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_group(GroupConfig("g"))
        await send(program, "a", "b")
        await program.broker.reset_offsets("g", [QueueOffset("t", 0, 2)])
        receive = partial(program.delivery.receive, "g", "t", client_id="c", invisible_ms=60_000)
        waiting = asyncio.create_task(receive(wait_ms=20_000))
        await until(lambda: program.delivery.figures().waiting_receives == 1)
        await program.broker.reset_offsets("g", [QueueOffset("t", 0, 0)])
        await send(program, "c")
        found = await waiting
        assert bodies(found + await receive()) == ["a", "b", "c"]


async def test_limits_have_numbers(tmp_path: Path) -> None:
    limits = {"max_pending_per_queue": 2, "max_held_bytes": 200, "max_delay_ms": 1000}
    async with brokers(tmp_path, 1, {"delivery": limits}) as cluster:
        program = await cluster.master()
        delivery, now = program.delivery, program.node.cluster_time_ms()
        await send(program, "a", "b", "c")
        found = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        assert bodies(found) == ["a", "b"]
        assert await delivery.receive("g", "t", client_id="c", invisible_ms=60_000) == []
        assert delivery.figures().refused_fresh > 0
        await delivery.ack("g", "t", [found[0].handle])
        again = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=20_000)
        assert bodies(again) == ["c"]
        with pytest.raises(IllegalMessage) as too_long:
            await delivery.send_delayed("t", message("d"), message_id="d", deliver_at_ms=now + 99_000)
        assert too_long.value.status is Status.DELAY_TOO_LONG
        with pytest.raises(Busy) as too_many:
            await delivery.send_half("t", message("h" * 200), message_id="h", client_id="c")
        assert too_many.value.status is Status.TOO_MANY_HELD_MESSAGES


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (message("h" * 2001), Status.BODY_TOO_LARGE),
        # Room for itself, and none for the id of its transaction.
        (message("h", full="x" * (MAX_PROPERTIES_BYTES - 40)), Status.PROPERTIES_TOO_LONG),
        (message("h")._replace(born_timestamp=1 << 63), Status.FIELD_OUT_OF_RANGE),
    ],
)
async def test_what_no_queue_could_take_later_is_refused_at_once(
    tmp_path: Path, given: OutgoingMessage, status: Status
) -> None:
    async with brokers(tmp_path, 1, settings={"max_body_bytes": 2000}) as cluster:
        delivery = (await cluster.master()).delivery
        with pytest.raises(IllegalMessage) as refused:
            await delivery.send_half("t", given, message_id="", client_id="p")
        assert refused.value.status is status
        assert delivery.figures().held_messages == 0


@pytest.mark.parametrize("check_after_ms", [40 * 86_400_000 + 1, 1 << 63])
async def test_a_half_is_asked_about_one_day(tmp_path: Path, check_after_ms: int) -> None:
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        send = partial(delivery.send_half, "t", message("h"), message_id="h", client_id="p")
        with pytest.raises(IllegalMessage) as refused:
            await send(check_after_ms=check_after_ms)
        assert refused.value.status is Status.DELAY_TOO_LONG
        assert not (await send(check_after_ms=40 * 86_400_000)).is_repeated


async def test_what_was_taken_in_is_moved_when_less_is_allowed_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await program.broker.put_group(GroupConfig("g", retry_max_times=0))
        await send(program, "worn out")
        at_ms = time.time_ns() // 1_000_000 + 200
        await delivery.send_delayed("u", message("delayed"), message_id="d", deliver_at_ms=at_ms)
        less = program.writer._limits._replace(max_body_bytes=3)
        monkeypatch.setattr(program.writer, "_limits", less)
        await delivery.receive("g", "t", client_id="c", invisible_ms=1, wait_ms=20_000)
        assert await delivery.receive("g", "t", client_id="c", wait_ms=1000) == []
        for topic, body in (("u", "delayed"), ("%DLQ%g", "worn out")):
            assert bodies(await delivery.receive("h", topic, client_id="c", wait_ms=20_000)) == [body]


async def test_nothing_is_remembered_of_handles_that_are_none(tmp_path: Path) -> None:
    """Whoever makes up names of groups could fill the memory otherwise."""
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        with pytest.raises(ReadFailed) as refused:
            await delivery.dead_letter("made up", "t", "?")
        assert refused.value.status is Status.HANDLE_INVALID
        assert delivery._receive_queues._queues == {}


async def test_delayed_messages_of_one_client_leave_room_for_those_of_others(tmp_path: Path) -> None:
    settings = {"delivery": {"max_delayed": 40}}
    async with brokers(tmp_path, 3, settings=settings) as cluster:
        master = await cluster.master()
        at_ms = time.time_ns() // 1_000_000 + 3_600_000

        async def taken(client: str) -> int:
            delivery, count = (await cluster.master()).delivery, 0
            while True:
                body, name = message("d" * 1000), f"{client}{count}"
                try:
                    await delivery.send_delayed(
                        "t", body, message_id=name, deliver_at_ms=at_ms, born_host=client
                    )
                except Busy as error:
                    assert error.status is Status.TOO_MANY_HELD_MESSAGES
                    return count
                count += 1

        greedy = await taken("10.0.0.1:1")
        assert greedy == 30
        assert await taken("10.0.0.1:2") == 0  # another connection is no other client
        await cluster.stop(next(n for n, p in cluster.programs.items() if p is master))
        assert await taken("10.0.0.1:3") == 0  # the next master knows it, too
        half = await (await cluster.master()).delivery.send_half(
            "t", message("h" * 1000), message_id="h", client_id="c", born_host="10.0.0.2:1"
        )
        assert half.transaction_id
        assert await taken("10.0.0.2:1") >= 4


async def test_what_is_on_its_way_counts_with_what_is_held(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, settings={"delivery": {"max_delayed": 10}}) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", message("x"), message_id="x")
        at_ms = time.time_ns() // 1_000_000 + 60_000
        sends = [
            delivery.send_delayed("t", message("d" * 1000), message_id=f"{i}", deliver_at_ms=at_ms)
            for i in range(50)
        ]
        ends = await asyncio.gather(*sends, return_exceptions=True)
        refused = [one.status for one in ends if isinstance(one, Busy)]
        assert set(refused) == {Status.TOO_MANY_HELD_MESSAGES}
        assert delivery.figures().held_messages == 50 - len(refused) > 0
        assert delivery.figures().held_messages <= 8, "an address alone has three quarters"


async def test_delivery_goes_on_under_another_master(tmp_path: Path) -> None:
    """Handles, ids, delays and transactions of the old one are those of the new one."""
    async with brokers(tmp_path, 3) as cluster:
        old = await cluster.master()
        delivery, now = old.delivery, old.node.cluster_time_ms()
        await send(old, "a", "b", "c")
        found = await delivery.receive("g", "t", client_id="c", invisible_ms=600_000)
        await delivery.ack("g", "t", [found[0].handle])
        half = await delivery.send_half("t", message("half"), message_id="half", client_id="p")
        await delivery.send_delayed("t", message("late"), message_id="late", deliver_at_ms=now + 500)
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=60_000))
        await asyncio.sleep(0)
        await cluster.stop(old.config.node_id)
        with pytest.raises(PutRefused):
            await waiting
        program = await cluster.master()
        delivery = program.delivery
        statuses = await delivery.ack("g", "t", [one.handle for one in found])
        assert statuses == [AckStatus.INVALID_HANDLE, AckStatus.OK, AckStatus.OK]
        again = await send_to(program, "t", message("b"), message_id="b")
        assert again[:3] == PutResult(0, 1, True)[:3]
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        rest: list[str] = []
        while len(rest) < 2:
            found = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=60_000)
            rest += bodies(found)
        assert sorted(rest) == ["half", "late"]


async def test_an_append_that_ends_with_the_leadership_does_not_count_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is begun in the step in which the leadership ends."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery, begin = program.delivery, program.delivery._committer._start_round
        await program.broker.put_group(GroupConfig("g", consume_orderly=True))
        await send(program, "a")
        stopped: list[asyncio.Task[None]] = []

        def begin_and_stop() -> None:
            monkeypatch.undo()
            program.writer.close()
            stopped.append(asyncio.create_task(program.adapter._stop_services()))
            begin()

        monkeypatch.setattr(delivery._committer, "_start_round", begin_and_stop)
        term, role_epoch = program.adapter.term, program.adapter.role_epoch
        with pytest.raises(PutRefused):
            await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        await asyncio.gather(*stopped)
        await program.adapter.change_to_master(term, role_epoch)
        program.adapter.accept_writes(term, role_epoch)
        found = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=60_000)
        assert bodies(found) == ["a"]


async def test_a_receive_ends_when_its_topic_is_deleted_and_a_new_one_begins_anew(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a", "b")
        found = await delivery.receive("g", "t", client_id="c", max_messages=1, invisible_ms=60_000)
        waiting = asyncio.create_task(
            delivery.receive("h", "t", client_id="c", wait_ms=60_000, wanted=Filter(frozenset(("no",))))
        )
        await program.broker.delete_topic("t")
        await send_to(program, "u", message("other"), message_id="u")
        rounds = delivery.figures().rounds
        delivery.wake_all()
        with pytest.raises(TopicRefused):
            await waiting
        assert delivery.figures().rounds - rounds < 3
        assert delivery.figures().pending == 0
        assert await delivery.ack("g", "t", [found[0].handle]) == [AckStatus.INVALID_HANDLE]
        await send(program, "c")
        again = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=20_000)
        assert bodies(again) == ["c"]
