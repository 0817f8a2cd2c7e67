"""The client with brokers of ours."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig
from broker_adapter.client import (
    Admin,
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
    reply_to,
    select_by_hash,
)
from broker_adapter.client.instance import Connections
from broker_adapter.errors import AnswerMissing, GroupRefused, IllegalMessage, Status, TopicRefused
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN
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
            if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                return request.answer(0, body=clusters(master_address(cluster)))
            return request.answer(0, body=route_body_of({"a": master_address(cluster)}, queues=QUEUES))

        async with serving(routes) as (server,):
            yield server.server.address


def clusters(master: str) -> bytes:
    """The broker, and one of the names under which its nodes take messages."""
    names = {"a": {"0": master, "1": "127.0.0.1:1"}, "a-n1": {"0": master}}
    table = {
        name: {"brokerName": name, "cluster": "main", "brokerAddrs": addresses}
        for name, addresses in names.items()
    }
    found = {"brokerAddrTable": table, "clusterAddrTable": {"main": list(names)}}
    return json.dumps(found).encode()


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


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_send_to_a_named_queue_whose_answer_is_lost_is_stored_once(
    names: str, is_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer("p", names) as producer, Admin(names) as admin:
        queue = MessageQueue("lost", "a", 1)
        await producer.send(Message("lost", b"0"), queue=queue)
        invoke, lost = Connections.invoke, 3

        async def lose_answers(*args: Any) -> RemotingCommand:
            nonlocal lost
            answer = await invoke(*args)
            if answer.fields.get("queueOffset") and lost:
                lost -= 1
                raise AnswerMissing(Status.ANSWER_MISSING, "the answer is lost")
            return answer

        monkeypatch.setattr(Connections, "invoke", lose_answers)
        messages = [Message("lost", b"1"), Message("lost", b"2")][: 1 + is_batch]
        if is_batch:
            result = await producer.send_batch(messages, queue=queue)
        else:
            result = await producer.send(messages[0], queue=queue)
        assert lost == 0
        assert (result.queue, result.queue_offset) == (queue, 1)
        assert result.is_duplicate and not result.may_be_duplicate
        stats = await admin.topic_stats("lost")
        assert sum(one.max_offset for one in stats.values()) == 1 + len(messages)


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


async def test_administered(names: str) -> None:
    ids = await sent(names, "kept")
    queue = MessageQueue("kept", "a", 0)
    async with Admin(names) as admin, PullConsumer("g", names) as consumer:
        assert "kept" in [config.name for config in await admin.topics()]
        stats = await admin.topic_stats("kept")
        assert sum(one.max_offset - one.min_offset for one in stats.values()) == MESSAGES
        (found,) = await admin.query("kept", ids[3])
        assert (found.message_id, found.body) == (ids[3], b"3")
        assert await admin.query("kept", "no such key") == []
        end = await admin.max_offset(queue)
        later_ms = time.time_ns() // 1_000_000 + 3_600_000
        assert await admin.search_offset(queue, later_ms) == end
        assert await admin.search_offset(queue, later_ms, is_upper=True) == end - 1
        await consumer.commit(queue, 3)
        assert await admin.committed("g", queue) == 3
        await admin.reset_offset("g", queue, 1)
        with pytest.raises(GroupRefused, match="there is no group 'typo'"):
            await admin.reset_offset("typo", queue, 1)
        assert "typo" not in [config.name for config in await admin.groups()]
        offsets = await admin.group_offsets("g")
        assert {one.queue_id: offset for one, offset in offsets.items()} == {0: 1, 1: 0}
        group = GroupConfig("made", retry_max_times=3, consume_orderly=True)
        await admin.create_group("made", retry_max_times=3, consume_orderly=True)
        assert group in await admin.groups()
        await admin.delete_group("made")
        with pytest.raises(GroupRefused):
            await admin.group_offsets("made")
        await admin.delete_topic("kept")
        with pytest.raises(TopicRefused):
            await admin.topic_stats("kept")


async def test_who_stored_a_message_and_where(names: str) -> None:
    told: list[tuple[int, int]] = []

    def note(messages: Sequence[Message], number: int) -> None:
        told.append((len(messages), number))
        raise ValueError("the hook's error does not concern the send")

    async with Producer("p", names, on_attempt=note) as producer:
        single = await producer.send(Message("entries", b"1"))
        batch = await producer.send_batch([Message("entries", b"2"), Message("entries", b"3")])
    assert single.node_id == batch.node_id != ""
    assert single.term == batch.term >= 1
    assert 0 <= single.log_index < batch.log_index
    assert told == [(1, 1), (2, 1)]


async def test_a_request_is_answered(names: str) -> None:
    """By whoever consumes it, compressed or not; nobody answers in time: 803."""
    await sent(names, "questions")
    asked: list[str] = []
    async with Producer("answers", names) as replier:

        async def listener(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                asked.append(message.message_id)
                if "CORRELATION_ID" in message.properties and message.body != b"silence":
                    await replier.send(reply_to(message, message.body * 1000))

        consumer = PushConsumer("g", names, listener, consume_from=FIRST)
        consumer.subscribe("questions")
        async with consumer, Producer("p", names) as producer:
            await until(lambda: len(asked) >= MESSAGES)
            answer = await producer.request(Message("questions", b"sixty"), timeout=30)
            assert answer.body == b"sixty" * 1000
            assert answer.topic == "DefaultCluster_REPLY_TOPIC"
            with pytest.raises(AnswerMissing):
                await producer.request(Message("questions", b"silence"), timeout=0.5)


def test_what_is_no_request_has_no_answer() -> None:
    message = MessageExt("t", b"", MessageQueue("t", "a", 0), 0, 0, "", {"CLUSTER": "c"}, 0, 0)
    with pytest.raises(IllegalMessage, match="CORRELATION_ID"):
        reply_to(message, b"x")
