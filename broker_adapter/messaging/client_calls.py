"""What all clients call: Heartbeat and NotifyClientTermination; routes and assignments."""

from __future__ import annotations

from collections.abc import Mapping

from broker_adapter.api import TopicConfig
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.messaging.client_settings import check_client_type, is_consumer
from broker_adapter.messaging.context import NODE_PORT, CallContext
from broker_adapter.messaging.directory import Directory, is_orderly
from broker_adapter.messaging.names import group_of, topic_of
from broker_adapter.messaging.rejected import Code, Rejected, ok
from broker_adapter.messaging.routes import Routes
from broker_adapter.messaging.v2 import service_pb2 as calls

_PERM_READ = 4


class ClientCalls:
    def __init__(self, delivery: DeliveryApi, directory: Directory) -> None:
        self._delivery = delivery
        self._directory = directory

    async def heartbeat(
        self, request: calls.HeartbeatRequest, context: CallContext
    ) -> calls.HeartbeatResponse:
        check_client_type(request.client_type)
        if is_consumer(request.client_type) and request.group.name:
            group_of(request.group, context.namespace)
        self._delivery.heard_of(context.client_id)
        return calls.HeartbeatResponse(status=ok())

    async def notify_client_termination(
        self, request: calls.NotifyClientTerminationRequest, context: CallContext
    ) -> calls.NotifyClientTerminationResponse:
        group = group_of(request.group, context.namespace) if request.group.name else ""
        # An account answers for its groups alone, and client ids are no secrets.
        if group or not context.account:
            await self._delivery.release(context.client_id, group)
        return calls.NotifyClientTerminationResponse(status=ok())


class RouteCalls:
    """Answered from what every node knows. `routes`: by the port that a client has come to."""

    def __init__(self, directory: Directory, routes: Mapping[str, Routes]) -> None:
        self._directory = directory
        self._routes = routes

    def known_route(
        self, request: calls.QueryRouteRequest, context: CallContext
    ) -> calls.QueryRouteResponse | None:
        """None for a topic that this node does not know."""
        config = self._directory.topic(topic_of(request.topic, context.namespace))
        return None if config is None else self._route(request, config, context)

    async def query_route(
        self, request: calls.QueryRouteRequest, context: CallContext
    ) -> calls.QueryRouteResponse:
        """Creates the topic if that is allowed: a master's affair."""
        topic = topic_of(request.topic, context.namespace)
        config = self._directory.topic(topic) or await self._directory.ensure_topic(topic)
        return self._route(request, config, context)

    async def query_assignment(
        self, request: calls.QueryAssignmentRequest, context: CallContext
    ) -> calls.QueryAssignmentResponse:
        topic = topic_of(request.topic, context.namespace)
        group = self._directory.group(group_of(request.group, context.namespace))
        config = self._directory.topic(topic) or await self._directory.ensure_topic(topic)
        if not config.perm & _PERM_READ:
            raise Rejected(Code.FORBIDDEN, f"topic {topic} gives no messages (perm {config.perm})")
        if group is not None and not group.consume_enable:
            raise Rejected(Code.FORBIDDEN, f"group {group.name} may not consume (consume_enable is off)")
        assignments = self._routes_for(context).assignments(
            request.topic, config, context, in_order=is_orderly(group)
        )
        return calls.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _routes_for(self, context: CallContext) -> Routes:
        # Nodes whose settings differ may not know each other's ports.
        return self._routes.get(context.listener, self._routes[NODE_PORT])

    def _route(
        self, request: calls.QueryRouteRequest, config: TopicConfig, context: CallContext
    ) -> calls.QueryRouteResponse:
        queues = self._routes_for(context).queues(request.topic, config, context)
        return calls.QueryRouteResponse(status=ok(), message_queues=queues)
