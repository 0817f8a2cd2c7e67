"""Our client of the remoting protocol with a NameServer and two brokers of RocketMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    SendStatus,
    TopicRoute,
    TransactionProducer,
    select_by_hash,
)
from broker_adapter.errors import BrokerError, TopicRefused
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]
QUEUES = 4
_WITHIN_S = 60
PAGE = (Path(__file__).resolve().parents[2] / "docs/remoting-client.md").read_text()


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
                running.enter_context(
                    genuine.broker(
                        home / broker,
                        at,
                        port,
                        brokerName=broker,
                        transactionCheckInterval=1000,
                        transactionTimeOut=1000,
                        transactionOpBatchInterval=100,  # by default 3 s, in which ended ones are asked for
                    )
                )
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
    route = await admin.route(topic)
    assert len(route.publish_queues(topic)) == 2 * QUEUES
    return route


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
    assert (found.body, found.tags, found.keys) == (message.body, "a", ("k", "l"))
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

        async def enough_came() -> bool:
            """RocketMQ drops what waits for a thread for 200 ms, and requests of connections that ended."""
            await producer.send_oneway(Message("offsets", b"x"), queue=queue)
            return await admin.max_offset(queue) >= 3

        await eventually(enough_came)
    assert await admin.min_offset(queue) == 0
    now = int(time.time() * 1000)
    assert await admin.search_offset(queue, now - 3_600_000) == 0
    assert await admin.search_offset(queue, now + 3_600_000) >= 3


async def test_a_topic_is_created_by_use(admin: Admin, rocketmq: Genuine) -> None:
    async with Producer("p", rocketmq.name_server) as producer:
        result = await producer.send(Message("by-use", b"x"))
    assert (await admin.view_message(result.offset_message_ids[0])).topic == "by-use"


MESSAGES = 40
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def sent(admin: Admin, rocketmq: Genuine, topic: str) -> set[str]:
    """Ids of messages in a new topic: the bodies are numbers, every other one has the tag b."""
    await created(admin, topic)
    async with Producer("p", rocketmq.name_server) as producer:
        results = [
            await producer.send(Message(topic, b"%d" % number, tags="ab"[number % 2]))
            for number in range(MESSAGES)
        ]
    return {result.message_id for result in results}


async def reached(condition: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return condition()

    await eventually(is_so)


async def test_pulls_and_their_statuses(admin: Admin, rocketmq: Genuine) -> None:
    await sent(admin, rocketmq, "pulled")
    async with PullConsumer("pulling", rocketmq.name_server) as consumer:
        (queue, *_) = await consumer.queues("pulled")
        found = await consumer.pull(queue, 0)
        assert found.status is PullStatus.FOUND and found.next_offset == len(found.messages)
        assert (await consumer.pull(queue, found.next_offset)).status is PullStatus.NO_NEW_MSG
        beyond = await consumer.pull(queue, 1000)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, found.max_offset)
        tagged = await consumer.pull(queue, 0, expression="nobody-has-it")
        assert tagged.status is PullStatus.NO_MATCHED_MSG


async def test_assigned_queues_are_polled_from_the_position_and_committed(
    admin: Admin, rocketmq: Genuine
) -> None:
    ids, found = await sent(admin, rocketmq, "polled"), set[str]()
    async with PullConsumer("polling", rocketmq.name_server, consume_from=FIRST) as consumer:
        queues = await consumer.queues("polled")
        consumer.assign(queues)
        while len(found) < MESSAGES:
            found |= {message.message_id for message in await consumer.poll()}
        assert found == ids
        await consumer.commit_positions()
        committed = [await consumer.committed(queue) for queue in queues]
        assert committed == [await admin.max_offset(queue) for queue in queues]
        consumer.seek(queues[0], 1)
        (first, *_) = await consumer.poll()
        assert (first.queue, first.queue_offset) == (queues[0], 1)


async def test_members_share_queues_and_failed_messages_come_again(admin: Admin, rocketmq: Genuine) -> None:
    ids = await sent(admin, rocketmq, "pushed")
    seen: list[tuple[str, str, int]] = []

    def listener(messages: Sequence[MessageExt]) -> ConsumeStatus:
        """On threads."""
        (message,) = messages
        seen.append((message.message_id, message.topic, message.reconsume_times))
        is_refused = message.body == b"3" and message.reconsume_times == 0
        return ConsumeStatus.RECONSUME_LATER if is_refused else ConsumeStatus.CONSUME_SUCCESS

    def member() -> PushConsumer:
        consumer = PushConsumer("pushing", rocketmq.name_server, listener, consume_from=FIRST)
        consumer.subscribe("pushed")
        return consumer

    def queues_of(consumer: PushConsumer) -> int:
        return sum(queue.topic == "pushed" for queue in consumer.assigned)

    async with member() as first:
        await reached(lambda: len(seen) == MESSAGES + 1)
        assert {one for one, _, _ in seen} == ids
        assert [(topic, times) for _, topic, times in seen if times] == [("pushed", 1)]
        async with member() as second:
            await reached(lambda: queues_of(first) == queues_of(second) == QUEUES)
            assert not set(first.assigned) & set(second.assigned)
        await reached(lambda: queues_of(first) == 2 * QUEUES)
    async with PullConsumer("pushing", rocketmq.name_server) as consumer:
        for queue in await consumer.queues("pushed"):
            assert await consumer.committed(queue) == await admin.max_offset(queue)
    assert len(seen) == MESSAGES + 1  # nothing came again after a change of members


async def test_ordered_queues_wait_for_a_failed_message(admin: Admin, rocketmq: Genuine) -> None:
    ids = await sent(admin, rocketmq, "in-order")
    seen: list[MessageExt] = []

    async def listener(messages: Sequence[MessageExt]) -> ConsumeStatus:
        seen.extend(messages)
        is_refused = messages[0].body == b"7" and messages[0].reconsume_times == 0
        return ConsumeStatus.RECONSUME_LATER if is_refused else ConsumeStatus.CONSUME_SUCCESS

    settings = ConsumeSettings(is_ordered=True, suspend_s=0.1)
    consumer = PushConsumer("ordering", rocketmq.name_server, listener, consume_from=FIRST, settings=settings)
    consumer.subscribe("in-order")
    async with consumer:
        await reached(lambda: len(seen) == MESSAGES + 1)
    assert {message.message_id for message in seen} == ids
    by_queue: dict[MessageQueue, list[int]] = {}
    for message in seen:
        by_queue.setdefault(message.queue, []).append(message.queue_offset)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


async def test_broadcasting_gives_all_tagged_messages_to_each(admin: Admin, rocketmq: Genuine) -> None:
    await sent(admin, rocketmq, "to-all")
    seen: list[list[str]] = [[], []]

    def member(number: int) -> PushConsumer:
        consumer = PushConsumer(
            "all",
            rocketmq.name_server,
            lambda messages: seen[number].extend(message.tags for message in messages),
            model=MessageModel.BROADCASTING,
            consume_from=FIRST,
        )
        consumer.subscribe("to-all", "a || c")
        return consumer

    async with member(0), member(1):
        await reached(lambda: all(len(tags) == MESSAGES // 2 for tags in seen))
    assert {tag for tags in seen for tag in tags} == {"a"}


async def test_transactions_are_committed_rolled_back_and_asked_for(admin: Admin, rocketmq: Genuine) -> None:
    await created(admin, "in-transaction")
    asked: list[bytes] = []

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.body)
        return LocalTransactionState.COMMIT_MESSAGE

    states = {
        b"committed": LocalTransactionState.COMMIT_MESSAGE,
        b"rolled back": LocalTransactionState.ROLLBACK_MESSAGE,
        b"asked for": LocalTransactionState.UNKNOWN,
    }
    found: list[bytes] = []
    async with (
        TransactionProducer("transactions", rocketmq.name_server, check) as producer,
        PullConsumer("transactions", rocketmq.name_server, consume_from=FIRST) as consumer,
    ):
        consumer.assign(await consumer.queues("in-transaction"))
        for body in states:
            result = await producer.send_in_transaction(
                Message("in-transaction", body), lambda message: states[message.body]
            )
            assert result.is_ended is (result.state is not LocalTransactionState.UNKNOWN)
        async with asyncio.timeout(_WITHIN_S):
            while len(found) < 2:
                found += [message.body for message in await consumer.poll()]
    assert found == [b"committed", b"asked for"] and set(asked) == {b"asked for"}


async def test_the_example_of_the_page(admin: Admin, rocketmq: Genuine) -> None:
    """As it stands there, but for the address."""
    code = PAGE.split("```python\n")[1].split("```")[0]
    assert "127.0.0.1:9876" in code
    printed: list[str] = []
    names = {"print": lambda *parts: printed.append(" ".join(map(str, parts)))}
    await asyncio.to_thread(exec, code.replace("127.0.0.1:9876", rocketmq.name_server), names)
    assert printed[0].startswith("SEND_OK ") and printed[1:] == ["drinks one coffee"]
