"""Delivery on a real node when things happen in the moment in which they hurt."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery.api import AckStatus, Delivery
from broker_adapter.delivery.receive_queues import ReceiveQueue
from broker_adapter.delivery_state.commands import Pop, PopOutcome, QueueKey
from broker_adapter.delivery_state.queue_state import QueueDelivery
from broker_adapter.errors import Busy, ReadFailed, Status, TopicRefused, error_for
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT
from tests.broker_adapter.cluster import brokers, in_step
from tests.broker_adapter.delivery.test_node import bodies, message, send
from tests.broker_adapter.sending import send_to
from tests.node.local import until


async def dead_letters(program: BrokerProgram) -> list[str]:
    """All that is in the queue of dead letters."""
    await in_step(program)
    with suppress(TopicRefused):
        found = await program.broker.pull("%DLQ%g", 0, 0)
        return [decode(one).body.decode() for one in found.records]
    return []


async def test_a_message_is_acknowledged_or_a_dead_letter_and_never_both(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        moving = asyncio.create_task(delivery.dead_letter("g", "t", one.handle))
        acked = await delivery.ack("g", "t", [one.handle])
        moved = not isinstance((await asyncio.gather(moving, return_exceptions=True))[0], ReadFailed)
        assert moved is not (acked == [AckStatus.OK])
        assert await dead_letters(program) == ["a"] * moved
        # The other way round.
        await send(program, "b")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        await delivery.dead_letter("g", "t", one.handle)
        assert await delivery.ack("g", "t", [one.handle]) == [AckStatus.INVALID_HANDLE]
        assert await dead_letters(program) == [*["a"] * moved, "b"]


async def test_a_dead_letter_that_fails_when_its_client_has_gone_leaves_no_traceback(tmp_path: Path) -> None:
    missed: list[str] = []
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        reads, may_go = asyncio.Event(), asyncio.Event()

        async def record(*_: object) -> bytes:
            reads.set()
            await may_go.wait()
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, "it was purged")

        delivery._receiver.record = record  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: missed.append(context["message"]))
        moving = asyncio.create_task(delivery.dead_letter("g", "t", one.handle))
        await reads.wait()
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        may_go.set()
        reserved = delivery._receive_queues.queue(QueueKey("g", "t", one.queue_id)).reserved
        await until(lambda: not reserved)
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
    assert missed == []


async def test_a_repeated_receive_in_front_of_a_dead_letter_does_not_make_two_of_it(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        made, asked, may_go = delivery._dead_letters._make_topic, asyncio.Event(), asyncio.Event()

        async def wait(topic: str) -> None:
            asked.set()
            await may_go.wait()
            await made(topic)

        delivery._dead_letters._make_topic = wait
        await program.broker.put_group(GroupConfig("g", retry_max_times=0))
        await send(program, "a")
        receive = partial(delivery.receive, "g", "t", invisible_ms=100)
        (one,) = await receive(client_id="c", attempt_id="first")
        await until(lambda: program.node.cluster_time_ms() > one.invisible_until_ms)
        burying = asyncio.create_task(receive(client_id="d"))
        await asked.wait()
        (again,) = await receive(client_id="c", attempt_id="first")
        may_go.set()
        assert await burying == []
        await until(lambda: program.node.cluster_time_ms() > again.invisible_until_ms)
        async with asyncio.timeout(30):
            while not await dead_letters(program):
                assert await receive(client_id="d", wait_ms=10) == []
        assert await receive(client_id="d", wait_ms=200) == []
        assert await dead_letters(program) == ["a"]


async def test_a_reset_that_was_acknowledged_counts_in_a_queue_that_is_new_to_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_group(GroupConfig("g"))
        await send(program, "a", "b", "c")
        await program.broker.reset_offsets("g", [QueueOffset("t", 0, 2)])
        receiver = program.delivery._receiver
        read = receiver._read

        async def read_and_reset(work: Any, address: str) -> Any:
            """The receive has chosen, and reads."""
            receiver._read = read
            found = await read(work, address)
            await program.broker.reset_offsets("g", [QueueOffset("t", 0, 0)])
            return found

        monkeypatch.setattr(receiver, "_read", read_and_reset)
        receive = partial(program.delivery.receive, "g", "t", client_id="c", invisible_ms=60_000)
        found: list[Delivery] = []
        async with asyncio.timeout(30):
            while len(found) < 3:
                found += await receive(wait_ms=1000)
        assert bodies(found) == ["a", "b", "c"]


@pytest.mark.parametrize("abandoned", [1, 12])
async def test_groups_that_hold_all_they_can_leave_room_for_the_next_one(
    tmp_path: Path, abandoned: int
) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"max_pending": 200}}) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        texts = [f"{number}" for number in range(300)]
        await asyncio.gather(*[send(program, text) for text in texts])
        receive = partial(program.delivery.receive, topic="t", client_id="c", invisible_ms=600_000)
        for number in range(abandoned):
            while await receive(f"abandoned-{number}", max_messages=100):
                pass
        taken: list[str] = []
        async with asyncio.timeout(60):
            while len(taken) < 300:
                found = await receive("good")
                assert found
                taken += bodies(found)
                await program.delivery.ack("good", "t", [one.handle for one in found])
        assert sorted(taken) == sorted(texts)
        assert program.delivery.figures().pending <= 200 + 32 * abandoned


async def test_what_never_reached_its_client_comes_again_though_the_client_lives(tmp_path: Path) -> None:
    """Its answer was lost, and nobody knows of it."""
    async with brokers(tmp_path, 1, {"delivery": {"invisible_ms": 200}}) as cluster:
        program = await cluster.master()
        await program.broker.put_group(GroupConfig("g", consume_orderly=True))
        await send(program, "a", "b")
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=1)
        lost = await receive()
        async with asyncio.timeout(30):
            while not (found := await receive(wait_ms=50)):
                program.delivery.heard_of("c")
        assert bodies(lost) == bodies(found) == ["a"]


async def test_what_has_reached_its_client_is_renewed_while_it_lives(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"invisible_ms": 2_000}}) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a")
        (one,) = await delivery.receive("g", "t", client_id="c")
        delivery.passed_on("g", "t", [one])
        end_ms = one.invisible_until_ms + 1000
        while program.node.cluster_time_ms() < end_ms:
            delivery.heard_of("c")
            assert await delivery.receive("g", "t", client_id="d", wait_ms=50) == []
        assert await delivery.ack("g", "t", [one.handle]) == [AckStatus.OK]


async def test_what_is_given_back_comes_at_once_and_is_no_attempt(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send(program, "a", "b")
        receive = partial(delivery.receive, "g", "t", client_id="c", wait_ms=20_000)
        delivery.give_back("g", "t", await receive())
        found = await receive(attempt_id="call")
        assert [(one.attempt, decode(one.record).body) for one in found] == [(1, b"a"), (1, b"b")]
        # A call that is repeated may have reached its client the first time.
        delivery.give_back("g", "t", await receive(attempt_id="call"))
        assert [one.attempt for one in await receive()] == [2, 2]


async def test_an_offset_that_was_committed_reads_back_though_the_group_is_given_messages(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send(program, "a", "b", "c")
        await program.delivery.receive("g", "t", client_id="c", max_messages=1, invisible_ms=60_000)
        await program.broker.commit_offsets("g", [QueueOffset("t", 0, 2)])
        assert await program.broker.offsets("g") == [QueueOffset("t", 0, 2)]
        await program.broker.reset_offsets("g", [QueueOffset("t", 0, 1)])
        assert await program.broker.offsets("g") == [QueueOffset("t", 0, 1)]


async def test_dead_letters_that_cannot_be_moved_are_not_in_front_of_fresh_messages(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()

        async def refuse(topic: str) -> None:
            raise error_for(Status.TOO_MANY_TOPICS, "there are too many topics")

        program.delivery._dead_letters._make_topic = refuse
        await program.broker.put_group(GroupConfig("g", retry_max_times=0))
        await send(program, "worn out")
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=1)
        (one,) = await receive(invisible_ms=1)
        await until(lambda: program.node.cluster_time_ms() > one.invisible_until_ms)
        await send(program, "fresh")
        assert bodies(await receive(invisible_ms=60_000, wait_ms=20_000)) == ["fresh"]


async def test_a_dead_letter_and_the_end_of_its_message_are_one_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends between two of them would leave the message in both places."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g"))
        await send(program, "a")
        (one,) = await program.delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        # One that a broker of RocketMQ has committed as a transaction: the letter is an ordinary message.
        flagged = one.record[:36] + TRANSACTION_COMMIT.to_bytes(4, "big") + one.record[40:]
        assert decode(flagged).sys_flag == TRANSACTION_COMMIT
        monkeypatch.setattr(program.delivery._receiver, "record", AsyncMock(return_value=flagged))
        submit, moves = program.delivery._committer.submit, list[tuple[int, list[str]]]()

        def noting(request: PutRequest) -> asyncio.Future[RequestOutcome]:
            moves.append((len(request.queued), [type(element).__name__ for element in request.elements]))
            return submit(request)

        monkeypatch.setattr(program.delivery._committer, "submit", noting)
        await program.delivery.dead_letter("g", "t", one.handle)
        assert moves == [(0, ["Bury"]), (1, ["Drop"])]
        await in_step(program)
        (letter,) = (await program.broker.pull("%DLQ%g", 0, 0)).records
        assert decode(letter).sys_flag == 0


async def test_a_dead_letter_that_is_on_its_way_is_moved_once(tmp_path: Path) -> None:
    """Also when others were given messages meanwhile: the state refuses a second move, but each costs."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        letters, may_go, asked = program.delivery._dead_letters, asyncio.Event(), list[str]()
        made = letters._make_topic

        async def wait(topic: str) -> None:
            asked.append(topic)
            await may_go.wait()
            await made(topic)

        letters._make_topic = wait
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g", retry_max_times=0))
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=2)
        await send(program, "worn out")
        (one,) = await receive(invisible_ms=1, wait_ms=20_000)
        await until(lambda: program.node.cluster_time_ms() > one.invisible_until_ms)
        for text in ("first", "second", "third"):
            await send(program, text)
            assert bodies(await receive(invisible_ms=60_000, wait_ms=20_000)) == [text]
        assert asked == ["%DLQ%g"]
        may_go.set()
        async with asyncio.timeout(60):
            while await dead_letters(program) != ["worn out"]:
                await asyncio.sleep(0)  # a question that is answered at once lets nobody else go on


async def test_a_message_sent_under_an_id_of_a_deleted_topic_is_stored_in_the_new_one(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send(program, "a")
        await program.broker.delete_topic("t")
        assert not (await send_to(program, "t", message("a"), message_id="a")).is_repeated
        found = await program.delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert bodies(found) == ["a"]


async def test_in_order_nothing_overtakes_a_dead_letter_that_cannot_be_moved(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        letters, may_be_made = program.delivery._dead_letters, asyncio.Event()
        made, asked = letters._make_topic, 0

        async def refuse(topic: str) -> None:
            nonlocal asked
            asked += 1
            if not may_be_made.is_set():
                raise error_for(Status.TOO_MANY_TOPICS, "there is no room for one more topic")
            await made(topic)

        letters._make_topic = refuse
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g", retry_max_times=1, consume_orderly=True))
        await send(program, "a", "b")
        receive = partial(program.delivery.receive, "g", "t", client_id="c")

        async def until_visible(given: list[Delivery]) -> None:
            await until(lambda: program.node.cluster_time_ms() > given[-1].invisible_until_ms)

        given = await receive(max_messages=1, invisible_ms=50)
        await until_visible(given)
        given = await receive(invisible_ms=50)
        assert [(one.attempt, decode(one.record).body) for one in given] == [(2, b"a"), (1, b"b")]
        await until_visible(given)
        assert await receive() == []
        assert asked == 1
        may_be_made.set()
        assert bodies(await receive(wait_ms=20_000)) == ["b"]
        assert await dead_letters(program) == ["a"]


def test_a_late_end_of_an_older_chain_says_nothing_of_the_one_that_follows() -> None:
    queue, state = ReceiveQueue(), QueueDelivery(QueueKey("g", "t", 0), 5)
    older = [queue.begin_pop(10), queue.begin_pop(20)]
    assert queue.next_offset(state, 0) == 20
    queue.end_pop(older[0], is_taken=False)
    assert queue.next_offset(state, 0) == 5
    newer = queue.begin_pop(15)
    queue.end_pop(older[1], is_taken=False)
    assert queue.next_offset(state, 0) == 15
    state.cursor = 15
    queue.end_pop(newer, is_taken=True)
    state.cursor = 16
    assert queue.next_offset(state, 0) == 16 and queue.is_idle


@pytest.mark.parametrize("bad_luck", ["a reset", "a refused append"])
async def test_a_pop_that_takes_nothing_costs_those_behind_it_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad_luck: str
) -> None:
    """Receives that overlap all began behind each other, up to the end of the queue: nobody got anything."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", read_queues=1, write_queues=1))
        for _ in range(4):
            await send_to(program, "t", [message("x")] * 1_000)
        await in_step(program)
        pops: list[tuple[int, bool]] = []  # where it began, and whether it took what it was for
        pop, append = program.delivery_state._pop, program.writer.put_together

        def noting(element: Pop, number: int, stamp_ms: int) -> PopOutcome:
            outcome = pop(element, number, stamp_ms)
            pops.append((element.begin, outcome.is_fresh_given))
            return outcome

        async def refusing(*arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(program.writer, "put_together", append)
            for _ in range(50):  # others choose meanwhile
                await asyncio.sleep(0)
            raise error_for(Status.TOO_MANY_PENDING_BYTES, "no room")

        monkeypatch.setattr(program.delivery_state, "_pop", noting)

        async def consume(client: str) -> None:
            receive = partial(program.delivery.receive, "g", "t", client_id=client, invisible_ms=600_000)
            while True:
                with suppress(Busy):
                    await receive(max_messages=8, wait_ms=60_000)

        consumers = [asyncio.create_task(consume(f"c{n}")) for n in range(6)]
        await until(lambda: len(pops) > 30)
        before = len(pops)
        if bad_luck == "a reset":
            await program.broker.reset_offsets("g", [QueueOffset("t", 0, 0)])
        else:
            monkeypatch.setattr(program.writer, "put_together", refusing)
            await until(lambda: program.writer.put_together == append)
            before = len(pops)
        await until(lambda: any(is_taken for _, is_taken in pops[before + 12 :]))
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        fruitless = [begin for begin, is_taken in pops[before:] if not is_taken]
        assert len(fruitless) < 24, "each consumer some, and not one for each part of the queue"
