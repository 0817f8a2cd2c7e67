"""A log that is purged under load: queues, indexes and consumers follow, on all nodes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import PullStatus, QueueStats
from broker_adapter.client import PullConsumer
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.format.message import decode
from broker_adapter.rpc.broker_client import BrokerClient
from tests.broker_adapter.process.checker import Queues, check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import BrokerProcesses, Seen

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-retention")]

FILE = 256 << 10
PURGING: dict[str, Any] = {
    "limits": {"max_batch_bytes": 192 << 10, "max_body_bytes": 128 << 10, "tail_cache_bytes": 256 << 10},
    "retention": {"max_bytes": 4 * FILE, "hold_bytes": 0, "check_interval": "100ms"},
}


async def stats_of(brokers: BrokerProcesses, node: str) -> dict[tuple[str, int], QueueStats]:
    client = BrokerClient(brokers.nodes.members[node])
    try:
        found = [one for topic in brokers.topics for one in await client.topic_stats(topic.name, 10.0)]
        return {(one.topic, one.queue_id): one for one in found}
    finally:
        await client.close()


async def alike_everywhere(brokers: BrokerProcesses) -> dict[tuple[str, int], QueueStats]:
    """Least and greatest offset of every queue, once all nodes say the same and nothing moves any more."""
    await brokers.in_step()
    found: list[dict[tuple[str, int], QueueStats]] = []

    async def look() -> bool:
        found[:] = [await stats_of(brokers, node) for node in brokers.nodes.members]
        return all(each == found[0] for each in found)

    while not await look():
        await brokers.nodes.wait_for(lambda seen: len(seen) == 3)
    return found[0]


async def below_minimum(brokers: BrokerProcesses, stats: QueueStats) -> None:
    """Each node says where the queue begins now, and gives nothing else instead."""
    for address in brokers.nodes.members.values():
        client = BrokerClient(address)
        result = await client.pull(stats.topic, stats.queue_id, stats.min_offset - 1)
        assert result.status is PullStatus.OFFSET_ILLEGAL and not result.records
        assert (result.next_offset, result.min_offset) == (stats.min_offset, stats.min_offset)
        result = await client.pull(stats.topic, stats.queue_id, stats.min_offset)
        assert decode(result.records[0]).queue_offset == stats.min_offset
        await client.close()
    routes = brokers.routes
    async with PullConsumer(routes) as consumer:
        reader = consumer.reader(stats.topic, stats.queue_id, 0)
        with pytest.raises(ReadFailed) as caught:
            async for _ in reader.messages():
                pass
        assert caught.value.status is Status.OFFSET_BELOW_MINIMUM
    await routes.close()


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
        await below_minimum(brokers, stats["orders", 0])
        queues: dict[str, Queues] = await check(brokers, load)
        for found in queues.values():
            for place, one in stats.items():
                assert (next(iter(found[place])), next(reversed(found[place]))) == (
                    one.min_offset,
                    one.max_offset - 1,
                )
