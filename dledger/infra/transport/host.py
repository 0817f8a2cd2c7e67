"""A gRPC server for any services, with health checks, reflection and port binding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from dledger.errors import Code, ConfigError
from dledger.infra.transport.call_limit import HandlerList
from dledger.infra.transport.channels import new_server
from dledger.infra.transport.first_messages import FirstMessages
from dledger.infra.transport.handlers import both_stream, server_stream, service, small_requests, unary


class GrpcService(NamedTuple):
    """A service that a program adds to a node's server: its full name, for health and reflection, and its
    asyncio handlers (`grpc.method_handlers_generic_handler`). Reflection shows its methods if the generated
    module was imported."""

    name: str
    handler: grpc.GenericRpcHandler


class GrpcMethod(NamedTuple):
    """A method: an async function of (request, context). The request is None if its bytes are invalid.

    With `streams_answers` it writes to the context; with `streams_requests` too it reads from it, and its
    first argument is unused. `parse`: a custom deserializer, which returns None for invalid bytes.
    """

    behavior: Callable[..., Any]
    request_type: type[Message]
    streams_answers: bool = False
    streams_requests: bool = False
    parse: Callable[[bytes], object] | None = None


class GrpcHost:
    """Serves `services`: full name -> method name -> method. `address` is host:port as actually bound."""

    def __init__(
        self,
        services: Mapping[str, Mapping[str, GrpcMethod]],
        *,
        others: Sequence[GrpcService] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`others`: services with their own handlers. If `credentials` is None, use plain text."""
        self.address = ""
        self._services = services
        self._others = tuple(others)
        self._credentials = credentials
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, listen: str) -> None:
        """Bind and serve. Raises ConfigError PORT_IN_USE, which names the address, if the port is not
        available."""
        server, handlers, of_grpc = new_server(), HandlerList(), HandlerList()
        for name, methods in self._services.items():
            wrapped = {method: _handler(definition) for method, definition in methods.items()}
            handlers.add_generic_rpc_handlers((service(name, wrapped),))
        handlers.add_generic_rpc_handlers([other.handler for other in self._others])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, of_grpc)
        own = (*self._services, *(other.name for other in self._others))
        names = (*own, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names), of_grpc
        )
        handlers.add_generic_rpc_handlers(map(small_requests, of_grpc.handlers))
        server.add_generic_rpc_handlers((FirstMessages().over(*handlers.handlers),))
        self.address = await bind(server, listen, self._credentials)
        await server.start()
        self._server = server
        for name in ("", *own):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait for pending ones, and cancel the remaining calls after `grace_s` seconds.
        Idempotent."""
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
    """Bind a server that was not started and return host:port as bound. Raises ConfigError PORT_IN_USE."""
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        # gRPC releases a server cleanly only if it was started and stopped.
        await server.start()
        await server.stop(0)
        raise ConfigError(
            f"cannot listen on {listen}: the port is in use by another process, or binding is not permitted",
            code=Code.PORT_IN_USE,
        )
    return f"{listen.rpartition(':')[0]}:{port}"
