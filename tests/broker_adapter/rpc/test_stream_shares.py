"""One address that opens all streams it can, or waits as often as it can, leaves some to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.rpc.broker_client import BrokerClient
from broker_adapter.rpc.limits import BrokerLimits
from tests.broker_adapter.client.helpers import until
from tests.broker_adapter.rpc.test_service import T, World, messages, world
from tests.rpc.other_address import seen_from


@asynccontextmanager
async def two_addresses(limits: BrokerLimits) -> AsyncIterator[tuple[World, BrokerClient]]:
    """A broker whose `client` comes from one address, and a client from another one."""
    async with world(limits) as w, seen_from("127.0.0.2", w.broker.address) as address:
        other = BrokerClient(address)
        try:
            yield w, other
        finally:
            await other.close()


async def test_send_streams_are_shared_by_address() -> None:
    async with two_addresses(BrokerLimits(max_send_streams=4)) as (w, other), AsyncExitStack() as stack:
        clients = [BrokerClient(w.broker.address) for _ in range(4)]
        for client in clients:
            stack.push_async_callback(client.close)
        for client in clients[:3]:
            await client.send("t", 0, messages(b"a"), T)
        with pytest.raises(Busy, match=r"3 of 4 send streams .* one stream carries") as refused:
            await clients[3].send("t", 0, messages(b"a"), T)
        assert refused.value.status is Status.TOO_MANY_CALLS
        await other.send("t", 0, messages(b"b"), T)
        await clients[0].close()
        await until(lambda: w.node.service.sends.open_streams == 3)
        await other.close()
        await until(lambda: w.node.service.sends.open_streams == 2)
        await clients[3].send("t", 0, messages(b"a"), T)


async def test_pull_streams_are_shared_by_address() -> None:
    async with two_addresses(BrokerLimits(max_pull_streams=4)) as (w, other):
        await w.client.send("t", 0, messages(b"a"), T)
        streams = [w.client.pull_stream("t", 0, 0) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(Busy, match="3 of 4 pull streams"):
            await anext(w.client.pull_stream("t", 0, 0))
        await anext(elsewhere := other.pull_stream("t", 0, 0))
        for stream in (elsewhere, streams.pop()):
            await stream.aclose()
        await until(lambda: w.node.service.pulls.open_streams == 2)
        await anext(again := w.client.pull_stream("t", 0, 0))
        for stream in (*streams, again):
            await stream.aclose()


async def test_waiting_pulls_are_shared_by_address() -> None:
    async with two_addresses(BrokerLimits(max_waiting_pulls=4)) as (w, other):
        pulls = w.node.service.pulls
        waits = [asyncio.ensure_future(w.client.pull("t", 0, 0, wait_ms=30_000)) for _ in range(3)]
        await until(lambda: pulls.waiting_pulls == 3)
        with pytest.raises(Busy, match="3 of 4 waiting pulls"):
            await w.client.pull("t", 0, 0, wait_ms=30_000)
        waits.append(asyncio.ensure_future(other.pull("t", 0, 0, wait_ms=30_000)))
        await until(lambda: pulls.waiting_pulls == 4)
        for wait in waits:
            wait.cancel()
        await until(lambda: pulls.waiting_pulls == 0)
