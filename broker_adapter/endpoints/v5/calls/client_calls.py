"""Calls of all clients: Heartbeat, NotifyClientTermination, routes and assignments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from broker_adapter.api import TopicConfig
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import NODE_PORT, CallContext
from broker_adapter.endpoints.directory import Directory, is_orderly
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected, ok
from broker_adapter.endpoints.v5.calls.routes import Routes
from broker_adapter.endpoints.v5.messages.client_settings import check_client_type, is_consumer
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.loops.turns import large_turns
from dledger.infra.quotas import client_of

#: Minimum number of queues for which building a route blocks the event loop for milliseconds.
_MANY_QUEUES = 64
#: Maximum number of cached routes. A route with 1,024 queues has up to 180 KB, and 640 KB with the longest
#: endpoints of a request.
_KEPT_ROUTES = 64


class ClientCalls:
    def __init__(self, delivery: DeliveryApi, directory: Directory) -> None:
        self._delivery = delivery
        self._directory = directory

    async def heartbeat(
        self, request: calls.HeartbeatRequest, context: CallContext
    ) -> calls.HeartbeatResponse:
        check_client_type(request.client_type)
        group = ""
        if is_consumer(request.client_type) and request.group.name:
            group = group_of(request.group, context.namespace)
        # An account may act only for its own groups, and client ids are not secret.
        if group or not context.account:
            self._delivery.heard_of(context.holder, group)
        return calls.HeartbeatResponse(status=ok())

    async def notify_client_termination(
        self, request: calls.NotifyClientTerminationRequest, context: CallContext
    ) -> calls.NotifyClientTerminationResponse:
        group = group_of(request.group, context.namespace) if request.group.name else ""
        if group or not context.account:  # see heartbeat
            await self._delivery.release(context.holder, group)
        return calls.NotifyClientTerminationResponse(status=ok())


class RouteCalls:
    """Answers route queries from metadata that every node has. `routes`: by client port.

    All clients of a topic query its route every 30 s, and immediately after a failure. Routes are therefore
    cached, and a route with many queues is built in its own step of the event loop.
    """

    def __init__(self, directory: Directory, routes: Mapping[str, Routes]) -> None:
        self._directory = directory
        self._routes = routes
        self._made: OrderedDict[object, bytes] = OrderedDict()

    async def known_route(self, request: calls.QueryRouteRequest, context: CallContext) -> bytes | None:
        """Return the route of a topic, or None if this node does not know the topic."""
        config = self._directory.topic(topic_of(request.topic, context.namespace))
        return None if config is None else await self._route(request, config, context)

    async def query_route(self, request: calls.QueryRouteRequest, context: CallContext) -> bytes:
        """Return the route of a topic.

        The topic may be one that the first send will create, because clients query the route before they
        send. Runs on the master, which decides whether the topic exists.
        """
        config = self._directory.topic_or_default(topic_of(request.topic, context.namespace))
        return await self._route(request, config, context)

    async def query_assignment(
        self, request: calls.QueryAssignmentRequest, context: CallContext
    ) -> calls.QueryAssignmentResponse:
        topic = topic_of(request.topic, context.namespace)
        group = self._directory.group(group_of(request.group, context.namespace))
        config = self._directory.topic_or_default(topic)
        if not config.is_readable:
            raise Rejected(Code.FORBIDDEN, f"topic {topic} is not readable (perm {config.perm})")
        if group is not None and not group.consume_enable:
            raise Rejected(Code.FORBIDDEN, f"group {group.name} must not consume (consume_enable is off)")
        in_order = is_orderly(group)
        if in_order:
            await self._turn(config, context)
        routes = self._routes_for(request, context)
        assignments = routes.assignments(request.topic, config, context, in_order=in_order)
        return calls.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _routes_for(
        self, request: calls.QueryRouteRequest | calls.QueryAssignmentRequest, context: CallContext
    ) -> Routes:
        # A node with other settings may not know the port.
        return self._routes.get(context.listener, self._routes[NODE_PORT]).requested(request.endpoints)

    async def _turn(self, config: TopicConfig, context: CallContext) -> None:
        if max(config.read_queues, config.write_queues) >= _MANY_QUEUES:
            await large_turns().turn(client_of(context.remote))

    async def _route(
        self, request: calls.QueryRouteRequest, config: TopicConfig, context: CallContext
    ) -> bytes:
        routes, topic = self._routes_for(request, context), request.topic
        key = (routes.key, topic.resource_namespace, topic.name, config, routes.shape(context))
        if key not in self._made:
            await self._turn(config, context)
        if (made := self._made.get(key)) is None:
            queues = routes.queues(topic, config, context)
            made = calls.QueryRouteResponse(status=ok(), message_queues=queues).SerializeToString()
            self._made[key] = made
            if len(self._made) > _KEPT_ROUTES:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return made
