"""A log that is purged under load: queues, indexes and consumers follow, on all nodes alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import QueueStats
from broker_adapter.client import Admin, MessageQueue, PullConsumer, PullStatus
from dledger import AsyncClient
from tests.broker_adapter.process.checker import Queues, check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import OPTIONS, BrokerProcesses, Seen, is_writable
from tests.process.cluster import GROUP

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-retention")]

FILE = 256 << 10
PURGING: dict[str, Any] = {
    "limits": {"max_batch_bytes": 192 << 10, "max_body_bytes": 128 << 10, "tail_cache_bytes": 256 << 10},
    "retention": {"max_bytes": 4 * FILE, "hold_bytes": 0, "check_interval": "100ms"},
}


Stats = dict[MessageQueue, QueueStats]
PATIENTLY = replace(OPTIONS, timeout=30.0)


async def alike_everywhere(brokers: BrokerProcesses) -> Stats:
    """Least and greatest offset of every queue, as each node says once it is the master. They are asked one
    after the other: asked again where entries were let go meanwhile."""
    await brokers.in_step()
    for _ in range(3):
        found = await as_each_node_says(brokers)
        if all(each == found[0] for each in found):
            return found[0]
    raise AssertionError(found)


async def as_each_node_says(brokers: BrokerProcesses) -> list[Stats]:
    found: list[Stats] = []
    async with AsyncClient(brokers.nodes.addresses, group=GROUP) as log:
        for node in brokers.nodes.members:
            if await brokers.master() != node:
                await log.transfer_leadership(node)

            def leads(seen: Seen, node: str = node) -> bool:
                return is_writable(seen[node]) and all(s.leader_id == node for s in seen.values())

            await brokers.nodes.wait_for(leads)
            await brokers.published()
            await below_minimum(brokers)
            found.append(await stats_now(brokers))
    return found


async def stats_now(brokers: BrokerProcesses) -> Stats:
    async with Admin(brokers.names, options=PATIENTLY) as admin:
        of_topics = [await admin.topic_stats(topic.name) for topic in brokers.topics]
    return {queue: one for of_topic in of_topics for queue, one in of_topic.items()}


async def below_minimum(brokers: BrokerProcesses) -> None:
    """The master says where the queue begins now, and gives nothing else instead."""
    async with PullConsumer("readers", brokers.names, options=PATIENTLY) as consumer:
        is_moved = True
        while is_moved:
            queue, one = next(iter((await stats_now(brokers)).items()))
            below = await consumer.pull(queue, one.min_offset - 1)
            first = await consumer.pull(queue, one.min_offset)
            is_moved = first.min_offset > one.min_offset  # entries are let go while this asks
    assert below.status is PullStatus.OFFSET_ILLEGAL and not below.messages
    assert (below.next_offset, below.min_offset) == (one.min_offset, one.min_offset)
    assert first.messages and first.messages[0].queue_offset == one.min_offset, first


async def test_queues_begin_where_the_log_does_and_a_node_without_that_log_gets_them_anew(
    tmp_path: Path,
) -> None:
    async with BrokerProcesses(tmp_path, log=PURGING, data_file_size=FILE) as brokers:
        nodes = brokers.nodes
        async with Load(brokers, size=1000, consumers=0, pause_s=0.01) as load:
            await load.progress(200)
            lost = brokers.slaves(await brokers.master())[0]
            end = (await nodes.wait_for(lambda seen: seen[lost])).ledger_end_index
            await nodes.kill(lost)

            def far_ahead(seen: Seen) -> bool:
                return len(seen) == 2 and all(s.ledger_begin_index > end + 1 for s in seen.values())

            await nodes.wait_for(far_ahead, nodes=brokers.slaves(lost), within_s=90)
            await nodes.start([lost])
            await nodes.wait_for(
                lambda seen: seen[lost].ledger_begin_index > end and not seen[lost].needs_image, within_s=60
            )
            # It counts and serves: with another one gone, it and the third one are the majority.
            gone = brokers.slaves(lost)[0]
            await nodes.kill(gone)
            await load.progress(200)
            await nodes.start([gone])
            await load.progress(200)
        stats = await alike_everywhere(brokers)
        for one in stats.values():
            assert 0 < one.min_offset < one.max_offset
        queues: dict[str, Queues] = await check(brokers, load)
        for found in queues.values():
            for queue, one in stats.items():
                place = (queue.topic, queue.queue_id)
                assert (next(iter(found[place])), next(reversed(found[place]))) == (
                    one.min_offset,
                    one.max_offset - 1,
                )
