"""What all clients call: Heartbeat and NotifyClientTermination; routes and assignments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from broker_adapter.api import TopicConfig
from broker_adapter.pop.api import DeliveryApi
from broker_adapter.proxy.calls.routes import Routes
from broker_adapter.proxy.messages.client_settings import check_client_type, is_consumer
from broker_adapter.proxy.messages.context import NODE_PORT, CallContext
from broker_adapter.proxy.messages.directory import Directory, is_orderly
from broker_adapter.proxy.messages.names import group_of, topic_of
from broker_adapter.proxy.messages.rejected import Code, Rejected, ok
from broker_adapter.proxy.v2 import service_pb2 as calls
from dledger.platform import client_of, large_turns

#: From so many queues on a route takes the event loop milliseconds, or tens of them.
_MANY_QUEUES = 64
#: Routes that are not made anew each time: one of 1,024 queues has up to 180 KB.
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
        # An account answers for its groups alone, and client ids are no secrets.
        if group or not context.account:
            self._delivery.heard_of(context.holder, group)
        return calls.HeartbeatResponse(status=ok())

    async def notify_client_termination(
        self, request: calls.NotifyClientTerminationRequest, context: CallContext
    ) -> calls.NotifyClientTerminationResponse:
        group = group_of(request.group, context.namespace) if request.group.name else ""
        if group or not context.account:  # likewise
            await self._delivery.release(context.holder, group)
        return calls.NotifyClientTerminationResponse(status=ok())


class RouteCalls:
    """Answered from what every node knows. `routes`: by the port that a client has come to.

    All clients of a topic ask every 30 s, and at once after a failure: an answer is made once, and those for
    topics with many queues take turns.
    """

    def __init__(self, directory: Directory, routes: Mapping[str, Routes]) -> None:
        self._directory = directory
        self._routes = routes
        self._made: OrderedDict[object, bytes] = OrderedDict()

    async def known_route(self, request: calls.QueryRouteRequest, context: CallContext) -> bytes | None:
        """None for a topic that this node does not know."""
        config = self._directory.topic(topic_of(request.topic, context.namespace))
        return None if config is None else await self._route(request, config, context)

    async def query_route(self, request: calls.QueryRouteRequest, context: CallContext) -> bytes:
        """Also of a topic that only a send will create: clients ask for the route before they send. Whether
        there is one is the master's affair."""
        config = self._directory.topic_or_default(topic_of(request.topic, context.namespace))
        return await self._route(request, config, context)

    async def query_assignment(
        self, request: calls.QueryAssignmentRequest, context: CallContext
    ) -> calls.QueryAssignmentResponse:
        topic = topic_of(request.topic, context.namespace)
        group = self._directory.group(group_of(request.group, context.namespace))
        config = self._directory.topic_or_default(topic)
        if not config.is_readable:
            raise Rejected(Code.FORBIDDEN, f"topic {topic} gives no messages (perm {config.perm})")
        if group is not None and not group.consume_enable:
            raise Rejected(Code.FORBIDDEN, f"group {group.name} may not consume (consume_enable is off)")
        in_order = is_orderly(group)
        if in_order:
            await self._turn(config, context)
        assignments = self._routes_for(context).assignments(request.topic, config, context, in_order=in_order)
        return calls.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _routes_for(self, context: CallContext) -> Routes:
        # Nodes whose settings differ may not know each other's ports.
        return self._routes.get(context.listener, self._routes[NODE_PORT])

    async def _turn(self, config: TopicConfig, context: CallContext) -> None:
        if max(config.read_queues, config.write_queues) >= _MANY_QUEUES:
            await large_turns().turn(client_of(context.remote))

    async def _route(
        self, request: calls.QueryRouteRequest, config: TopicConfig, context: CallContext
    ) -> bytes:
        routes, topic = self._routes_for(context), request.topic
        key = (id(routes), topic.resource_namespace, topic.name, config, routes.shape(context))
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
