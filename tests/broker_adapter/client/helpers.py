"""What the tests of the broker's client share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker_adapter.client.producer import Producer
from broker_adapter.client.routes import StaticRoutes
from tests.broker_adapter.memory_broker import MemoryBroker, MemoryBrokers


@asynccontextmanager
async def routes_to(brokers: MemoryBrokers) -> AsyncIterator[StaticRoutes]:
    routes = StaticRoutes(brokers.addresses, poll_s=0.05)
    try:
        yield routes
    finally:
        await routes.close()


@asynccontextmanager
async def brokers_and_producer(
    size: int = 2, **options: Any
) -> AsyncIterator[tuple[MemoryBrokers, Producer]]:
    async with (
        MemoryBrokers(size) as brokers,
        routes_to(brokers) as routes,
        Producer(routes, **options) as producer,
    ):
        yield brokers, producer


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let others run until `condition` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)


class Held:
    """Holds back every send at a broker until `go`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()
        broker.before_send = self._wait

    async def _wait(self) -> None:
        self.arrived.set()
        await self.go.wait()
