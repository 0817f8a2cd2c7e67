"""Ordered consumption across a change of the master: a queue keeps its holder (docs/remoting.md)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        yield cluster


def lock_body(client_id: str, *queue_ids: int) -> bytes:
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": queue_id} for queue_id in queue_ids]
    return json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": queues}).encode()


async def lock(asker: Asker, client_id: str, *queue_ids: int) -> list[int]:
    """Ids of the queues that the client holds now."""
    granted = await asker.body(RequestCode.LOCK_BATCH_MQ, lock_body(client_id, *queue_ids))
    return sorted(one["queueId"] for one in granted["lockOKMQSet"])


class Members:
    """Two members of the group `g`, a and b, with a connection each to every node."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self._askers: dict[tuple[str, str], Asker] = {}

    async def __aenter__(self) -> Members:
        for node_id, program in self._cluster.programs.items():
            for client_id in ("a", "b"):
                asker = await self._stack.enter_async_context(asking(program.remoting.address))
                self._askers[client_id, node_id] = asker
                await asker.get(RequestCode.HEART_BEAT, beat(client_id, "g", "t"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def at(self, client_id: str, node_id: str) -> Asker:
        return self._askers[client_id, node_id]


async def test_the_holder_keeps_its_queue_through_a_failover_and_nobody_else_gets_it(
    cluster: BrokerCluster,
) -> None:
    """A new master that knew of no locks gave the queue to the first member that asked for it, while the
    holder believed in its lock for up to 30 s."""
    async with Members(cluster) as members:
        first = (await cluster.master()).config.node_id
        assert await lock(members.at("a", first), "a", 0) == [0]
        await cluster.stop(first)
        second = (await cluster.master(other_than=first)).config.node_id
        assert await lock(members.at("b", second), "b", 0, 1) == [1]
        assert await lock(members.at("a", second), "a", 0) == [0]
        assert await lock(members.at("b", second), "b", 0) == []


async def test_a_queue_that_was_unlocked_is_free_after_a_failover(cluster: BrokerCluster) -> None:
    async with Members(cluster) as members:
        first = (await cluster.master()).config.node_id
        assert await lock(members.at("a", first), "a", 0, 1) == [0, 1]
        await members.at("a", first).get(RequestCode.UNLOCK_BATCH_MQ, lock_body("a", 0))
        await cluster.stop(first)
        second = (await cluster.master(other_than=first)).config.node_id
        assert await lock(members.at("b", second), "b", 0, 1) == [0]


async def test_a_queue_that_is_locked_again_with_its_unlock_under_way_is_kept_through_a_failover(
    cluster: BrokerCluster,
) -> None:
    """Java unlocks by a one-way request when a queue goes to another member, and locks it when it is back."""
    async with Members(cluster) as members:
        first = (await cluster.master()).config.node_id
        at_first = members.at("a", first)
        assert await lock(at_first, "a", 0) == [0]
        for _ in range(20):
            at_first.oneway(RequestCode.UNLOCK_BATCH_MQ, lock_body("a", 0))
            assert await lock(at_first, "a", 0) == [0]
        await cluster.stop(first)
        second = (await cluster.master(other_than=first)).config.node_id
        assert await lock(members.at("b", second), "b", 0) == []


async def test_a_member_that_unregisters_frees_its_queues_at_once(cluster: BrokerCluster) -> None:
    """It has stopped to consume; others would wait for the end of its locks."""
    async with Members(cluster) as members:
        first = (await cluster.master()).config.node_id
        assert await lock(members.at("a", first), "a", 0) == [0]
        assert await lock(members.at("b", first), "b", 0) == []
        gone = await members.at("a", first).ask(
            RequestCode.UNREGISTER_CLIENT, clientID="a", consumerGroup="g", producerGroup=""
        )
        assert gone.code == ResponseCode.SUCCESS
        assert await lock(members.at("b", first), "b", 0) == [0]
        assert await lock(members.at("a", first), "a", 0) == []


async def test_a_member_that_unregisters_at_a_slave_keeps_its_queues_at_the_master(
    cluster: BrokerCluster,
) -> None:
    """Members tell each node; one that has left a slave only still consumes."""
    async with Members(cluster) as members:
        first = (await cluster.master()).config.node_id
        slave = next(node_id for node_id in cluster.members if node_id != first)
        assert await lock(members.at("a", first), "a", 0) == [0]
        await members.at("a", slave).get(RequestCode.UNREGISTER_CLIENT, clientID="a", consumerGroup="g")
        assert await lock(members.at("b", first), "b", 0) == []
