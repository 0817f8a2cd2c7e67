"""Sends: where messages go, in which order, and what is done about each kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.client.directory import Directory
from broker_adapter.client.producer import Producer
from broker_adapter.client.pull_consumer import PullConsumer
from broker_adapter.client.routes import Route, StaticRoute, StaticRoutes
from broker_adapter.client.send_queue import ProducerLimits
from broker_adapter.client.values import message_of
from broker_adapter.errors import (
    Busy,
    IllegalMessage,
    NameServerUnavailable,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.rpc.broker_client import BrokerClient, NotConnected
from tests.broker_adapter.client.helpers import Held, brokers_and_producer, routes_to, until
from tests.broker_adapter.memory_broker import MemoryBrokers


async def test_a_message_is_stored_with_what_it_was_given() -> None:
    async with brokers_and_producer() as (brokers, producer):
        receipt = await producer.send(
            "orders", b"one", tag="new", keys=["k1", "k2"], properties={"colour": "red"}, queue_id=None
        )
        [stored] = brokers.cluster.queues["orders", receipt.queue_id]
        message = message_of(stored.record)
        assert (message.body, message.tag, message.keys) == (b"one", "new", ["k1", "k2"])
        assert message.properties["colour"] == "red"
        assert message.message_id == receipt.message_id and len(receipt.message_id) in (32, 56)
        assert message.offset_id == receipt.offset_id
        assert parse_offset_id(receipt.offset_id).physical_offset in brokers.cluster.by_position
        assert (receipt.topic, receipt.broker, receipt.queue_offset) == ("orders", "broker-a", 0)
        assert message.born_timestamp > 0


async def test_unique_keys_differ_and_can_be_left_out() -> None:
    async with brokers_and_producer() as (_, producer):
        receipts = await producer.send_many("t", [b"a"] * 10)
        assert len({receipt.message_id for receipt in receipts}) == 10
    async with brokers_and_producer(unique_keys=False) as (_, producer):
        assert (await producer.send("t", b"a")).message_id == ""


async def test_messages_take_turns_over_the_writable_queues() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t", read_queues=4, write_queues=3))
        receipts = [await producer.send("t", b"x") for _ in range(6)]
        assert [receipt.queue_id for receipt in receipts] == [0, 1, 2, 0, 1, 2]
        assert [queue.queue_id for queue in await producer.queues("t")] == [0, 1, 2]


async def test_queue_id_sharding_key_and_selector_decide_the_queue() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        assert (await producer.send("t", b"x", queue_id=2)).queue_id == 2
        shards = {(await producer.send("t", b"x", sharding_key="customer 7")).queue_id for _ in range(5)}
        assert len(shards) == 1
        assert (await producer.send("t", b"x", queue_selector=lambda queues: queues[-1])).queue_id == 3
        with pytest.raises(IllegalMessage):
            await producer.send("t", b"x", queue_id=4)
        with pytest.raises(ValueError, match="exclude"):
            await producer.send("t", b"x", queue_id=1, sharding_key="a")


async def test_send_many_is_one_batch_in_one_queue() -> None:
    async with brokers_and_producer() as (brokers, producer):
        receipts = await producer.send_many("t", [b"a", b"b", b"c"])
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
        assert len({receipt.queue_id for receipt in receipts}) == 1
        assert [count for _, _, count in brokers.cluster.brokers[0].sends] == [3]
        assert await producer.send_many("t", []) == []


async def test_concurrent_sends_to_a_queue_share_batches_and_keep_their_order() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        bodies = [b"%d" % i for i in range(500)]
        receipts = await asyncio.gather(*(producer.send("t", body, queue_id=1) for body in bodies))
        assert brokers.cluster.bodies("t", 1) == bodies
        assert [receipt.queue_offset for receipt in receipts] == list(range(500))
        batches = [count for _, _, count in brokers.cluster.brokers[0].sends]
        assert sum(batches) == 500 and len(batches) < 250


async def test_a_bad_message_fails_alone() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        gate = asyncio.Event()
        brokers.cluster.brokers[0].before_send = gate.wait
        sends = [
            asyncio.ensure_future(
                producer.send("t", b"%d" % i, queue_id=0, properties={"p": "" if i == 5 else "v"})
            )
            for i in range(10)
        ]
        gate.set()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        bad = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert len(bad) == 1 and isinstance(outcomes[5], IllegalMessage)
        assert outcomes[5].status is Status.PROPERTIES_INVALID
        assert brokers.cluster.bodies("t", 0) == [b"%d" % i for i in range(10) if i != 5]


async def test_a_topic_that_is_not_created_by_itself_is_refused() -> None:
    async with brokers_and_producer() as (brokers, producer):
        brokers.cluster.auto_create = False
        with pytest.raises(TopicRefused) as refused:
            await producer.send("t", b"x")
        assert refused.value.status is Status.TOPIC_UNKNOWN
        await brokers.cluster.brokers[0].put_topic(TopicConfig("readonly", perm=4))
        with pytest.raises(TopicRefused) as refused:
            await producer.send("readonly", b"x")
        assert refused.value.status is Status.TOPIC_NOT_WRITABLE


class WithoutMaster:
    """Routes that show slaves only, at first: all brokers were restarted, and none has been elected."""

    def __init__(self, real: StaticRoutes, times: int) -> None:
        self._real = real
        self._left = times

    async def route(self, topic: str) -> Route:
        self._left -= 1
        if self._left < 0:
            return await self._real.route(topic)
        return StaticRoute(topic, {}, {"broker-a": {1: "127.0.0.1:9"}})

    def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        return self._real.watch(topics)


async def test_without_a_master_nobody_knows_topics_and_a_sharding_key_keeps_its_queue() -> None:
    async with MemoryBrokers(2) as brokers, routes_to(brokers) as real:
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t", read_queues=8, write_queues=8))
        async with Producer(real) as producer:
            expected = (await producer.send("t", b"0", sharding_key="seven")).queue_id
        for times in range(1, 4):
            async with Producer(WithoutMaster(real, times)) as producer:
                assert (await producer.send("t", b"1", sharding_key="seven")).queue_id == expected
        async with PullConsumer(WithoutMaster(real, 1)) as consumer:
            with pytest.raises(NotConnected):
                await consumer.queues("t")


class LostNameServers:
    """Routes as NameServers give them, that are all gone after the first question."""

    def __init__(self, real: StaticRoutes) -> None:
        self._real = real
        self.gone = False

    async def route(self, topic: str) -> Route:
        if self.gone:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, "no NameServer answers")
        return await self._real.route(topic)

    async def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        for topic in topics:
            yield await self.route(topic)


async def test_without_name_servers_the_brokers_themselves_tell_who_is_master() -> None:
    async with MemoryBrokers(3) as brokers, routes_to(brokers) as real:
        routes = LostNameServers(real)
        async with Producer(routes) as producer:
            await producer.send("t", b"a", queue_id=0)
            await producer.send("t", b"b", queue_id=0)
            routes.gone = True
            await brokers.nodes[0].kill()
            brokers.cluster.lead(2)
            with suppress(PutIndeterminate):  # the connection may have ended in the middle of it
                await producer.send("t", b"c", queue_id=0)
            receipt = await producer.send("t", b"d", queue_id=0)
            assert brokers.cluster.bodies("t", 0)[receipt.queue_offset] == b"d"
        async with Producer(routes, timeout=0.3) as producer:
            with pytest.raises(PutRefused):
                await producer.send("t", b"e")


async def test_what_is_no_message_is_refused_before_it_is_sent() -> None:
    async with brokers_and_producer() as (brokers, producer):
        with pytest.raises(IllegalMessage):
            await producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(IllegalMessage):
            await producer.send("t", b"x", properties={"p": 7})  # type: ignore[dict-item]
        with pytest.raises(IllegalMessage):
            await producer.send("no such name", b"x")
        assert not brokers.cluster.by_position


async def test_the_new_master_is_found_by_redirection() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        brokers.cluster.lead(1)
        await producer.send("t", b"b", queue_id=0)
        assert brokers.cluster.bodies("t", 0) == [b"a", b"b"]
        assert brokers.cluster.brokers[1].sends == [("t", 0, 1)]


async def test_sends_wait_through_a_time_without_a_master() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        brokers.cluster.lead(None)
        sends = [asyncio.ensure_future(producer.send("t", b"%d" % i, queue_id=0)) for i in range(10)]
        await until(lambda: all(not send.done() for send in sends))
        brokers.cluster.lead(1)
        await asyncio.gather(*sends)
        assert brokers.cluster.bodies("t", 0) == [b"a", *(b"%d" % i for i in range(10))]


async def test_without_a_master_till_the_end_the_failure_is_definite() -> None:
    async with brokers_and_producer(timeout=0.3) as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        brokers.cluster.lead(None)
        with pytest.raises(NotMaster):
            await producer.send("t", b"b", queue_id=0)
        for node in brokers.nodes:
            await node.kill()
        with pytest.raises(PutRefused):
            await producer.send("t", b"c", queue_id=0)
        assert brokers.cluster.bodies("t", 0) == [b"a"]


async def test_a_broker_that_is_busy_for_a_while_gets_the_message_later() -> None:
    async with brokers_and_producer() as (brokers, producer):
        tries = []

        def refuse() -> None:
            tries.append(1)
            if len(tries) < 4:
                raise Busy(Status.TOO_MANY_PENDING_BYTES, "full")

        brokers.cluster.brokers[0].before_send = refuse
        await producer.send("t", b"a")
        assert len(tries) == 4 and len(brokers.cluster.by_position) == 1


async def test_every_attempt_of_a_send_is_told_of() -> None:
    told: list[tuple[list[bytes], int]] = []

    def note(bodies: Sequence[bytes], number: int) -> None:
        told.append((list(bodies), number))

    async with brokers_and_producer(on_attempt=note) as (brokers, producer):

        def refuse() -> None:
            if len(told) < 3:
                raise Busy(Status.TOO_MANY_PENDING_BYTES, "full")

        brokers.cluster.brokers[0].before_send = refuse
        await producer.send_many("t", [b"a", b"b"])
        await producer.send("t", b"c")
        assert told == [([b"a", b"b"], 1), ([b"a", b"b"], 2), ([b"a", b"b"], 3), ([b"c"], 1)]


async def test_a_master_killed_before_its_answer_leaves_the_fate_unknown() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        never = asyncio.Event()
        brokers.cluster.brokers[0].after_send = never.wait
        send = asyncio.ensure_future(producer.send("t", b"b", queue_id=0))
        await until(lambda: len(brokers.cluster.by_position) == 2)
        brokers.cluster.lead(1)
        await brokers.nodes[0].kill()
        with pytest.raises(PutIndeterminate):
            await send
        await producer.send("t", b"c", queue_id=0)
        assert brokers.cluster.bodies("t", 0) == [b"a", b"b", b"c"]


async def test_retry_indeterminate_stores_at_least_once_and_in_order() -> None:
    async with brokers_and_producer(retry_indeterminate=True) as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        never = asyncio.Event()
        brokers.cluster.brokers[0].after_send = never.wait
        send = asyncio.ensure_future(producer.send("t", b"b", queue_id=0))
        await until(lambda: len(brokers.cluster.by_position) == 2)
        later = asyncio.ensure_future(producer.send("t", b"c", queue_id=0))
        brokers.cluster.lead(1)
        await brokers.nodes[0].kill()
        receipt = await send
        await later
        assert brokers.cluster.bodies("t", 0) == [b"a", b"b", b"b", b"c"]
        assert receipt.queue_offset == 2


async def test_a_master_that_says_nothing_is_left_when_another_one_leads() -> None:
    """A paused process keeps its connections; the watched route tells that it is deposed."""
    async with brokers_and_producer(stall_timeout=60.0, timeout=60.0) as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        held = Held(brokers.cluster.brokers[0])
        send = asyncio.ensure_future(producer.send("t", b"b", queue_id=0))
        await held.arrived.wait()
        brokers.cluster.lead(1)
        with pytest.raises(PutIndeterminate):
            await send
        await producer.send("t", b"c", queue_id=0)
        assert brokers.cluster.brokers[1].sends == [("t", 0, 1)]


async def test_a_time_limit_says_whether_the_message_was_sent() -> None:
    async with brokers_and_producer() as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        held = Held(brokers.cluster.brokers[0])
        with pytest.raises(PutIndeterminate):
            await producer.send("t", b"b", queue_id=0, timeout=0.2)
        # While a batch is under way, a later one of the queue has not left.
        first = asyncio.ensure_future(producer.send("t", b"c", queue_id=0))
        held.arrived.clear()
        await held.arrived.wait()
        with pytest.raises(PutRefused):
            await producer.send("t", b"d", queue_id=0, timeout=0.1)
        held.go.set()
        await first


async def test_what_was_refused_while_the_master_was_looked_for_is_not_sent_when_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with brokers_and_producer() as (brokers, producer):
        await producer.send("t", b"a", queue_id=0)
        find, found = Directory.master, asyncio.Event()

        async def slowly(directory: Directory, broker: str, topic: str) -> BrokerClient:
            await found.wait()
            return await find(directory, broker, topic)

        monkeypatch.setattr(Directory, "master", slowly)
        with pytest.raises(PutRefused):
            await producer.send("t", b"b", queue_id=0, timeout=0.1)
        patient = asyncio.ensure_future(producer.send("t", b"c", queue_id=0))
        found.set()
        await patient
        assert brokers.cluster.bodies("t", 0) == [b"a", b"c"]


async def test_more_than_the_limit_under_way_is_refused() -> None:
    limits = ProducerLimits(max_pending_bytes=10_000)
    async with brokers_and_producer(limits=limits) as (brokers, producer):
        gate = asyncio.Event()
        await producer.send("t", b"")
        brokers.cluster.brokers[0].before_send = gate.wait
        first = asyncio.ensure_future(producer.send("t", bytes(9_000)))
        await until(lambda: producer._pending_bytes > 0)
        with pytest.raises(Busy):
            await producer.send("t", bytes(2_000))
        gate.set()
        await first
        await producer.send("t", bytes(9_000))


async def test_close_fails_what_is_under_way_and_takes_no_more() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        producer = Producer(routes)
        await producer.send("t", b"a", queue_id=0)
        held = Held(brokers.cluster.brokers[0])
        first = asyncio.ensure_future(producer.send("t", b"b", queue_id=0))
        await held.arrived.wait()
        second = asyncio.ensure_future(producer.send("t", b"c", queue_id=0))
        await until(lambda: producer._pending_bytes > 300)
        await producer.close()
        with pytest.raises(PutIndeterminate):
            await first
        with pytest.raises(PutRefused):
            await second
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send("t", b"d")
