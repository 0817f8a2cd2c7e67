"""Our client of the remoting protocol with a NameServer and two brokers of RocketMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_adapter.errors import BrokerError, TopicRefused
from broker_adapter.remoting_client import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    SendStatus,
    TopicRoute,
    select_by_hash,
)
from tests.process.cluster import free_ports

from . import genuine

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]
QUEUES = 4


_WITHIN_S = 60
_PAUSE_S = 0.1


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Brokers of another process do things in their own time."""
    async with asyncio.timeout(_WITHIN_S):
        while not await condition():
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(_PAUSE_S, turn.set_result, None)
            await turn


class Genuine(NamedTuple):
    """Addresses of what runs."""

    name_server: str
    first: str
    second: str


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genuine]:
    genuine.require()
    home: Path = tmp_path_factory.mktemp("rocketmq")
    names, first, _, second, _ = free_ports(5)
    at = f"127.0.0.1:{names}"
    with ExitStack() as running:
        processes = [running.enter_context(genuine.name_server(home / "names", names))]
        for broker, port in (("java-a", first), ("java-b", second)):
            processes.append(
                running.enter_context(genuine.broker(home / broker, at, port, brokerName=broker))
            )
        yield Genuine(at, f"127.0.0.1:{first}", f"127.0.0.1:{second}")
        for process in processes:
            process.kill()  # an orderly end takes half a minute, and nobody reads what they leave


@pytest.fixture
async def admin(rocketmq: Genuine) -> AsyncIterator[Admin]:
    async with Admin(rocketmq.name_server) as admin:

        async def is_up() -> bool:
            try:
                return len((await admin.clusters()).get("main", [])) == 2
            except BrokerError:
                return False

        await eventually(is_up)
        yield admin


async def created(admin: Admin, topic: str) -> TopicRoute:
    """The route of a new topic, at both brokers."""
    await admin.create_topic(topic, queues=QUEUES)

    async def is_known() -> bool:
        try:
            return len((await admin.route(topic)).publish_queues(topic)) == 2 * QUEUES
        except TopicRefused:
            return False

    await eventually(is_known)
    return await admin.route(topic)


async def test_clusters_and_routes(admin: Admin, rocketmq: Genuine) -> None:
    brokers = (await admin.clusters())["main"]
    assert {broker.name: broker.master for broker in brokers} == {
        "java-a": rocketmq.first,
        "java-b": rocketmq.second,
    }
    route = await created(admin, "routes")
    assert route.master("java-b") == rocketmq.second
    with pytest.raises(TopicRefused, match="720 TOPIC_UNKNOWN"):
        await admin.route("nobody-knows-it")


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_message_is_stored_as_it_was_sent(admin: Admin, rocketmq: Genuine, size: int) -> None:
    await created(admin, "plain")
    async with Producer("p", rocketmq.name_server) as producer:
        message = Message("plain", b"x" * size, tags="a", keys=["k", "l"], properties={"mine": "é"})
        result = await producer.send(message)
    assert result.status is SendStatus.SEND_OK
    found = await admin.view_message(result.offset_message_ids[0])
    assert (found.body, found.tags, found.keys) == (message.body, "a", ["k", "l"])
    assert found.properties["mine"] == "é" and found.message_id == result.message_id
    assert (found.queue.queue_id, found.queue_offset) == (result.queue.queue_id, result.queue_offset)


async def test_a_batch_is_stored_in_one_queue(admin: Admin, rocketmq: Genuine) -> None:
    await created(admin, "batches")
    async with Producer("p", rocketmq.name_server) as producer:
        result = await producer.send_batch([Message("batches", b"%d" % number) for number in range(5)])
    found = [await admin.view_message(one) for one in result.offset_message_ids]
    assert [one.body for one in found] == [b"%d" % number for number in range(5)]
    assert [one.message_id for one in found] == list(result.message_ids)
    assert [one.queue_offset for one in found] == list(range(5))


async def test_a_key_has_one_queue(admin: Admin, rocketmq: Genuine) -> None:
    await created(admin, "ordered")
    async with Producer("p", rocketmq.name_server) as producer:
        sent = [
            await producer.send(Message("ordered", b"x"), selector=select_by_hash, arg="key")
            for _ in range(4)
        ]
    assert len({result.queue for result in sent}) == 1
    assert [result.queue_offset for result in sent] == [0, 1, 2, 3]


async def test_offsets(admin: Admin, rocketmq: Genuine) -> None:
    await created(admin, "offsets")
    queue = MessageQueue("offsets", "java-a", 1)
    async with Producer("p", rocketmq.name_server) as producer:
        for _ in range(3):
            await producer.send_oneway(Message("offsets", b"x"), queue=queue)

        async def all_came() -> bool:
            return await admin.max_offset(queue) == 3

        await eventually(all_came)  # RocketMQ drops requests of connections that have ended
    assert await admin.min_offset(queue) == 0
    now = int(time.time() * 1000)
    assert await admin.search_offset(queue, now - 3_600_000) == 0
    assert await admin.search_offset(queue, now + 3_600_000) == 3


async def test_a_topic_is_created_by_use(admin: Admin, rocketmq: Genuine) -> None:
    async with Producer("p", rocketmq.name_server) as producer:
        result = await producer.send(Message("by-use", b"x"))
    assert (await admin.view_message(result.offset_message_ids[0])).topic == "by-use"
