"""What is on its way from the log to consumers is bounded in bytes."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from pathlib import Path

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery.api import ReceivedBatch
from dledger.infra.quotas import FairQueue
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.sending import send_to
from tests.node.local import until


async def test_what_was_received_gives_its_room_back_once() -> None:
    closed: list[bool] = []
    received = ReceivedBatch((), lambda: closed.append(True))
    received.close()
    received.close()
    del received
    await asyncio.sleep(0)
    assert closed == [True]


async def test_memory_of_a_collected_batch_is_released_on_the_event_loop() -> None:
    """`FairQueue` belongs to one event loop, but the garbage collector runs on any thread that allocates."""
    room, threads = FairQueue(1), list[int]()
    assert room.try_acquire("a")
    batch: list[object] = [ReceivedBatch((), partial(room.release, "a"))]
    batch.append(batch)  # a cycle, as between an exception and its traceback
    assert not room.request(lambda: threads.append(threading.get_ident()), "b")
    del batch
    await asyncio.to_thread(gc.collect)
    await until(lambda: threads)
    assert threads == [threading.get_ident()]


def test_a_batch_that_outlives_its_event_loop_is_dropped_without_an_error() -> None:
    closed: list[bool] = []

    async def receive() -> ReceivedBatch:
        return ReceivedBatch((), lambda: closed.append(True))

    received = asyncio.run(receive())
    del received
    assert not closed


async def test_a_receive_waits_until_others_have_been_handed_out(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        room = delivery.room
        for number in range(2):
            await send_to(program, "t", OutgoingMessage(bytes(100_000)), message_id=f"id{number}")

        async def receive(wait_ms: int) -> int:
            """Forgets what it was given."""
            return len(await delivery.receive("g", "t", client_id="c", max_messages=1, wait_ms=wait_ms))

        first = await delivery.receive("g", "t", client_id="c", max_messages=1, wait_ms=20_000)
        assert len(first) == 1 and 100_000 < room.used < 101_000
        assert await receive(1) == 0
        waiting = asyncio.create_task(receive(20_000))
        await until(lambda: room.waiting)
        first.close()
        assert await waiting == 1
        assert room.used == 0


async def test_small_messages_need_no_room_that_others_hold(tmp_path: Path) -> None:
    """A client that does not read what it was given holds room for as long as it likes."""
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "large", OutgoingMessage(bytes(140_000)), message_id="large")
        for number in range(3):
            await send_to(program, "t", OutgoingMessage(bytes(30_000)), message_id=f"id{number}", queue_id=0)
        held = await delivery.receive("g", "large", client_id="silent", wait_ms=20_000)
        assert len(held) == 1 and delivery.room.used > 140_000
        first = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert len(first) == 2, "no more than a receive may have without room"
        assert len(await delivery.receive("g", "t", client_id="c", wait_ms=20_000)) == 1
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        await until(lambda: delivery.figures().waiting_receives == 1)
        await send_to(program, "t", OutgoingMessage(b"x"), message_id="late")
        assert len(await waiting) == 1, "who waits for messages does not wait for room"


async def test_what_is_behind_a_large_message_comes_from_other_queues(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "large", OutgoingMessage(bytes(140_000)), message_id="large")
        held = await delivery.receive("g", "large", client_id="silent", wait_ms=20_000)
        for queue_id, size in ((0, 100_000), (0, 1), (1, 2)):
            message = OutgoingMessage(bytes(size))
            await send_to(program, "t", message, message_id=f"{size}", queue_id=queue_id)
        (other,) = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert other.queue_id == 1
        assert not await delivery.receive("g", "t", client_id="c", wait_ms=1)
        held.close()
        given = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert [one.queue_id for one in given] == [0, 0]
