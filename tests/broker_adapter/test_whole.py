"""All of it together: clients that know the NameServers only, brokers on real nodes, masters that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeSettings,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN
from tests.node.local import until

#: Messages at least, and so many when the masters have come and gone.
COUNT, AFTERWARDS, QUEUES = 150, 50, 3
OPTIONS = ClientOptions(
    timeout=60.0,
    poll_name_server_s=0.2,
    heartbeat_broker_s=0.2,
    avoid_broker_s=0.5,
)
CONSUMING = ConsumeSettings(
    is_ordered=True,
    suspend_s=0.05,
    lock_interval_s=0.2,
    lock_live_s=1.5,
    pull_retry_s=0.05,
    commit_interval_s=0.02,
)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@asynccontextmanager
async def world(folder: Path, count: int) -> AsyncIterator[tuple[BrokerCluster, str]]:
    """Brokers, and the address of a NameServer that knows their master."""
    async with name_server(folder / "namesrv") as server:
        # Locks are short: those of a member whose farewell went to an old master are waited for.
        door = {"remoting": {**LISTEN["remoting"], "lock_live_ms": 3_000}}
        settings = {**door, "namesrv": [server.address], "default_queues": QUEUES}
        async with brokers(folder, count, settings=settings) as cluster:
            yield cluster, server.address


class Reading:
    """What a consumer of a group was handed, until it has had `total` different bodies."""

    def __init__(self) -> None:
        self.total: int | None = None  # not known yet
        self.seen: list[tuple[int, int, bytes]] = []  # queue, offset, body

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        self.seen += [(one.queue.queue_id, one.queue_offset, one.body) for one in messages]

    async def to_the_end(self) -> None:
        await until(lambda: len({body for _, _, body in self.seen}) == self.total)

    async def progress(self, count: int) -> None:
        goal = len(self.seen) + count
        await until(lambda: len(self.seen) >= goal)

    def first_of(self, queue_id: int) -> dict[int, bytes]:
        """Each offset of a queue, in the order in which it was handed out first."""
        found: dict[int, bytes] = {}
        for queue, offset, body in self.seen:
            if queue == queue_id:
                found.setdefault(offset, body)
        return found


async def produce(producer: Producer, reading: Reading, is_over: asyncio.Event) -> None:
    """Until the masters have come and gone, however quick the machine is, and some more."""
    n = 0
    while reading.total is None or n < reading.total:
        if reading.total is None and is_over.is_set():
            reading.total = max(COUNT, n + AFTERWARDS)
        await producer.send(Message("orders", b"%03d" % n))
        n += 1


def member(names: str, reading: Reading) -> PushConsumer:
    made = PushConsumer(
        "readers", names, reading.listen, consume_from=FIRST, settings=CONSUMING, options=OPTIONS
    )
    made.subscribe("orders")
    return made


async def replace_master(cluster: BrokerCluster) -> None:
    old = (await cluster.master()).config.node_id
    await cluster.stop(old)
    await cluster.master(other_than=old)
    await cluster.start(old)


@pytest.mark.slow
async def test_a_group_gets_all_in_order_while_masters_and_members_come_and_go(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, 3) as (cluster, names):
        reading = Reading()
        async with Admin(names, options=OPTIONS) as admin:
            await admin.create_topic("orders", queues=QUEUES)
            first, second = member(names, reading), member(names, reading)
            async with first, Producer("writers", names, options=OPTIONS) as producer:
                is_over = asyncio.Event()
                producing = asyncio.create_task(produce(producer, reading, is_over))
                await reading.progress(20)
                await replace_master(cluster)
                async with second:
                    await until(lambda: bool(second.assigned))
                    await reading.progress(20)
                    await replace_master(cluster)
                is_over.set()
                await producing
                await reading.to_the_end()
            ends = {queue: one.max_offset for queue, one in (await admin.topic_stats("orders")).items()}
            assert await admin.group_offsets("readers") == ends, "committed when it left"
        await in_step(*cluster.programs.values())
        for queue_id in range(QUEUES):
            stored = {tuple(await bodies(p, "orders", queue_id)) for p in cluster.programs.values()}
            assert len(stored) == 1, "the same on all brokers"
            seen = reading.first_of(queue_id)
            assert list(seen) == sorted(seen), "in the order of the queue"
            assert tuple(seen[n] for n in range(len(seen))) == stored.pop()


async def test_a_topic_of_a_group_is_deleted_and_made_again_while_all_are_consumed(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as (cluster, names):
        program = await cluster.master()
        seen: dict[str, set[bytes]] = {"orders": set(), "extra": set()}

        async def listen(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                seen[message.topic].add(message.body)

        async def produce(producer: Producer, topic: str, name: bytes) -> None:
            sent = {b"%s %d" % (name, n) for n in range(20)}
            for body in sorted(sent):
                await producer.send(Message(topic, body))
            await until(lambda: sent <= seen[topic])

        async def all_is_committed(admin: Admin) -> None:
            stats = await admin.topic_stats("orders")
            ends = {(queue.topic, queue.queue_id): one.max_offset for queue, one in stats.items()}

            def committed() -> bool:
                group = program.metadata.group("readers")
                return group is not None and ends.items() <= group.offsets.items()

            await until(committed)

        async with (
            Producer("writers", names, options=OPTIONS, create_topics=False) as producer,
            Admin(names, options=OPTIONS) as admin,
        ):
            for topic in seen:
                await admin.create_topic(topic, queues=QUEUES)
            consumer = PushConsumer(
                "readers", names, listen, consume_from=FIRST, settings=CONSUMING, options=OPTIONS
            )
            for topic in seen:
                consumer.subscribe(topic)
            async with consumer:
                for life in range(3):
                    for topic in seen:
                        await produce(producer, topic, b"%d" % life)
                    # Some of the commits are on their way meanwhile.
                    await asyncio.gather(
                        admin.delete_topic("extra"), produce(producer, "orders", b"%d, later" % life)
                    )
                    await all_is_committed(admin)
                    await admin.create_topic("extra", queues=QUEUES)
