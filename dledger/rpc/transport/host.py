"""A gRPC server for services of any kind, with health and reflection; how a server binds its port."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from dledger.errors import Code, ConfigError
from dledger.rpc.transport.call_limit import HandlerList
from dledger.rpc.transport.channels import new_server
from dledger.rpc.transport.handlers import both_stream, server_stream, service, small_requests, unary
from dledger.rpc.transport.unsent_requests import UnsentRequests


class GrpcService(NamedTuple):
    """A service of somebody else's on a node's server: its full name, for health and reflection, and its
    asyncio handlers (`grpc.method_handlers_generic_handler`). Reflection shows its methods if the generated
    module was imported."""

    name: str
    handler: grpc.GenericRpcHandler


class GrpcMethod(NamedTuple):
    """A method: an async function of (request, context). The request is None if its bytes are no message.

    With `streams_answers` it writes to the context; with `streams_requests` too it reads from it, and its
    first argument is of no use. `parse`: a deserialiser of its own, which gives None for what is no message.
    """

    behavior: Callable[..., Any]
    request_type: type[Message]
    streams_answers: bool = False
    streams_requests: bool = False
    parse: Callable[[bytes], object] | None = None


class GrpcHost:
    """Serves `services`: full name -> method name -> method. `address` is host:port as really bound."""

    def __init__(
        self,
        services: Mapping[str, Mapping[str, GrpcMethod]],
        *,
        others: Sequence[GrpcService] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`others`: services with handlers of their own. `credentials` None: plain text."""
        self.address = ""
        self._services = services
        self._others = tuple(others)
        self._credentials = credentials
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, listen: str) -> None:
        """Bind and serve. ConfigError PORT_IN_USE names the address if it cannot be had."""
        server, handlers, of_grpc = new_server(), HandlerList(), HandlerList()
        for name, methods in self._services.items():
            found = {method: _handler(one) for method, one in methods.items()}
            handlers.add_generic_rpc_handlers((service(name, found),))
        handlers.add_generic_rpc_handlers([other.handler for other in self._others])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, of_grpc)
        own = (*self._services, *(other.name for other in self._others))
        names = (*own, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names), of_grpc
        )
        handlers.add_generic_rpc_handlers(map(small_requests, of_grpc.handlers))
        server.add_generic_rpc_handlers((UnsentRequests().over(*handlers.handlers),))
        self.address = await bind(server, listen, self._credentials)
        await server.start()
        self._server = server
        for name in ("", *own):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those under way end, cut what is left after `grace_s` seconds. Repeatable."""
        server, self._server = self._server, None
        if server is not None:
            await self._health.enter_graceful_shutdown()
            await server.stop(grace_s)


def _handler(method: GrpcMethod) -> Any:
    if method.streams_requests:
        return both_stream(method.behavior, method.request_type, method.parse)
    make = server_stream if method.streams_answers else unary
    return make(method.behavior, method.request_type, method.parse)


async def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """Give a server that was not started its port; host:port as bound. ConfigError PORT_IN_USE."""
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        # gRPC only releases a server in good order that was started and stopped.
        await server.start()
        await server.stop(0)
        raise ConfigError(
            f"cannot listen on {listen}: the port is in use by another process, or not ours to bind",
            code=Code.PORT_IN_USE,
        )
    return f"{listen.rpartition(':')[0]}:{port}"
