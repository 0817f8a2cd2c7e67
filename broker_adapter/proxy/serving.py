"""The service put together for one node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from broker_adapter.api import BrokerApi, GroupConfig, TopicConfig
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop.api import DeliveryApi, OrphanedHalf
from broker_adapter.proxy.access.guard import Guard
from broker_adapter.proxy.calls.client_calls import RouteCalls
from broker_adapter.proxy.calls.handlers import Answering, MessagingHandlers, Parts
from broker_adapter.proxy.calls.orphans import ask_about
from broker_adapter.proxy.calls.routes import Routes
from broker_adapter.proxy.clients import ClientStreams
from broker_adapter.proxy.connected import ConnectedClients
from broker_adapter.proxy.front import MessagingService
from broker_adapter.proxy.messages.client_settings import ServerLimits
from broker_adapter.proxy.messages.context import NODE_PORT, PLAIN_PORT, TLS_PORT
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.proxy.messages.methods import QUERY_ROUTE
from dledger import Code, ConfigError
from dledger.platform import wake_queue


class ReplicatedDirectory:
    """Implements Directory. `create` and `default`: the broker's own way to topics that nobody has created.
    `topics_changed` is to be called when there may be others."""

    def __init__(
        self,
        metadata: MetadataState,
        create: Callable[[str, str], Awaitable[TopicConfig]],
        default: Callable[[str], TopicConfig],
    ) -> None:
        self._metadata = metadata
        self._create = create
        self._default = default
        self._awaited: dict[str, dict[asyncio.Future[bool], None]] = {}
        self._looked_at: object = None  # the topics that there were

    def topic(self, name: str) -> TopicConfig | None:
        return self._metadata.topic(name)

    def group(self, name: str) -> GroupConfig | None:
        found = self._metadata.group(name)
        return None if found is None else found.config

    def topic_or_default(self, name: str) -> TopicConfig:
        return self._default(name)

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        return await self._create(name, remote)

    async def topic_comes(self, name: str, seconds: float) -> bool:
        if self._metadata.topic(name) is not None:
            return True
        loop = asyncio.get_running_loop()
        comes: asyncio.Future[bool] = loop.create_future()
        waiting = self._awaited.setdefault(name, {})
        waiting[comes] = None
        # The times of many may come together.
        timer = loop.call_later(seconds, lambda: self._end([comes], comes=False))
        try:
            return await comes
        finally:
            timer.cancel()
            waiting.pop(comes, None)
            if not waiting and self._awaited.get(name) is waiting:
                del self._awaited[name]

    def topics_changed(self) -> None:
        topics = self._metadata.topics
        if topics is self._looked_at:
            return
        self._looked_at = topics
        for name in [name for name in self._awaited if self._metadata.topic(name) is not None]:
            self._end(self._awaited.pop(name), comes=True)

    def role_changed(self) -> None:
        """Nobody waits here any more: the next master knows better."""
        awaited, self._awaited = self._awaited, {}
        self._end([one for waiting in awaited.values() for one in waiting], comes=False)

    def _end(self, waiting: Iterable[asyncio.Future[bool]], *, comes: bool) -> None:
        def end(one: asyncio.Future[bool]) -> bool:
            if one.done():
                return False
            one.set_result(comes)
            return True

        wake_queue().each("topics", waiting, end)


class ClientService(NamedTuple):
    """`service` is what clients reach; `handlers` answer as the master; `connected` are the clients of all
    nodes, `streams` those of this one."""

    service: MessagingService
    handlers: MessagingHandlers
    streams: ClientStreams
    connected: ConnectedClients

    def ask_producer(self, half: OrphanedHalf) -> None:
        """For `DeliveryApi.on_orphan`."""
        ask_about(half, self.connected.tell_producer)


def client_service(
    broker_name: str,
    members: Mapping[str, str],
    settings: ClientServiceSettings,
    *,
    delivery: DeliveryApi,
    broker: BrokerApi,
    directory: Directory,
    max_body_bytes: int,
    now_ms: Callable[[], int],
    answering: Callable[[MessagingHandlers, ClientStreams], Answering] | None = None,
    guard: Guard | None = None,
    node_has_tls: bool = False,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> ClientService:
    """`members`: host:port by node id. `answering`: makes who answers the calls of clients, if that are
    not the handlers themselves; `guard`: who may call; `node_has_tls`: the node's own port. ConfigError if
    `settings` name a node that is none of the members."""
    routes = routes_by_port(broker_name, members, settings, node_has_tls=node_has_tls)
    streams = ClientStreams(settings.max_clients)
    connected = ConnectedClients(streams, monotonic_s, None if guard is None else guard.may_end)
    parts = Parts(delivery, broker, directory, routes, settings, max_body_bytes, now_ms, connected.sent)
    handlers = MessagingHandlers(parts)
    service = MessagingService(
        handlers if answering is None else answering(handlers, streams),
        {QUERY_ROUTE: RouteCalls(directory, routes).known_route},
        directory,
        streams,
        settings,
        ServerLimits(max_body_bytes, settings.max_polling_ms),
        guard,
    )
    return ClientService(service, handlers, streams, connected)


def routes_by_port(
    broker_name: str,
    members: Mapping[str, str],
    settings: ClientServiceSettings,
    *,
    node_has_tls: bool = False,
) -> dict[str, Routes]:
    """Where clients reach the nodes that have come to the node's own port, or to one of those for clients."""
    for key, advertised in (("advertise", settings.advertise), ("tls_advertise", settings.tls_advertise)):
        for node_id in advertised:
            if node_id not in members:
                known = ", ".join(sorted(members))
                text = f"rocketmq_v2.{key} names {node_id!r}, which is not one of the members: {known}"
                raise ConfigError(text, code=Code.CONFIG_INVALID)
    plain = {**_at_port_of(settings.listen, members), **settings.advertise}
    tls = {**_at_port_of(settings.tls_listen, members), **settings.tls_advertise}
    return {
        NODE_PORT: Routes(broker_name, members, settings.advertise, has_tls=node_has_tls),
        PLAIN_PORT: Routes(broker_name, members, plain),
        TLS_PORT: Routes(broker_name, members, tls, has_tls=True),
    }


def _at_port_of(listen: str, members: Mapping[str, str]) -> dict[str, str]:
    """The members' hosts with the port of `listen`: the same on all nodes, unless they are advertised."""
    if not listen:
        return {}
    port = listen.rpartition(":")[2]
    return {node_id: f"{address.rpartition(':')[0]}:{port}" for node_id, address in members.items()}
