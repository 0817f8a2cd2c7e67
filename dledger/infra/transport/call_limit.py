"""Limits the concurrent calls at a server, for all clients and methods together.

A call occupies memory while it is open, and a client can keep some calls open indefinitely, such as a health
watch or a read that follows the log. Each service limits its own expensive calls; this module limits all
calls together. Calls of other members are exempt: clients must not prevent a node from taking part in
elections.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio

from dledger.errors import Code
from dledger.infra.quotas import Quota, client_of, peer_host
from dledger.infra.transport.handlers import changed

#: Prefix of the details of a call that was refused because of the limit.
TOO_MANY_CALLS: Final = f"{int(Code.TOO_MANY_CONNECTIONS)} {Code.TOO_MANY_CONNECTIONS.name}"

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class CallLimit:
    """Counts the calls of all wrapped handlers. Client addresses share the limit."""

    def __init__(self, limit: int, on_hit: Callable[[], None]) -> None:
        self._calls = Quota(limit, "calls are under way at this node")
        self._on_hit = on_hit

    @property
    def under_way(self) -> int:
        return self._calls.used

    def over(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Wrap a handler. A call beyond the limit ends with RESOURCE_EXHAUSTED and 612 in its details."""
        return changed((handler,), self._limited)

    def wrap(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of grpc.aio, which is a coroutine function or an async generator function."""

        async def answer(request: Any, context: Any) -> Any:
            with self._calls.holding(await self._admitted(context)):
                return await behavior(request, context)

        async def stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            with self._calls.holding(await self._admitted(context)):
                async for item in behavior(request, context):
                    yield item

        return stream if inspect.isasyncgenfunction(behavior) else answer

    def _limited(self, method: Any) -> Any:
        wrapped = {kind: self.wrap(behavior) for kind in _KINDS if (behavior := getattr(method, kind))}
        return method._replace(**wrapped)

    async def _admitted(self, context: Any) -> str:
        """Return the address under which the call is counted, or abort the call."""
        client = client_of(peer_host(context.peer()))
        if (refusal := self._calls.refusal(client)) is not None:
            self._on_hit()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{TOO_MANY_CALLS}: {refusal}")
        return client


class HandlerList:
    """A substitute for a server in gRPC's `add_..._to_server`. It collects the handlers and does not serve
    them."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, methods: object) -> None:
        """Ignore the methods, which are the same handlers, indexed by name."""
