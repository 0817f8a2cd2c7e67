"""The service put together for one node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import BrokerApi, GroupConfig, TopicConfig
from broker_adapter.delivery.api import DeliveryApi, OrphanedHalf
from broker_adapter.messaging.client_calls import RouteCalls
from broker_adapter.messaging.client_settings import ServerLimits
from broker_adapter.messaging.directory import Directory
from broker_adapter.messaging.front import MessagingService
from broker_adapter.messaging.handlers import Answering, MessagingHandlers, Parts
from broker_adapter.messaging.orphans import ask_about
from broker_adapter.messaging.routes import Routes
from broker_adapter.messaging.settings import ClientServiceSettings
from broker_adapter.metadata.state import MetadataState
from dledger import Code, ConfigError


class ReplicatedDirectory:
    """Implements Directory. `create`: the broker's own way to topics that nobody has created."""

    def __init__(self, metadata: MetadataState, create: Callable[[str], Awaitable[TopicConfig]]) -> None:
        self._metadata = metadata
        self._create = create

    def topic(self, name: str) -> TopicConfig | None:
        return self._metadata.topic(name)

    def group(self, name: str) -> GroupConfig | None:
        found = self._metadata.group(name)
        return None if found is None else found.config

    async def ensure_topic(self, name: str) -> TopicConfig:
        return await self._create(name)


class ClientService(NamedTuple):
    """`service` is what clients reach; `handlers` answer as the master."""

    service: MessagingService
    handlers: MessagingHandlers

    def ask_producer(self, half: OrphanedHalf) -> None:
        """For `DeliveryApi.on_orphan`."""
        ask_about(half, self.service.clients.tell_producer)


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
    answering: Answering | None = None,
) -> ClientService:
    """`members`: host:port by node id. `answering`: who answers the calls of clients, if not the handlers
    themselves. ConfigError if `settings` name a node that is none of the members."""
    for node_id in settings.advertise:
        if node_id not in members:
            known = ", ".join(sorted(members))
            text = f"rocketmq_v2.advertise names {node_id!r}, which is not one of the members: {known}"
            raise ConfigError(text, code=Code.CONFIG_INVALID)
    routes = Routes(broker_name, members, settings.advertise)
    parts = Parts(delivery, broker, directory, routes, settings, max_body_bytes, now_ms)
    handlers = MessagingHandlers(parts)
    service = MessagingService(
        handlers if answering is None else answering,
        RouteCalls(directory, routes),
        directory,
        settings,
        ServerLimits(max_body_bytes, settings.max_polling_ms),
    )
    return ClientService(service, handlers)
