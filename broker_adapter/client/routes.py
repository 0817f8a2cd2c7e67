"""Where topics are: what the clients ask a NameServer, or a list of brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from broker_adapter.api import PERM_READ, PERM_WRITE, BrokerInfo, BrokerRole, TopicConfig
from broker_adapter.client.values import MessageQueue
from broker_adapter.errors import BrokerError
from broker_adapter.rpc.broker_client import BrokerClient, NotConnected
from dledger import TlsFiles
from dledger.platform import ClientTls

MASTER_ID = 0
#: A broker that does not say within this time what it is counts as silent, in seconds.
_PROBE_TIMEOUT = 0.5


class Route(Protocol):
    """Where a topic is; nowhere if `queues` is empty. `broker_adapter.namesrv`'s Route is one."""

    @property
    def topic(self) -> str: ...

    @property
    def queues(self) -> Mapping[str, TopicConfig]:
        """By broker name."""

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address; id 0 is the master."""

    @property
    def master_terms(self) -> Mapping[str, int]:
        """Term of the master, of the broker names that have one: of two routes the higher is the newer."""


class RouteSource(Protocol):
    """Who knows routes: `broker_adapter.namesrv`'s client, or `StaticRoutes`."""

    async def route(self, topic: str) -> Route:
        """The route of a topic now. BrokerError if nobody can tell."""

    def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        """The routes of topics, and again whenever they change. Goes on while there is somebody to ask."""


class StaticRoute(NamedTuple):
    topic: str
    queues: Mapping[str, TopicConfig] = {}
    brokers: Mapping[str, Mapping[int, str]] = {}
    master_terms: Mapping[str, int] = {}


class StaticRoutes:
    """Routes without a NameServer: asks a list of brokers for their roles and topics.

    Args:
        addresses: "host:port", as a sequence or separated by commas. Brokers that others name as master are
            asked, too.
        tls: PEM files for TLS; None: plain text.
        poll_s: how often `watch` asks.
    """

    def __init__(
        self, addresses: Iterable[str] | str, *, tls: TlsFiles | None = None, poll_s: float = 1.0
    ) -> None:
        named = addresses.split(",") if isinstance(addresses, str) else addresses
        self._addresses = dict.fromkeys(a.strip() for a in named if a.strip())
        if not self._addresses:
            raise ValueError("at least one broker address is needed")
        self._security = None if tls is None else ClientTls(tls)
        self._poll_s = poll_s
        self._clients: dict[str, BrokerClient] = {}

    async def route(self, topic: str) -> StaticRoute:
        infos = await self._infos()
        brokers = _by_name(infos)
        queues: dict[str, TopicConfig] = {}
        for name, ids in brokers.items():
            # The master (id 0) knows the newest config; a slave is better than nobody.
            for _, address in sorted(ids.items()):
                if (config := await self._config(address, topic)) is not None:
                    queues[name] = config
                    break
        terms = {name: infos[ids[MASTER_ID]].term for name, ids in brokers.items() if MASTER_ID in ids}
        return StaticRoute(topic, queues, brokers, terms)

    async def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address. NotConnected if no broker answers."""
        return _by_name(await self._infos())

    async def watch(self, topics: Collection[str]) -> AsyncIterator[StaticRoute]:
        known: dict[str, StaticRoute] = {}
        while True:
            for topic in topics:
                try:
                    route = await self.route(topic)
                except BrokerError:
                    continue  # nobody answers: that is no route, and whoever needs one asks himself
                if known.get(topic) != route:
                    known[topic] = route
                    yield route
            await asyncio.sleep(self._poll_s)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    def _client(self, address: str) -> BrokerClient:
        client = self._clients.get(address)
        if client is None:
            security = None if self._security is None else self._security()
            client = self._clients[address] = BrokerClient(address, security)
        return client

    async def _infos(self) -> dict[str, BrokerInfo]:
        """What the brokers that answer say of themselves. NotConnected if there is none."""
        found: dict[str, BrokerInfo] = {}
        asked: set[str] = set()
        while new := [a for a in self._addresses if a not in asked]:
            asked.update(new)
            answers = await asyncio.gather(
                *(self._client(a).info(_PROBE_TIMEOUT) for a in new), return_exceptions=True
            )
            for address, answer in zip(new, answers, strict=True):
                if isinstance(answer, BrokerInfo):
                    found[address] = answer
                    if answer.master_address:
                        self._addresses.setdefault(answer.master_address)
                elif not isinstance(answer, BrokerError):
                    raise answer
        if not found:
            raise NotConnected(f"none of {', '.join(self._addresses)} answers")
        return found

    async def _config(self, address: str, topic: str) -> TopicConfig | None:
        try:
            topics = await self._client(address).topics(_PROBE_TIMEOUT)
        except BrokerError:
            return None
        return next((config for config in topics if config.name == topic), None)


def _by_name(infos: Mapping[str, BrokerInfo]) -> dict[str, dict[int, str]]:
    """Of several that call themselves master of one name, the one of the highest term is it."""
    brokers: dict[str, dict[int, str]] = {}
    for address, info in sorted(infos.items(), key=lambda item: item[1].term):
        ids = brokers.setdefault(info.broker_name, {})
        if info.role is BrokerRole.SLAVE:
            ids[info.broker_id] = address
        else:
            ids[MASTER_ID] = address
    return brokers


def names_with_master(route: Route) -> list[str]:
    """The broker names whose master is known, sorted."""
    return sorted(name for name, ids in route.brokers.items() if MASTER_ID in ids)


def writable_queues(route: Route) -> list[MessageQueue]:
    """The queues of a route that can be written to, sorted."""
    return _queues(route, PERM_WRITE, lambda config: config.write_queues)


def readable_queues(route: Route) -> list[MessageQueue]:
    """The queues of a route that can be read from, sorted."""
    return _queues(route, PERM_READ, lambda config: config.read_queues)


def _queues(route: Route, perm: int, size: Callable[[TopicConfig], int]) -> list[MessageQueue]:
    return [
        MessageQueue(route.topic, broker, queue_id)
        for broker, config in sorted(route.queues.items())
        if config.perm & perm
        for queue_id in range(size(config))
    ]
