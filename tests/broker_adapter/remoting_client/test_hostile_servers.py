"""The client where servers mean harm, or a program asks without a pause: it goes on, and lets others run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker_adapter.errors import Busy
from broker_adapter.format import message as record
from broker_adapter.format.host import Host
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting_client import (
    ClientOptions,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
)

from .scripted import Script, ScriptedServer, route_body, serving

HOST = Host(b"\x7f\0\0\1", 10911)
QUEUE = MessageQueue("t", "a", 0)


@asynccontextmanager
async def a_broker(script: Script) -> AsyncIterator[ScriptedServer]:
    """It knows the topic `t`, and is its own NameServer."""

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.answer(0, body=route_body(servers))
        return script(request)

    async with serving(answer) as servers:
        yield servers[0]


def stored_message(offset: int, body: bytes = b"x", sys_flag: int = 0) -> bytes:
    message = record.Message("t", body, sys_flag=sys_flag, queue_offset=offset, store_host=HOST)
    return bytes(record.encode(message))


async def test_a_program_that_only_polls_gets_messages() -> None:
    def pulled(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return request.answer(0, fields={"offset": "0"})
        if (offset := int(request.fields["queueOffset"])) > 2:
            return None
        fields = {"nextBeginOffset": str(offset + 1), "minOffset": "0", "maxOffset": "3"}
        return request.answer(0, fields=fields, body=stored_message(offset))

    async with (
        a_broker(pulled) as broker,
        PullConsumer(
            "g", broker.server.address, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        ) as consumer,
    ):
        turns = asyncio.create_task(asyncio.sleep(0))
        while not turns.done():
            assert await consumer.poll(0) == []  # nothing is assigned
        consumer.assign([QUEUE])
        found: list[int] = []
        while len(found) < 3:
            found += [message.queue_offset for message in await consumer.poll(0)]
        assert found == [0, 1, 2]


async def test_a_program_that_only_sends_one_way_lets_the_messages_go() -> None:
    """The broker does not read for a time: what waits for it must go when it reads again."""
    options = ClientOptions(max_in_flight_bytes=1 << 20, compress_above_bytes=1 << 30)
    async with (
        a_broker(lambda request: None) as broker,
        Producer("g", broker.server.address, options=options) as producer,
    ):
        await producer.send_oneway(Message("t", b"first"), queue=QUEUE)
        refused = sent = 0
        while sent < 100:
            try:
                await producer.send_oneway(Message("t", b"x" * (256 << 10)), queue=QUEUE)
                sent += 1
            except Busy:
                refused += 1
        assert sent == 100
