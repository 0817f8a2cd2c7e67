"""Running members of released clients follow a reset of their group's offsets, and do not undo it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from broker_adapter.client import Admin, Message, MessageQueue, Producer
from broker_adapter.errors import GroupRefused
from dledger.cli.local.local_cluster import LocalCluster

from . import genuine, ours
from .faults import kill_master

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

QUEUES, COUNT = 3, 20
#: Java and Go drop a queue 10 s after the answer to its pull, and look for queues every 20 s.
FOLLOWED_WITHIN_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    with ours.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["4.9.8", "5.5.0", "go"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> genuine.Client:
    folder = tmp_path_factory.mktemp("client")
    if request.param == "go":
        return genuine.go_client(folder)
    return genuine.java_client(request.param, folder)


async def fill(servers: str, topic: str) -> None:
    async with Admin(servers) as admin, Producer("p", servers) as producer:
        await admin.create_topic(topic, queues=QUEUES)
        for queue in range(QUEUES):
            name = MessageQueue(topic, "broker-a", queue)
            for number in range(COUNT):
                await producer.send(Message(topic, b"%d-%d" % (queue, number)), queue=name)


async def until_committed(servers: str, topic: str, group: str, end: int = COUNT) -> None:
    """Until the offset of each queue is `end`."""
    async with Admin(servers) as admin:

        async def is_committed() -> bool:
            try:
                offsets = await admin.group_offsets(group)
            except GroupRefused:  # no member has connected to the master
                return False
            return [at for queue, at in offsets.items() if queue.topic == topic] == [end] * QUEUES

        await genuine.eventually(is_committed, FOLLOWED_WITHIN_S)


async def reset(servers: str, topic: str, group: str, to: int) -> None:
    async with Admin(servers) as admin:
        for queue in range(QUEUES):
            await admin.reset_offset(group, MessageQueue(topic, "broker-a", queue), to)


async def until_all_came_twice(members: list[genuine.ClientProcess], first: int) -> None:
    """Until members have got every message from this offset on a second time."""
    wanted = {f"{queue}-{number}" for queue in range(QUEUES) for number in range(first, COUNT)}

    async def came() -> bool:
        got = Counter(
            line.split()[1] for member in members for line in list(member.lines) if line.startswith("got ")
        )
        return all(got[body] >= 2 for body in wanted)

    await genuine.eventually(came, FOLLOWED_WITHIN_S)


@pytest.mark.parametrize(
    ("members", "has_failover"), [(1, False), (3, False), (1, True)], ids=["one", "three", "failover"]
)
def test_members_consume_again_from_the_offset_of_a_reset(
    cluster: LocalCluster, client: genuine.Client, members: int, has_failover: bool
) -> None:
    servers = cluster.plan.companions[0].address
    topic = group = f"reset{client.slug}{members}{has_failover}"
    asyncio.run(fill(servers, topic))
    with ExitStack() as stack:
        running = []
        for _ in range(members):
            member = stack.enter_context(client.begin("orderly", servers, topic, group, "*", "100000"))
            member.wait_for("ready")
            member.read_beside()
            running.append(member)
        asyncio.run(until_committed(servers, topic, group))
        asyncio.run(reset(servers, topic, group, 5))
        if has_failover:
            kill_master(cluster)
        asyncio.run(until_all_came_twice(running, 5))
        asyncio.run(until_committed(servers, topic, group))
