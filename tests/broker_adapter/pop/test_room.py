"""What is on its way from the log to consumers is bounded in bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_adapter.api import OutgoingMessage
from broker_adapter.pop.room import Received, Room
from tests.broker_adapter.cluster import brokers
from tests.node.local import until


async def test_who_wants_room_gets_it_in_the_order_of_the_calls() -> None:
    room = Room(10)
    await room.take(6)
    got: list[str] = []

    async def want(name: str, size: int) -> None:
        await room.take(size)
        got.append(name)

    large, small = asyncio.create_task(want("large", 8)), asyncio.create_task(want("small", 1))
    await asyncio.sleep(0)
    assert got == [] and room.taken == 6
    room.give(6)
    await asyncio.gather(large, small)
    assert got == ["large", "small"] and room.taken == 9


async def test_something_alone_has_room_however_large() -> None:
    room = Room(10)
    await room.take(100)
    assert room.taken == 100


async def test_who_goes_before_there_is_room_makes_way() -> None:
    room = Room(10)
    await room.take(6)
    gone, next_one = asyncio.create_task(room.take(8)), asyncio.create_task(room.take(4))
    await asyncio.sleep(0)
    gone.cancel()
    await next_one
    assert room.taken == 10


async def test_room_that_was_given_to_somebody_who_goes_is_given_back() -> None:
    room = Room(10)
    await room.take(10)
    waiting = asyncio.create_task(room.take(10))
    await asyncio.sleep(0)
    room.give(10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert room.taken == 0


async def test_an_address_that_does_not_read_holds_up_nobody_else() -> None:
    room = Room(64)
    waiting = [asyncio.create_task(room.take(4, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [True] * 12 + [False] * 8, "three quarters"
    for _ in range(3):
        assert room.take_now(4, "b"), "those of a wait for what is their own affair"
    await asyncio.wait_for(room.take(4, "c"), 60)
    behind = asyncio.create_task(room.take(4, "d"))
    await asyncio.sleep(0)
    assert not behind.done() and not room.take_now(1, "e"), "whoever waits for room is the first to get it"
    room.give(4, "c")
    await asyncio.wait_for(behind, 60)
    for _ in range(12):
        room.give(4, "a")
    await asyncio.gather(*waiting)
    assert room.taken == 8 * 4 + 3 * 4 + 4


def test_what_was_received_gives_its_room_back_once() -> None:
    closed: list[bool] = []
    received = Received((), lambda: closed.append(True))
    received.close()
    received.close()
    del received
    assert closed == [True]


async def test_a_receive_waits_until_others_have_been_handed_out(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        delivery = (await cluster.master()).delivery
        room = delivery.room
        for number in range(2):
            await delivery.send("t", OutgoingMessage(bytes(100_000)), message_id=f"id{number}")

        async def receive(wait_ms: int) -> int:
            """Forgets what it was given."""
            return len(await delivery.receive("g", "t", client_id="c", max_messages=1, wait_ms=wait_ms))

        first = await delivery.receive("g", "t", client_id="c", max_messages=1, wait_ms=20_000)
        assert len(first) == 1 and 100_000 < room.taken < 101_000
        assert await receive(1) == 0
        waiting = asyncio.create_task(receive(20_000))
        await until(lambda: room.is_awaited)
        first.close()
        assert await waiting == 1
        assert room.taken == 0


async def test_small_messages_need_no_room_that_others_hold(tmp_path: Path) -> None:
    """A client that does not read what it was given holds room for as long as it likes."""
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        delivery = (await cluster.master()).delivery
        await delivery.send("large", OutgoingMessage(bytes(140_000)), message_id="large")
        for number in range(3):
            await delivery.send("t", OutgoingMessage(bytes(30_000)), message_id=f"id{number}", queue_id=0)
        held = await delivery.receive("g", "large", client_id="silent", wait_ms=20_000)
        assert len(held) == 1 and delivery.room.taken > 140_000
        first = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert len(first) == 2, "no more than a receive may have without room"
        assert len(await delivery.receive("g", "t", client_id="c", wait_ms=20_000)) == 1
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        await until(lambda: delivery.figures().waiting_receives == 1)
        await delivery.send("t", OutgoingMessage(b"x"), message_id="late")
        assert len(await waiting) == 1, "who waits for messages does not wait for room"


async def test_what_is_behind_a_large_message_comes_from_other_queues(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"delivery": {"max_given_bytes": 150_000}}) as cluster:
        delivery = (await cluster.master()).delivery
        await delivery.send("large", OutgoingMessage(bytes(140_000)), message_id="large")
        held = await delivery.receive("g", "large", client_id="silent", wait_ms=20_000)
        for queue_id, size in ((0, 100_000), (0, 1), (1, 2)):
            message = OutgoingMessage(bytes(size))
            await delivery.send("t", message, message_id=f"{size}", queue_id=queue_id)
        (other,) = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert other.queue_id == 1
        assert not await delivery.receive("g", "t", client_id="c", wait_ms=1)
        held.close()
        given = await delivery.receive("g", "t", client_id="c", wait_ms=20_000)
        assert [one.queue_id for one in given] == [0, 0]


def test_who_had_nothing_may_give_nothing_back() -> None:
    room = Room(100)
    room.give(0, "10.0.0.1")
    assert room.taken == 0
    assert room.take_now(60, "10.0.0.1")
    room.give(60, "10.0.0.1")
    room.give(0, "10.0.0.1")
    assert room.taken == 0
