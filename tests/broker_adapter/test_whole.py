"""All of it together: clients that know the NameServers only, brokers on real nodes, masters that go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_adapter.client import Admin, Consumer, NameServerRoutes, Producer
from tests.broker_adapter.cluster import bodies, brokers, in_step
from tests.broker_adapter.namesrv.helpers import name_server
from tests.node.local import until


async def test_a_group_gets_all_messages_in_order_while_masters_come_and_go(tmp_path: Path) -> None:
    async with name_server(tmp_path / "namesrv") as server:
        async with brokers(tmp_path, settings={"namesrv": [server.address], "default_queues": 3}) as cluster:
            routes = NameServerRoutes([server.address])
            seen: list[tuple[int, int, bytes]] = []
            done = asyncio.Event()
            async with Producer(routes, timeout=20) as producer:

                async def produce() -> None:
                    for n in range(150):
                        await producer.send("orders", b"%03d" % n, sharding_key=str(n % 7))

                async def consume() -> None:
                    async with Consumer(routes, "readers", {"orders": "*"}, lease=3.0) as consumer:
                        async for message in consumer:
                            seen.append((message.queue_id, message.queue_offset, message.body))
                            if len({body for _, _, body in seen}) == 150:
                                await consumer.commit()
                                done.set()
                                return

                await producer.send("orders", b"000", sharding_key="0")
                consuming = asyncio.create_task(consume())
                producing = asyncio.create_task(produce())
                for _ in range(2):
                    await until(lambda have=len(seen): len(seen) >= have + 20, within_s=30)
                    old = await cluster.master()
                    await cluster.stop(old.config.node_id)
                    await cluster.master(other_than=old.config.node_id)
                    await cluster.start(old.config.node_id)
                await producing
                async with asyncio.timeout(60):
                    await done.wait()
                await consuming
            async with Admin(routes) as admin:
                _, offsets = await admin.offsets("readers")
                ends = {s.queue_id: s.max_offset for s in await admin.topic_stats("orders")}
            # The last message was still in somebody's hands when its consumer left.
            assert 0 <= sum(ends.values()) - sum(one.offset for one in offsets) <= 1
            await in_step(*cluster.programs.values())
            for queue_id in range(3):
                stored = {tuple(await bodies(p, "orders", queue_id)) for p in cluster.programs.values()}
                assert len(stored) == 1, "the same on all brokers"
                first_seen: dict[int, bytes] = {}
                for queue, offset, body in seen:
                    if queue == queue_id:
                        first_seen.setdefault(offset, body)
                assert tuple(first_seen[n] for n in range(len(first_seen))) == stored.pop()
                assert list(first_seen) == sorted(first_seen), "in the order of the queue"
            await routes.close()
