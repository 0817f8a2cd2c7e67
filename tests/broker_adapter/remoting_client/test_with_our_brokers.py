"""The client with brokers of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting_client import (
    Message,
    Producer,
    SendStatus,
    select_by_hash,
)
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.processor.asker import LISTEN

from .scripted import route_body_of, serving

QUEUES = 2  # of topics that these brokers create by use


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[str]:
    """Address of a NameServer that knows every topic at the master."""
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        await cluster.master()

        def routes(request: RemotingCommand) -> RemotingCommand:
            return request.answer(0, body=route_body_of({"a": master_address(cluster)}, queues=QUEUES))

        async with serving(routes) as (server,):
            yield server.server.address


def master_address(cluster: BrokerCluster) -> str:
    (program,) = cluster.masters
    return program.remoting.address


async def test_messages_batches_and_keys(names: str) -> None:
    async with Producer("p", names) as producer:
        single = await producer.send(Message("orders", b"x" * 100_000, tags="a", keys=["k"]))
        assert single.status is SendStatus.SEND_OK
        batch = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        assert len(batch.offset_message_ids) == 2
        ordered = [
            await producer.send(Message("keys", b"x"), selector=select_by_hash, arg="k") for _ in range(3)
        ]
        assert [result.queue_offset for result in ordered] == [0, 1, 2]
