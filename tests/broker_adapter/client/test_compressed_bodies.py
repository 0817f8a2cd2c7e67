"""Compressed bodies between our clients and brokers of ours, and bodies that nobody can read."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    CompressionType,
    CompressionUnavailable,
    ConsumeFromWhere,
    ConsumeSettings,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Status,
    StoredDataDamaged,
)
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import MessageRecord, decode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.node.local import until

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LARGE = b"0123456789" * 2000


class World(NamedTuple):
    names: str  # address of the NameServer
    program: BrokerProgram


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A broker with a topic of one queue."""
    async with name_server(tmp_path / "namesrv") as server:
        settings = {"remoting": {"listen": "127.0.0.1:0"}, "namesrv": [server.address]}
        async with brokers(tmp_path, 1, settings) as cluster:
            async with Admin(server.address) as admin:
                await admin.create_topic(TOPIC, queues=1)
            yield World(server.address, await cluster.master())


def options(method: CompressionType = CompressionType.ZLIB) -> ClientOptions:
    return ClientOptions(timeout=60.0, poll_name_server_s=0.2, compress_type=method)


async def send(names: str, body: bytes, method: CompressionType, *, damaged: bool = False) -> None:
    async with Producer("p", names, options=options(method)) as producer:
        if damaged:
            producer._compress = lambda _: b"damaged"
        await producer.send(Message(TOPIC, body))


async def only_record(program: BrokerProgram, topic: str, offset: int = 0) -> MessageRecord:
    """The last record of the topic's first queue, at this offset, once the broker has dispatched it."""
    async with asyncio.timeout(60):
        while not (records := (await program.broker.pull(topic, 0, offset, max_messages=2)).records):
            await asyncio.sleep(0)
    (record,) = records
    return decode(record)


@pytest.mark.parametrize("method", CompressionType)
async def test_one_option_of_the_producer_decides_and_consumers_read_it(
    world: World, method: CompressionType
) -> None:
    await send(world.names, LARGE, method)
    record = await only_record(world.program, TOPIC)
    assert record.sys_flag == method.sys_flag and len(record.body) < 200
    async with PullConsumer("g", world.names, consume_from=FIRST, options=options()) as consumer:
        consumer.assign([QUEUE])
        (message,) = await consumer.poll(60)
    assert (message.body, message.sys_flag, message.body_error) == (LARGE, 0, None)


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "broadcasting"])
@pytest.mark.parametrize("method", [CompressionType.LZ4, CompressionType.ZLIB])
async def test_a_push_consumer_goes_on_and_the_unreadable_message_is_a_dead_letter(
    world: World, kind: str, method: CompressionType, caplog: pytest.LogCaptureFixture
) -> None:
    await send(world.names, b"1", method)
    await send(world.names, LARGE, method, damaged=True)
    await send(world.names, b"3", method)
    seen: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    consumer = PushConsumer(
        "g",
        world.names,
        listen,
        consume_from=FIRST,
        model=MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING,
        settings=ConsumeSettings(is_ordered=kind == "ordered", pull_retry_s=0.05, commit_interval_s=0.02),
        options=options(),
    )
    consumer.subscribe(TOPIC)
    with caplog.at_level(logging.ERROR):
        async with consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
    assert sorted(seen) == [b"1", b"3"]
    assert any("820 BODY_UNREADABLE" in one.getMessage() for one in caplog.records)
    dead = [topic.name for topic in world.program.broker.topics() if topic.name == "%DLQ%g"]
    assert bool(dead) == (kind != "broadcasting")
    for topic in dead:
        record = await only_record(world.program, topic)
        assert (record.body, record.sys_flag) == (b"damaged", method.sys_flag)


async def test_a_pull_consumer_goes_on_and_reports_the_unreadable_message(world: World) -> None:
    await send(world.names, LARGE, CompressionType.ZSTD, damaged=True)
    await send(world.names, b"2", CompressionType.ZSTD)
    await only_record(world.program, TOPIC, offset=1)
    async with PullConsumer("g", world.names, consume_from=FIRST, options=options()) as consumer:
        result = await consumer.pull(QUEUE, 0)
        assert [message.body for message in result.messages] == [b"2"] and result.next_offset == 2
        (damaged,) = result.unreadable
        assert (damaged.queue_offset, damaged.body) == (0, b"damaged")
        assert damaged.body_error is not None and damaged.body_error.status is Status.BODY_UNREADABLE
        consumer.assign([QUEUE])
        assert [message.body for message in await consumer.poll(60)] == [b"2"]
        assert consumer.position(QUEUE) == 2
    async with Admin(world.names, options=options()) as admin:
        with pytest.raises(StoredDataDamaged, match="820"):
            await admin.query(TOPIC, damaged.message_id, is_unique=True)


async def test_without_the_package_a_consumer_waits_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await send(world.names, LARGE, CompressionType.LZ4)
    seen: list[bytes] = []
    consumer = PushConsumer(
        "g",
        world.names,
        lambda messages: seen.extend(message.body for message in messages),
        consume_from=FIRST,
        settings=ConsumeSettings(pull_retry_s=0.02),
        options=options(),
    )
    consumer.subscribe(TOPIC)

    def problems() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]

    modules: Any = sys.modules
    with monkeypatch.context() as without, caplog.at_level(logging.ERROR):
        without.setitem(modules, "lz4.frame", None)
        with pytest.raises(CompressionUnavailable, match=r"dledger\[compression\]"):
            Producer("p", world.names, options=options(CompressionType.LZ4))
        await consumer.start()
        await until(lambda: len(problems()) > 1)
        assert all("821" in text and "dledger[compression]" in text for text in problems())
        assert not seen
    await until(lambda: seen == [LARGE])
    await consumer.close()
