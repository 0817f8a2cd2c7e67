"""Reading queues that one assigns to oneself, and the blocking faces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, OutgoingMessage, PullResult, PullStatus, QueueOffset, TopicConfig
from broker_adapter.client import (
    Admin,
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    PullConsumer,
)
from broker_adapter.errors import GroupRefused, IllegalMessage, ReadFailed, Status, TopicRefused
from dledger.platform import LoopThread
from tests.broker_adapter.client.helpers import routes_to, until
from tests.broker_adapter.memory_broker import MemoryBrokers

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "broker-client.md"


@asynccontextmanager
async def world(size: int = 2) -> AsyncIterator[tuple[MemoryBrokers, PullConsumer]]:
    async with (
        MemoryBrokers(size) as brokers,
        routes_to(brokers) as routes,
        PullConsumer(routes, group="g") as consumer,
    ):
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        yield brokers, consumer


def store(brokers: MemoryBrokers, count: int, *, tag: str = "") -> None:
    properties = {"TAGS": tag} if tag else {}
    for _ in range(count):
        body = b"%d" % len(brokers.cluster.queues["t", 0])
        brokers.cluster.brokers[0]._store("t", 0, [OutgoingMessage(body, properties)], "")
    brokers.cluster.wake()


async def test_pull_says_what_it_found_and_where_to_go_on() -> None:
    async with world() as (brokers, consumer):
        store(brokers, 10)
        found = await consumer.pull("t", 0, 4, max_messages=3)
        assert [m.queue_offset for m in found.messages] == [4, 5, 6]
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (
            PullStatus.FOUND,
            7,
            0,
            10,
        )
        assert (await consumer.pull("t", 0, 10)).status is PullStatus.NO_NEW_MESSAGE
        beyond = await consumer.pull("t", 0, 11)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
        waiting = asyncio.ensure_future(consumer.pull("t", 0, 10, wait=20.0))
        await until(lambda: brokers.cluster.brokers[0].pulls == 1)
        store(brokers, 1)
        assert [m.body for m in (await waiting).messages] == [b"10"]
        assert [queue.queue_id for queue in await consumer.queues("t")] == [0, 1, 2, 3]


async def test_a_reader_reads_to_the_end_and_can_seek() -> None:
    async with world() as (brokers, consumer):
        store(brokers, 2_500)
        reader = consumer.reader("t", 0, 10)
        assert [m.queue_offset async for m in reader.messages()] == list(range(10, 2_500))
        assert reader.offset == 2_500
        reader.seek(2_490)
        got = []
        async for message in reader.messages():
            got.append(message.queue_offset)
            if len(got) == 5:
                reader.seek(7)
            if message.queue_offset == 9:
                break
        assert got == [2_490, 2_491, 2_492, 2_493, 2_494, 7, 8, 9]
        assert reader.offset == 10


async def test_who_reads_to_the_end_does_not_wait_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty queue took as long as an idle stream is silent: five seconds."""
    async with world() as (brokers, consumer):
        waits: list[int] = []
        broker = brokers.cluster.brokers[0]
        pull = broker.pull

        async def noted(*arguments: Any, wait_ms: int = 0, **options: Any) -> PullResult:
            waits.append(wait_ms)
            return await pull(*arguments, wait_ms=wait_ms, **options)

        monkeypatch.setattr(broker, "pull", noted)
        assert [m async for m in consumer.reader("t", 0, 0).messages()] == []
        store(brokers, 3)
        assert [m.queue_offset async for m in consumer.reader("t", 0, 1).messages()] == [1, 2]
        assert [m async for m in consumer.reader("t", 0, 3).messages()] == []
        assert set(waits) == {0}


async def test_a_reader_follows_through_changes_of_the_master_without_gap_or_repeat() -> None:
    async with world(3) as (brokers, consumer):
        got: list[int] = []

        async def follow() -> None:
            async for message in consumer.reader("t", 0, 0).messages(follow=True):
                got.append(message.queue_offset)

        following = asyncio.ensure_future(follow())
        for master in (1, 2, 0):
            store(brokers, 100)
            expected = len(brokers.cluster.queues["t", 0])
            await until(lambda n=expected: len(got) == n)  # type: ignore[misc]
            before = brokers.cluster.brokers.index(brokers.cluster.master)  # type: ignore[arg-type]
            brokers.cluster.lead(master)
            await brokers.nodes[before].kill()
            await brokers.nodes[before].start(int(brokers.addresses[before].rpartition(":")[2]))
        store(brokers, 100)
        await until(lambda: len(got) == 400)
        assert got == list(range(400))
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following


async def test_a_reader_skips_nothing_silently() -> None:
    async with world() as (brokers, consumer):
        store(brokers, 10)
        brokers.cluster.trim("t", 0, 5)
        for offset, status in ((4, Status.OFFSET_BELOW_MINIMUM), (11, Status.OFFSET_ABOVE_MAXIMUM)):
            with pytest.raises(ReadFailed) as refused:
                await anext(consumer.reader("t", 0, offset).messages())
            assert refused.value.status is status


async def test_a_reader_filters_by_tags() -> None:
    async with world() as (brokers, consumer):
        for tag in ("a", "b", "c", "b"):
            store(brokers, 1, tag=tag)
        reader = consumer.reader("t", 0, 0, tags="a||c")
        assert [m.queue_offset async for m in reader.messages()] == [0, 2]
        assert reader.offset == 4
        with pytest.raises(IllegalMessage):
            consumer.reader("t", 0, 0, tags="a || ")


async def test_offsets_by_time_bounds_and_commits() -> None:
    async with world() as (brokers, consumer):
        store(brokers, 5)
        brokers.cluster.now_ms += 1000
        store(brokers, 5)
        brokers.cluster.trim("t", 0, 2)
        stats = await consumer.bounds("t", 0)
        assert (stats.min_offset, stats.max_offset) == (2, 10)
        assert await consumer.offset_by_time("t", 0, brokers.cluster.now_ms) == 5
        reader = consumer.reader("t", 0, 2)
        await reader.seek_to_time(brokers.cluster.now_ms)
        assert await consumer.committed("t", 0) is None
        await reader.commit()
        assert await consumer.committed("t", 0) == 5
        brokers.cluster.lead(1)
        await consumer.commit("t", 0, 7)
        assert await consumer.committed("t", 0) == 7
        await brokers.cluster.brokers[1].join("g", "m", ["t"], 3000)
        with pytest.raises(GroupRefused):
            await consumer.commit("t", 0, 8)


async def test_what_does_not_exist_is_refused() -> None:
    async with world() as (_, consumer):
        with pytest.raises(TopicRefused):
            await consumer.pull("nothing", 0, 0)
        with pytest.raises(IllegalMessage):
            await consumer.bounds("t", 9)


async def test_admin_asks_the_master_wherever_it_is() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes, Admin(routes) as admin:
        await admin.put_topic(TopicConfig("t", 2, 2))
        brokers.cluster.lead(1)
        await admin.put_group(GroupConfig("g"))
        assert [t.name for t in await admin.topics()] == ["t"]
        assert [g.name for g in await admin.groups()] == ["g"]
        result = await brokers.cluster.brokers[1].send("t", [OutgoingMessage(b"x", {"KEYS": "k"})])
        assert (await admin.message(result.offset_ids[0])).body == b"x"
        assert [m.keys for m in await admin.query("t", "k")] == [["k"]]
        assert [s.max_offset for s in await admin.topic_stats("t")] == [1, 0]
        assert await admin.offset_by_time("t", 0, 0) == 0
        generation = await admin.reset_offsets("g", [QueueOffset("t", 0, 1)])
        assert await admin.offsets("g") == (generation, [QueueOffset("t", 0, 1)])
        await admin.delete_group("g")
        await admin.delete_topic("t")
        assert await admin.topics() == []


# -- without asyncio


@contextmanager
def brokers_in_a_thread() -> Iterator[MemoryBrokers]:
    thread, brokers = LoopThread("brokers"), MemoryBrokers()
    thread.run(brokers.__aenter__())
    try:
        yield brokers
    finally:
        thread.run(brokers.__aexit__(None, None, None))
        thread.stop()


def test_the_blocking_faces_do_the_same() -> None:
    with (
        brokers_in_a_thread() as brokers,
        BlockingAdmin(brokers.addresses) as admin,
        BlockingProducer(brokers.addresses) as producer,
        BlockingPullConsumer(",".join(brokers.addresses), group="g") as consumer,
    ):
        admin.put_topic(TopicConfig("t", 1, 1))
        assert producer.send("t", b"a", tag="x").queue_offset == 0
        assert [r.queue_offset for r in producer.send_many("t", [b"b", b"c"])] == [1, 2]
        futures = [producer.submit("t", b"%d" % i) for i in range(20)]
        assert [future.result().queue_offset for future in futures] == list(range(3, 23))
        assert len(producer.queues("t")) == len(consumer.queues("t")) == 1
        reader = consumer.reader("t", 0, 0)
        bodies = [message.body for message in reader.messages()]
        assert bodies == [b"a", b"b", b"c", *(b"%d" % i for i in range(20))]
        reader.commit()
        assert consumer.committed("t", 0) == 23
        reader.seek(21)
        assert [len(batch) for batch in reader.batches()] == [2]
        assert consumer.pull("t", 0, 22).messages[0].body == b"19"
        assert consumer.bounds("t", 0).max_offset == 23
        assert [s.max_offset for s in admin.topic_stats("t")] == [23]


def test_the_first_example_of_the_documentation_works(capsys: pytest.CaptureFixture[str]) -> None:
    source = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)[0]
    with brokers_in_a_thread() as brokers:
        named = re.search(r'SERVERS = "(.*)"', source)
        assert named is not None
        exec(compile(source.replace(named[1], ",".join(brokers.addresses)), "broker-client.md", "exec"), {})
    assert "0 new b'two teapots'" in capsys.readouterr().out


def test_a_reader_that_is_left_early_ends_its_stream() -> None:
    with brokers_in_a_thread() as brokers, BlockingProducer(brokers.addresses) as producer:
        producer.send_many("t", [b"a", b"b"], queue_id=None)
        with BlockingPullConsumer(brokers.addresses) as consumer:
            for message in consumer.reader("t", 0, 0).messages(follow=True):
                assert message.body == b"a"
                break
    producer.close()  # a second time: nothing happens
