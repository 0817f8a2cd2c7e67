"""Assembles the RocketMQ 5 endpoint of one node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from broker_adapter.api import BrokerApi, GroupConfig, TopicConfig
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.access.guard import Guard
from broker_adapter.endpoints.context import NODE_PORT, PLAIN_PORT, TLS_PORT
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.v5.calls.client_calls import RouteCalls
from broker_adapter.endpoints.v5.calls.handlers import HandlerDependencies, MessagingHandlers
from broker_adapter.endpoints.v5.calls.routes import Routes
from broker_adapter.endpoints.v5.clients import ClientStreams
from broker_adapter.endpoints.v5.connected import ConnectedClients
from broker_adapter.endpoints.v5.front import MessagingService, NodeCalls
from broker_adapter.endpoints.v5.messages.client_settings import SettingsLimits
from broker_adapter.endpoints.v5.messages.message_out import stored_message
from broker_adapter.endpoints.v5.messages.methods import QUERY_ROUTE
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.writable_topics import TopicCreation
from broker_adapter.put.sender import SendApi
from broker_adapter.scheduled.deferring import OrphanedHalf
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import Code, ConfigError
from dledger.infra.loops.turns import wake_queue

_log = logging.getLogger(__name__)

#: Sends a command to a producer: (topic, client id, command). Returns whether it reached one.
SendToProducer = Callable[[str, str, calls.TelemetryCommand], bool]


class ReplicatedDirectory:
    """Implements Directory. Call `topics_changed` when topics may have changed."""

    def __init__(self, metadata: MetadataState, creation: TopicCreation) -> None:
        self._metadata = metadata
        self._creation = creation
        self._awaited: dict[str, dict[asyncio.Future[bool], None]] = {}
        self._checked_topics: object = None  # the topics at the last check

    def topic(self, name: str) -> TopicConfig | None:
        return self._metadata.topic(name)

    def group(self, name: str) -> GroupConfig | None:
        found = self._metadata.group(name)
        return None if found is None else found.config

    def topic_or_default(self, name: str) -> TopicConfig:
        return self._creation.or_default(name)

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        return await self._creation.ensure(name, remote)

    def existing_topic(self, name: str) -> TopicConfig | None:
        return self._creation.existing(name)

    async def topic_comes(self, name: str, seconds: float) -> bool:
        if self._metadata.topic(name) is not None:
            return True
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[bool] = loop.create_future()
        waiting = self._awaited.setdefault(name, {})
        waiting[wait] = None
        # Many waits may time out at the same time.
        timer = loop.call_later(seconds, lambda: self._end_waits([wait], exists=False))
        try:
            return await wait
        finally:
            timer.cancel()
            waiting.pop(wait, None)
            if not waiting and self._awaited.get(name) is waiting:
                del self._awaited[name]

    def topics_changed(self) -> None:
        topics = self._metadata.topics
        if topics is self._checked_topics:
            return
        self._checked_topics = topics
        for name in [name for name in self._awaited if self._metadata.topic(name) is not None]:
            self._end_waits(self._awaited.pop(name), exists=True)

    def role_changed(self) -> None:
        """End all waits, because the next master has newer information."""
        awaited, self._awaited = self._awaited, {}
        self._end_waits([one for waiting in awaited.values() for one in waiting], exists=False)

    def _end_waits(self, waiting: Iterable[asyncio.Future[bool]], *, exists: bool) -> None:
        def end_wait(wait: asyncio.Future[bool]) -> bool:
            if wait.done():
                return False
            wait.set_result(exists)
            return True

        wake_queue().each("topics", waiting, end_wait)


class ClientService(NamedTuple):
    """The assembled endpoint.

    `service`: the gRPC service for clients. `handlers`: the handlers of the master. `connected`: the clients
    of all nodes. `streams`: the clients of this node.
    """

    service: MessagingService
    handlers: MessagingHandlers
    streams: ClientStreams
    connected: ConnectedClients

    def ask_producer(self, half: OrphanedHalf) -> None:
        """Send a transaction check. A callback for `DeliveryApi.on_orphan`."""
        check_transaction(half, self.connected.send_to_producer)


def client_service(
    broker_name: str,
    members: Mapping[str, str],
    settings: ClientServiceSettings,
    *,
    sends: SendApi,
    delivery: DeliveryApi,
    broker: BrokerApi,
    directory: Directory,
    max_body_bytes: int,
    now_ms: Callable[[], int],
    node_calls: Callable[[MessagingHandlers, ClientStreams], NodeCalls] | None = None,
    guard: Guard | None = None,
    node_has_tls: bool = False,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> ClientService:
    """Assemble the endpoint.

    `members`: host:port by node id. `node_calls` builds the components that answer calls from the handlers;
    if None, the handlers answer calls themselves. `guard`: access control. `node_has_tls`: True if the port
    of the node uses TLS. Raises ConfigError if `settings` name a node that is not a member.
    """
    routes = routes_by_port(broker_name, members, settings, node_has_tls=node_has_tls)
    streams = ClientStreams(settings.max_clients)
    connected = ConnectedClients(streams, monotonic_s, None if guard is None else guard.may_end)
    parts = HandlerDependencies(
        sends, delivery, broker, directory, routes, settings, max_body_bytes, now_ms, connected.sent
    )
    handlers = MessagingHandlers(parts)
    service = MessagingService(
        NodeCalls(handlers) if node_calls is None else node_calls(handlers, streams),
        {QUERY_ROUTE: RouteCalls(directory, routes).known_route},
        directory,
        streams,
        settings,
        SettingsLimits(max_body_bytes, settings.max_polling_ms),
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
    """Return the routes of each port: the port of the node, and the ports for clients."""
    for key, advertised in (("advertise", settings.advertise), ("tls_advertise", settings.tls_advertise)):
        for node_id in advertised:
            if node_id not in members:
                known = ", ".join(sorted(members))
                text = f"rocketmq_v2.{key} names {node_id!r}, which is not one of the members: {known}"
                raise ConfigError(text, code=Code.CONFIG_INVALID)
    ports = {
        NODE_PORT: (settings.advertise, "", node_has_tls),
        PLAIN_PORT: (settings.advertise, settings.listen, False),
        TLS_PORT: (settings.tls_advertise, settings.tls_listen, True),
    }
    by_request = settings.advertise_requested
    return {
        port: Routes(broker_name, members, advertised, listen=listen, has_tls=has_tls, by_request=by_request)
        for port, (advertised, listen, has_tls) in ports.items()
    }


def check_transaction(half: OrphanedHalf, send_to_producer: SendToProducer) -> bool:
    """Send a transaction check to the producer of a half message, or to another producer of its topic.

    Returns False if no such producer is connected. The next check tries to find a producer again.
    """
    command = calls.TelemetryCommand(
        recover_orphaned_transaction_command=calls.RecoverOrphanedTransactionCommand(
            message=stored_message(half.record, pb.Resource(name=half.topic)),
            transaction_id=half.transaction_id,
        )
    )
    if send_to_producer(half.topic, half.client_id, command):
        return True
    _log.info("transaction %s of %s: no producer is connected", half.transaction_id, half.topic)
    return False
