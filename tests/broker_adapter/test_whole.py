"""All of it together: clients that know the NameServers only, brokers on real nodes, masters that go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_adapter.api import TopicConfig
from broker_adapter.client import Admin, Consumer, Message, NameServerRoutes, Producer, StaticRoutes
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step
from tests.broker_adapter.namesrv.helpers import name_server
from tests.node.local import until

#: Messages at least, and so many when the masters have come and gone.
COUNT, AFTERWARDS, QUEUES = 150, 50, 3


class Reading:
    """What a consumer of a group was handed, until it has had `total` different bodies."""

    def __init__(self) -> None:
        self.total: int | None = None  # not known yet
        self.seen: list[tuple[int, int, bytes]] = []  # queue, offset, body

    async def run(self, routes: NameServerRoutes) -> None:
        async with Consumer(routes, "readers", {"orders": "*"}, lease=3.0) as consumer:
            async for message in consumer:
                self.seen.append((message.queue_id, message.queue_offset, message.body))
                if len({body for _, _, body in self.seen}) == self.total:
                    return

    async def progress(self, count: int) -> None:
        goal = len(self.seen) + count
        await until(lambda: len(self.seen) >= goal, within_s=30)

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
        await producer.send("orders", b"%03d" % n, sharding_key=str(n % 7))
        n += 1


async def replace_master(cluster: BrokerCluster) -> None:
    old = (await cluster.master()).config.node_id
    await cluster.stop(old)
    await cluster.master(other_than=old)
    await cluster.start(old)


async def test_a_group_gets_all_messages_in_order_while_masters_come_and_go(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path / "namesrv") as server,
        brokers(tmp_path, settings={"namesrv": [server.address], "default_queues": QUEUES}) as cluster,
    ):
        routes, reading = NameServerRoutes([server.address]), Reading()
        async with Producer(routes, timeout=20) as producer:
            await producer.send("orders", b"000", sharding_key="0")  # makes the topic
            is_over = asyncio.Event()
            producing = asyncio.create_task(produce(producer, reading, is_over))
            work = [asyncio.create_task(reading.run(routes)), producing]
            for _ in range(2):
                await reading.progress(20)
                await replace_master(cluster)
            is_over.set()
            async with asyncio.timeout(60):
                await asyncio.gather(*work)
        async with Admin(routes) as admin:
            _, offsets = await admin.offsets("readers")
            ends = {s.queue_id: s.max_offset for s in await admin.topic_stats("orders")}
        # The last message was still in somebody's hands when its consumer left.
        assert 0 <= sum(ends.values()) - sum(one.offset for one in offsets) <= 1
        await in_step(*cluster.programs.values())
        for queue_id in range(QUEUES):
            stored = {tuple(await bodies(p, "orders", queue_id)) for p in cluster.programs.values()}
            assert len(stored) == 1, "the same on all brokers"
            seen = reading.first_of(queue_id)
            assert list(seen) == sorted(seen), "in the order of the queue"
            assert tuple(seen[n] for n in range(len(seen))) == stored.pop()
        await routes.close()


async def test_a_topic_of_a_group_is_deleted_and_made_again_while_all_are_consumed(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, settings={"default_queues": QUEUES}) as cluster:
        program = await cluster.master()
        routes = StaticRoutes([program.config.address])
        seen: dict[str, set[bytes]] = {"orders": set(), "extra": set()}

        async def handle(message: Message) -> None:
            seen[message.topic].add(message.body)

        async def produce(producer: Producer, topic: str, name: bytes) -> None:
            sent = {b"%s %d" % (name, n) for n in range(20)}
            for body in sorted(sent):
                await producer.send(topic, body)
            await until(lambda: sent <= seen[topic])

        async def all_is_committed(admin: Admin) -> None:
            ends = {("orders", s.queue_id): s.max_offset for s in await admin.topic_stats("orders")}

            def committed() -> bool:
                group = program.metadata.group("readers")
                return group is not None and ends.items() <= group.offsets.items()

            await until(committed)

        async with Producer(routes, timeout=30) as producer, Admin(routes) as admin:
            for topic in seen:
                await admin.put_topic(TopicConfig(topic, QUEUES, QUEUES))
            consumer = Consumer(
                routes, "readers", list(seen), handler=handle, lease=3.0, commit_interval=0.02
            )
            async with consumer:
                for life in range(3):
                    for topic in seen:
                        await produce(producer, topic, b"%d" % life)
                    # Some of the commits are on their way meanwhile.
                    await asyncio.gather(
                        admin.delete_topic("extra"), produce(producer, "orders", b"%d, later" % life)
                    )
                    await all_is_committed(admin)
                    await admin.put_topic(TopicConfig("extra", QUEUES, QUEUES))
        await routes.close()
