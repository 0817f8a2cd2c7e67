"""The client with brokers of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting_client import (
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    TransactionProducer,
    select_by_hash,
)
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.processor.asker import LISTEN
from tests.node.local import until

from .scripted import route_body_of, serving

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
MESSAGES = 20
QUEUES = 2  # of topics that these brokers create by use


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[str]:
    """Address of a NameServer that knows every topic at the master."""
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        await cluster.master()

        def routes(request: RemotingCommand) -> RemotingCommand:
            return request.answer(0, body=route_body_of({"a": master_address(cluster)}, queues=QUEUES))

        async with serving(routes) as (server,):
            yield server.server.address


def master_address(cluster: BrokerCluster) -> str:
    (program,) = cluster.masters
    return program.remoting.address


async def sent(names: str, topic: str) -> list[str]:
    async with Producer("p", names) as producer:
        results = [
            await producer.send(Message(topic, b"%d" % number, tags="ab"[number % 2]))
            for number in range(MESSAGES)
        ]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    return [result.message_id for result in results]


async def test_messages_batches_and_keys(names: str) -> None:
    async with Producer("p", names) as producer:
        single = await producer.send(Message("orders", b"x" * 100_000, tags="a", keys=["k"]))
        assert single.status is SendStatus.SEND_OK
        batch = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        assert len(batch.offset_message_ids) == 2
        ordered = [
            await producer.send(Message("keys", b"x"), selector=select_by_hash, arg="k") for _ in range(3)
        ]
        assert [result.queue_offset for result in ordered] == [0, 1, 2]


async def test_polled(names: str) -> None:
    ids, found = await sent(names, "polled"), set[str]()
    async with PullConsumer("g", names, consume_from=FIRST) as consumer:
        queues = await consumer.queues("polled")
        consumer.assign(queues)
        while len(found) < MESSAGES:
            found |= {message.message_id for message in await consumer.poll()}
        assert found == set(ids)
        await consumer.commit_positions()
        for queue in queues:
            assert await consumer.committed(queue) == await consumer.max_offset(queue)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_pushed(names: str, is_ordered: bool) -> None:
    ids = await sent(names, "pushed")
    seen: list[str] = []

    async def listener(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        seen.extend(message.message_id for message in messages)
        return None

    settings = ConsumeSettings(is_ordered=is_ordered)
    consumer = PushConsumer("g", names, listener, consume_from=FIRST, settings=settings)
    consumer.subscribe("pushed")
    async with consumer:
        await until(lambda: set(seen) == set(ids))
    async with PullConsumer("g", names) as reader:
        for number in range(QUEUES):
            queue = MessageQueue("pushed", "a", number)
            assert await reader.committed(queue) == await reader.max_offset(queue)


async def test_transactions(names: str) -> None:
    def check(message: MessageExt) -> LocalTransactionState:
        raise AssertionError("nobody asks in so short a time")

    await sent(names, "money")
    async with (
        TransactionProducer("p", names, check) as producer,
        PullConsumer("g", names, consume_from=FIRST) as consumer,
    ):
        states = {
            b"rolled back": LocalTransactionState.ROLLBACK_MESSAGE,
            b"committed": LocalTransactionState.COMMIT_MESSAGE,
        }
        for body in states:
            result = await producer.send_in_transaction(
                Message("money", body), lambda message: states[message.body]
            )
            assert result.is_ended
        consumer.assign(await consumer.queues("money"))
        found: list[bytes] = []
        while len(found) < MESSAGES + 1:
            found += [message.body for message in await consumer.poll()]
    assert b"committed" in found and b"rolled back" not in found
