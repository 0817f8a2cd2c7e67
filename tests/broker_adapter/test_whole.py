"""All of it together: clients that know the NameServers only, brokers on real nodes, masters that go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_adapter.client import Admin, Consumer, NameServerRoutes, Producer
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step
from tests.broker_adapter.namesrv.helpers import name_server
from tests.node.local import until

COUNT, QUEUES = 150, 3


class Reading:
    """What a consumer of a group was handed, until it has had COUNT different bodies."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes]] = []  # queue, offset, body

    async def run(self, routes: NameServerRoutes) -> None:
        async with Consumer(routes, "readers", {"orders": "*"}, lease=3.0) as consumer:
            async for message in consumer:
                self.seen.append((message.queue_id, message.queue_offset, message.body))
                if len({body for _, _, body in self.seen}) == COUNT:
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


async def produce(producer: Producer) -> None:
    for n in range(COUNT):
        await producer.send("orders", b"%03d" % n, sharding_key=str(n % 7))


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
            work = [asyncio.create_task(reading.run(routes)), asyncio.create_task(produce(producer))]
            for _ in range(2):
                await reading.progress(20)
                await replace_master(cluster)
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
