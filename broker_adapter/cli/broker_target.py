"""Where the commands find the broker: NameServers, or the nodes themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from broker_adapter.client import NameServerRoutes, RouteSource, StaticRoutes
from broker_adapter.rpc.broker_client import NotConnected
from dledger import TlsFiles

_REGISTRATION_SECONDS = 3.0
_LOOK_SECONDS = 0.05


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
            routes = NameServerRoutes(self.namesrv, tls=self.tls)
        else:
            routes = StaticRoutes(self.servers, tls=self.tls)
        try:
            await self._wait_for_brokers(routes)
            yield routes
        finally:
            await routes.close()

    async def _wait_for_brokers(self, routes: Routes) -> None:
        """A NameServer that is being started answers a moment later, and then brokers register with it. If
        none comes, the command finds that out itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self.timeout, _REGISTRATION_SECONDS)):
                while not await _known_brokers(routes):
                    await asyncio.sleep(_LOOK_SECONDS)


async def _known_brokers(routes: Routes) -> Mapping[str, Mapping[int, str]]:
    try:
        return await routes.brokers()
    except NotConnected:
        return {}
