"""Where the commands find the broker: NameServers, or the nodes themselves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from broker_adapter.client import Route, RouteSource, StaticRoutes
from broker_adapter.client.routes import StaticRoute
from broker_adapter.errors import TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from dledger import TlsFiles


class Routes(RouteSource, Protocol):
    """What producers, consumers and `Admin` want to know."""

    async def brokers(self) -> Mapping[str, Mapping[int, str]]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """What the options of a command name. Either `namesrv` or `servers` is empty."""

    namesrv: Sequence[str]
    servers: Sequence[str]
    tls: TlsFiles | None
    timeout: float  # seconds for one call, changes of the master included

    @asynccontextmanager
    async def routes(self) -> AsyncGenerator[Routes, None]:
        routes: Routes
        if self.namesrv:
            routes = NameServerRoutes(NameServerClient(self.namesrv, self.tls))
        else:
            routes = StaticRoutes(self.servers, tls=self.tls)
        try:
            yield routes
        finally:
            await routes.close()


class NameServerRoutes:
    """What NameServers know. A topic that they do not know has no queues, but may be created at a broker."""

    def __init__(self, client: NameServerClient) -> None:
        self._client = client

    async def route(self, topic: str) -> Route:
        try:
            return await self._client.route(topic)
        except TopicRefused:
            return StaticRoute(topic, {}, await self.brokers())

    async def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        async with aclosing(self._client.watch(topics)) as changes:
            async for route in changes:
                yield route

    async def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address."""
        found: dict[str, dict[int, str]] = {}
        for entry in (await self._client.cluster_info()).brokers:
            ids = found.setdefault(entry.broker_name, {})
            if entry.broker_id >= 0:
                ids[entry.broker_id] = entry.address
        return found

    async def close(self) -> None:
        await self._client.close()
