"""NameServerService: requests in, checked and queued; answers out, errors as numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import grpc.aio

from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.rpc_convert import (
    answer_to_pb,
    info_to_pb,
    registration_from_pb,
    registration_request_of,
    route_to_pb,
    status_of,
)
from broker_adapter.namesrv.tables import NodeKey
from broker_adapter.namesrv.values import ClusterInfo, Registration, invalid
from broker_adapter.namesrv.watching import Watcher
from broker_adapter.v1 import namesrv_pb2 as pb
from dledger.platform import GrpcMethod, client_of, handlers, peer_host

SERVICE = "dledger.broker.v1.NameServerService"

#: A message of routes or names is sent when it has grown to this (bytes).
_CHUNK_BYTES = 1 << 20
#: A stream of registrations on which nothing comes for so long is ended. Brokers come every 30 s.
_SESSION_IDLE_S = 600.0

#: 1,024 topics with the longest names; a setting of 64 KiB, and room to say that one is longer.
_parse_watch = handlers.parser(pb.WatchRoutesRequest, most_bytes=256 << 10)
_parse_kv_put = handlers.parser(pb.PutKvConfigRequest, most_bytes=128 << 10)

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class NameServerService:
    """The gRPC face of a NameServer."""

    def __init__(
        self, server: NameServer, info: Callable[[], ClusterInfo], callers: Callers | None = None
    ) -> None:
        """`callers` None: nobody shows a certificate."""
        self._server = server
        self._callers = callers
        self._info = info
        self._stopping = asyncio.Event()

    def methods(self) -> dict[str, GrpcMethod]:
        parse = partial(registration_request_of, max_topics=self._server.tables.limits.max_topics)
        return {
            "Register": GrpcMethod(self.register, pb.RegisterBrokerRequest, parse=parse),
            "Session": GrpcMethod(
                self.session,
                pb.RegisterBrokerRequest,
                streams_answers=True,
                streams_requests=True,
                parse=parse,
            ),
            "Unregister": GrpcMethod(self.unregister, pb.UnregisterBrokerRequest),
            "GetRoute": GrpcMethod(self.get_route, pb.GetRouteRequest),
            "WatchRoutes": GrpcMethod(
                self.watch_routes, pb.WatchRoutesRequest, streams_answers=True, parse=_parse_watch
            ),
            "GetClusterInfo": GrpcMethod(self.get_cluster_info, pb.GetClusterInfoRequest),
            "ListRoutedTopics": GrpcMethod(self.list_routed_topics, pb.ListRoutedTopicsRequest),
            "WipeWritePermission": GrpcMethod(self.wipe_write_permission, pb.WipeWritePermissionRequest),
            "PutKvConfig": GrpcMethod(self.put_kv_config, pb.PutKvConfigRequest, parse=_parse_kv_put),
            "GetKvConfig": GrpcMethod(self.get_kv_config, pb.GetKvConfigRequest),
            "DeleteKvConfig": GrpcMethod(self.delete_kv_config, pb.DeleteKvConfigRequest),
            "ListKvConfig": GrpcMethod(self.list_kv_config, pb.ListKvConfigRequest),
        }

    def stop(self) -> None:
        """End the streams, so that brokers and watchers go elsewhere at once."""
        self._stopping.set()

    # -- brokers ------------------------------------------------------------------------------------------

    async def register(
        self, request: pb.RegisterBrokerRequest | None, context: _Context
    ) -> pb.RegisterBrokerResponse:
        try:
            async with self._server.registrations.admitted():
                given = registration_from_pb(_whole(request))
                self._check_register(given, context)
                return answer_to_pb(self._server.register(given, origin=_origin(context)))
        except BrokerError as error:
            return pb.RegisterBrokerResponse(status=status_of(error))

    def _check_register(self, given: Registration, context: _Context) -> None:
        if self._callers is not None:
            self._callers.check_register(context.auth_context(), given.node_id, given.address)

    def _check_change(self, context: _Context, what: str) -> None:
        if self._callers is not None:
            self._callers.check_change(context.auth_context(), what)

    async def session(self, _: object, context: _Context) -> None:
        try:
            session = self._server.open_session(_origin(context))
        except BrokerError as error:
            # The first request is answered, so that the broker sees a number.
            await self._next(context)
            await context.write(pb.RegisterBrokerResponse(status=status_of(error)))
            return
        key: NodeKey | None = None
        try:
            while (request := await self._next(context)) is not grpc.aio.EOF:
                try:
                    key = await self._register_over(session, key, request, context)
                except BrokerError as error:
                    await context.write(pb.RegisterBrokerResponse(status=status_of(error)))
                request = None  # or a stream kept its last one until the next
        finally:
            self._server.close_session(session, key)

    async def _register_over(
        self, session: int, key: NodeKey | None, request: pb.RegisterBrokerRequest | None, context: _Context
    ) -> NodeKey:
        async with self._server.registrations.admitted():
            given = registration_from_pb(_whole(request))
            own = (given.broker_name, given.node_id)
            if key is not None and own != key:
                raise invalid(f"this stream is of {key[1]} of {key[0]}; {own[1]} of {own[0]} needs its own")
            self._check_register(given, context)
            answer = self._server.register(given, session, _origin(context))
        await context.write(answer_to_pb(answer))
        return own

    async def _next(self, context: _Context) -> Any:
        """The next request; EOF as well when the server stops or the stream has been silent for long."""
        reading = asyncio.ensure_future(context.read())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait(
                (reading, stopping), timeout=_SESSION_IDLE_S, return_when=asyncio.FIRST_COMPLETED
            )
            return reading.result() if reading.done() else grpc.aio.EOF
        finally:
            reading.cancel()
            stopping.cancel()
            # A broken connection is no news to whoever leaves, but somebody has to ask for the error.
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def unregister(
        self, request: pb.UnregisterBrokerRequest | None, context: _Context
    ) -> pb.UnregisterBrokerResponse:
        try:
            async with self._server.registrations.admitted():
                asked = _whole(request)
                if self._callers is not None:
                    self._callers.check_unregister(context.auth_context(), asked.node_id)
                self._server.unregister(asked.broker_name, asked.node_id, asked.role_epoch)
                return pb.UnregisterBrokerResponse()
        except BrokerError as error:
            return pb.UnregisterBrokerResponse(status=status_of(error))

    async def wipe_write_permission(
        self, request: pb.WipeWritePermissionRequest | None, context: _Context
    ) -> pb.WipeWritePermissionResponse:
        try:
            async with self._server.registrations.admitted():
                asked = _whole(request)
                self._check_change(context, "change the write permission of a broker")
                topics = self._server.wipe_write_permission(asked.broker_name, give_back=asked.give_back)
                return pb.WipeWritePermissionResponse(topics=topics)
        except BrokerError as error:
            return pb.WipeWritePermissionResponse(status=status_of(error))

    # -- routes -------------------------------------------------------------------------------------------

    async def get_route(self, request: pb.GetRouteRequest | None, context: _Context) -> pb.GetRouteResponse:
        try:
            async with self._server.routes.admitted():
                return pb.GetRouteResponse(route=route_to_pb(self._server.route(_whole(request).topic)))
        except BrokerError as error:
            return pb.GetRouteResponse(status=status_of(error))

    async def watch_routes(self, request: pb.WatchRoutesRequest | None, context: _Context) -> None:
        try:
            watcher = self._server.watch(_whole(request).topics, _origin(context))
        except BrokerError as error:
            await context.write(pb.WatchRoutesResponse(status=status_of(error)))
            return
        telling = asyncio.ensure_future(self._tell(watcher, context))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((telling, stopping), return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            self._server.watchers.remove(watcher)
            telling.cancel()
            stopping.cancel()
            await asyncio.gather(telling, stopping, return_exceptions=True)

    async def _tell(self, watcher: Watcher, context: _Context) -> None:
        while True:
            # Awaiting the write is the flow control: while it waits, changes only mark the watcher.
            await context.write(self._news(watcher))
            await watcher.wait()

    def _news(self, watcher: Watcher) -> pb.WatchRoutesResponse:
        message, size = pb.WatchRoutesResponse(), 0
        while size < _CHUNK_BYTES and (topic := watcher.take()) is not None:
            route = route_to_pb(self._server.tables.route(topic))
            size += route.ByteSize()
            message.routes.append(route)
        message.complete = not watcher.is_behind
        return message

    async def list_routed_topics(
        self, request: pb.ListRoutedTopicsRequest | None, context: _Context
    ) -> pb.ListRoutedTopicsResponse:
        try:
            async with self._server.routes.admitted():
                after = _whole(request).after
                left = [topic for topic in self._server.tables.topics() if topic > after]
        except BrokerError as error:
            return pb.ListRoutedTopicsResponse(status=status_of(error))
        answer, size = pb.ListRoutedTopicsResponse(), 0
        for topic in left:
            if size >= _CHUNK_BYTES:
                answer.more = True
                break
            answer.topics.append(topic)
            size += len(topic) + 4
        return answer

    async def get_cluster_info(
        self, request: pb.GetClusterInfoRequest | None, context: _Context
    ) -> pb.GetClusterInfoResponse:
        try:
            async with self._server.routes.admitted():
                _whole(request)
                return info_to_pb(self._info())
        except BrokerError as error:
            return pb.GetClusterInfoResponse(status=status_of(error))

    # -- settings -----------------------------------------------------------------------------------------

    async def put_kv_config(
        self, request: pb.PutKvConfigRequest | None, context: _Context
    ) -> pb.PutKvConfigResponse:
        try:
            async with self._server.config.admitted():
                asked = _whole(request)
                self._check_change(context, "change settings")
                await self._server.kv_put(asked.namespace, asked.key, asked.value)
                return pb.PutKvConfigResponse()
        except BrokerError as error:
            return pb.PutKvConfigResponse(status=status_of(error))

    async def get_kv_config(
        self, request: pb.GetKvConfigRequest | None, context: _Context
    ) -> pb.GetKvConfigResponse:
        try:
            async with self._server.config.admitted():
                asked = _whole(request)
                return pb.GetKvConfigResponse(value=self._server.kv.get(asked.namespace, asked.key))
        except BrokerError as error:
            return pb.GetKvConfigResponse(status=status_of(error))

    async def delete_kv_config(
        self, request: pb.DeleteKvConfigRequest | None, context: _Context
    ) -> pb.DeleteKvConfigResponse:
        try:
            async with self._server.config.admitted():
                asked = _whole(request)
                self._check_change(context, "change settings")
                await self._server.kv_delete(asked.namespace, asked.key)
                return pb.DeleteKvConfigResponse()
        except BrokerError as error:
            return pb.DeleteKvConfigResponse(status=status_of(error))

    async def list_kv_config(
        self, request: pb.ListKvConfigRequest | None, context: _Context
    ) -> pb.ListKvConfigResponse:
        try:
            async with self._server.config.admitted():
                namespace, kv = _whole(request).namespace, self._server.kv
                found = kv.list(namespace) if namespace else dict.fromkeys(kv.namespaces(), "")
                return pb.ListKvConfigResponse(values=found)
        except BrokerError as error:
            return pb.ListKvConfigResponse(status=status_of(error))


def _origin(context: _Context) -> str:
    """The address that a call comes from, without its port."""
    return client_of(peer_host(context.peer()))


def _whole(request: Any) -> Any:
    """The request; NameServerRefused (NAMESRV_INVALID) if its bytes were no message."""
    if request is None:
        raise error_for(Status.NAMESRV_INVALID, "the bytes are no message of this protocol")
    return request
