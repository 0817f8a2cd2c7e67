"""A topic that comes into being by being used: once, and for all in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.metadata.writable_topics import CreationQueue
from broker_adapter.server.record_limits import batch_entries
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.message import decode
from dledger import ConfigError
from tests.broker_adapter.cluster import brokers, in_step
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.v5.world import message as proxied

TOPIC = TopicConfig("t")


class Desk:
    """Topics, and a creation that ends when the test says so."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.creation = CreationQueue(self.topics.get)
        self.asked: list[asyncio.Future[None]] = []
        self.order: list[int] = []

    async def create(self) -> TopicConfig:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]
        return TOPIC

    async def use(self, number: int) -> None:
        await self.creation.topic("t", self.create)
        self.order.append(number)


async def test_one_creation_is_under_way_and_nobody_overtakes() -> None:
    desk = Desk()
    tasks = [asyncio.create_task(desk.use(number)) for number in range(5)]
    while not desk.asked:
        await asyncio.sleep(0)
    desk.topics["t"] = TOPIC  # applied, and nobody has heard of it
    tasks.append(asyncio.create_task(desk.use(5)))
    await asyncio.sleep(0)
    desk.asked[0].set_result(None)
    while desk.creation._pending:
        if len(tasks) == 6 and desk.order:
            tasks.append(asyncio.create_task(desk.use(6)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert (desk.order, len(desk.asked)) == (list(range(7)), 1)
    await desk.use(7)  # at once


async def test_what_a_creation_failed_with_all_get_who_waited_for_it() -> None:
    desk = Desk()
    tasks = [asyncio.create_task(desk.use(number)) for number in range(5)]
    while not desk.asked:
        await asyncio.sleep(0)
    desk.asked[0].set_exception(error_for(Status.TOO_MANY_TOPICS, "too many"))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one.status for one in ends if isinstance(one, BrokerError)] == [Status.TOO_MANY_TOPICS] * 5
    assert (len(desk.asked), desk.creation._pending) == (1, {})


async def test_whoever_creates_and_goes_leaves_that_to_the_next_one() -> None:
    desk = Desk()
    first, second = [asyncio.create_task(desk.use(number)) for number in range(2)]
    while not desk.asked:
        await asyncio.sleep(0)
    first.cancel()
    while len(desk.asked) < 2:
        await asyncio.sleep(0)
    desk.asked[1].set_result(None)
    await second
    assert desk.order == [1]


@pytest.mark.parametrize("way", ["by the proxy", "by remoting"])
async def test_pipelined_sends_to_a_topic_that_is_not_there_are_stored_in_order(
    tmp_path: Path, way: str
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        proposed = program.metadata.applied_index
        count = 200
        done: list[asyncio.Task[object]] = []

        def send(number: int) -> Coroutine[Any, Any, object]:
            message = OutgoingMessage(b"%d" % number)
            if way == "by the proxy":
                fifo = proxied(
                    message.body,
                    message_id=f"{number}",
                    message_type=pb.MessageType.FIFO,
                    message_group="f",  # queue 0
                )
                request = calls.SendMessageRequest(messages=[fifo])
                made = Request("SendMessage", request.SerializeToString())
                return program.clients.handlers.unary(made, CallContext("c"))
            return send_to(program, "t", message, message_id=f"{number}", queue_id=0)

        for number in range(count):
            done.append(asyncio.create_task(send(number)))
            if number % 5 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*done)
        await in_step(program)
        found = await program.broker.pull("t", 0, 0, max_messages=count)
        assert [decode(one).body for one in found.records] == [b"%d" % number for number in range(count)]
        assert program.metadata.applied_index - proposed <= count + 1
        assert program.metadata.refused == 0


async def test_delivery_rounds_keep_to_the_logs_limit_of_entries(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, limits={"max_batch_entries": 8}) as cluster:
        program = await cluster.master()
        await send_to(program, "t", OutgoingMessage(b"first"), message_id="first")
        sends = [
            send_to(program, "t", OutgoingMessage(b"x"), message_id=f"{number}") for number in range(100)
        ]
        assert len(await asyncio.gather(*sends)) == 100


def test_a_limit_of_entries_that_no_round_can_keep_to_is_refused_at_the_start() -> None:
    assert batch_entries(2) == 2
    with pytest.raises(ConfigError):
        batch_entries(1)


async def test_a_send_does_not_overtake_those_that_wait_for_the_creation_of_their_topic() -> None:
    """The topic exists before the sends that waited for it go on."""
    desk = Desk()
    first, second = (asyncio.create_task(desk.creation.topic("t", desk.create)) for _ in range(2))
    await asyncio.sleep(0)
    assert desk.creation.existing("t") is None
    desk.topics["t"] = TOPIC
    assert desk.creation.existing("t") is None
    desk.asked[0].set_result(None)
    assert [await first, await second] == [TOPIC, TOPIC]
    assert desk.creation.existing("t") == TOPIC
