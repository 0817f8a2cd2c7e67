"""How many calls may be under way at a server, whoever makes them and whatever they wait for.

A call costs memory as long as it lasts, and some last as long as their caller likes: a watched health
status, a reader that follows. Each service bounds what it knows to be expensive; this bounds their sum. Calls
of other members are served by handlers without this limit: clients must not cost a node its elections.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio

from dledger.errors import Code, Overloaded
from dledger.rpc.transport.channels import FIRST_MESSAGE_TIMEOUT_S, MAX_FIRST_MESSAGES

#: How the details of a call begin that was refused because too many are under way.
TOO_MANY_CALLS: Final = f"{int(Code.TOO_MANY_CONNECTIONS)} {Code.TOO_MANY_CONNECTIONS.name}"

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class CallLimit:
    """Counts the calls of all handlers that it wraps."""

    def __init__(self, most: int, on_hit: Callable[[], None]) -> None:
        self.under_way = 0
        self._most = most
        self._on_hit = on_hit

    def over(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """The same handler; a call past the limit ends with RESOURCE_EXHAUSTED, its details with 612."""
        return _LimitedHandler(self, handler)

    def wrap(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """A method of grpc.aio, as a coroutine function or as an async generator function."""

        async def answer(request: Any, context: Any) -> Any:
            if self.under_way >= self._most:
                await self._refuse(context)
            self.under_way += 1
            try:
                return await behavior(request, context)
            finally:
                self.under_way -= 1

        async def stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            if self.under_way >= self._most:
                await self._refuse(context)
            self.under_way += 1
            try:
                async for item in behavior(request, context):
                    yield item
            finally:
                self.under_way -= 1

        return stream if inspect.isasyncgenfunction(behavior) else answer

    async def _refuse(self, context: Any) -> None:
        self._on_hit()
        text = f"{TOO_MANY_CALLS}: {self._most} calls are under way at this node"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


class FirstMessages:
    """Streams that cannot be judged before their first message has come: for how long, and how many. Past the
    number the oldest has to go: one that speaks at once, as those of members do, gets through."""

    def __init__(self, limit_hit: Callable[[str], None]) -> None:
        self._waiting: dict[asyncio.Timeout, None] = {}  # the oldest first
        self._limit_hit = limit_hit

    async def read(self, context: Any) -> Any:
        """What `context.read` gives. Overloaded (TOO_MANY_CONNECTIONS) if it does not come in time."""
        if len(self._waiting) >= MAX_FIRST_MESSAGES:
            self._limit_hit("first_messages")
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.reschedule(0)
        limit = asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S)
        try:
            async with limit:
                self._waiting[limit] = None
                return await context.read()
        except TimeoutError:
            self._limit_hit("first_message_timeout")
            text = f"no first message within {FIRST_MESSAGE_TIMEOUT_S:g} s, or too many streams without one"
            raise Overloaded(text, code=Code.TOO_MANY_CONNECTIONS) from None
        finally:
            self._waiting.pop(limit, None)


class _LimitedHandler(grpc.GenericRpcHandler):
    def __init__(self, limit: CallLimit, handler: grpc.GenericRpcHandler) -> None:
        self._limit = limit
        self._handler = handler
        self._methods: dict[str, Any] = {}  # those that there are: bounded by what is served

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method not in self._methods:
            found: Any = self._handler.service(handler_call_details)
            if found is None:
                return None
            self._methods[method] = self._limited(found)
        return self._methods[method]

    def _limited(self, found: Any) -> Any:
        wrapped = {kind: self._limit.wrap(behavior) for kind in _KINDS if (behavior := getattr(found, kind))}
        return found._replace(**wrapped)


class HandlerList:
    """Stands for a server in gRPC's `add_..._to_server`: keeps the handlers instead of serving them."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, methods: object) -> None:
        """The same methods once more, for servers that look them up by name first."""
