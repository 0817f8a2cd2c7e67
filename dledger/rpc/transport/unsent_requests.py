"""Calls whose request has not arrived as a whole: for how long they may stay, and how many.

gRPC holds what has come of a request until the rest comes, and hands the call to its servicer only then. A
client that withholds the last byte keeps up to a whole message of memory for each call, as long as its
connection lives. gRPC looks for the handler of a call when its headers have come: the time runs from there.
gRPC has no means to end such a call, so it is answered here as a servicer would answer it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from dledger.errors import Code
from dledger.logs import get_logger
from dledger.rpc.transport.grpc_internals import abort, state_of

_log = get_logger("rpc")

#: A request has to arrive as a whole within this time: 4 MiB need 1.7 Mbit/s.
REQUEST_TIMEOUT_S: Final = 20.0
#: So many may be on their way for longer than LONG_S; past it the oldest goes. With messages of the greatest
#: size they take 272 MiB at one port.
MAX_UNSENT: Final = 64
LONG_S: Final = 1.0


class UnsentRequests:
    """Wraps handlers of one server; only calls with a single request are watched, as the others are judged by
    their services. On the event loop."""

    def __init__(
        self,
        on_hit: Callable[[], None] = lambda: None,
        *,
        most: int = MAX_UNSENT,
        timeout_s: float = REQUEST_TIMEOUT_S,
        long_s: float = LONG_S,
    ) -> None:
        """`on_hit` is called for each call that is ended, with RESOURCE_EXHAUSTED and 612 in its details."""
        self._on_hit = on_hit
        self._most = most
        self._timeout_s = timeout_s
        self._long_s = long_s
        self._since: dict[asyncio.Task[Any], float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Calls that are watched."""
        return len(self._since)

    def over(self, *handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """One handler for what these handle, watched."""
        return _WatchedHandler(self, handlers)

    def begin(self) -> None:
        """The headers of the current task's call have come."""
        task = asyncio.current_task()
        if task is None:
            return
        self._since[task] = task.get_loop().time()
        task.add_done_callback(self._forget)  # its client may hang up before the request
        if self._timer is None or len(self._since) == self._most + 1:
            self._look()

    def wrap(self, behavior: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
        """A method of grpc.aio, which gRPC calls when the request is there."""

        async def answer(request: Any, context: Any) -> Any:
            self._arrived()
            return await behavior(request, context)

        async def stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            self._arrived()
            async for item in behavior(request, context):
                yield item

        return stream if streams else answer

    def _arrived(self) -> None:
        """The request of the current task's call is there."""
        task = asyncio.current_task()
        if task is not None and self._since.pop(task, None) is not None:
            task.remove_done_callback(self._forget)  # a turn of the loop less for each call

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._since.pop(task, None)

    # -- inside -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """End those whose time is over, and come back when that of the next one is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._since:
            task, since = next(iter(self._since.items()))
            ends = since + (self._long_s if len(self._since) > self._most else self._timeout_s)
            if not task.done() and loop.time() < ends:
                self._timer = loop.call_at(ends, self._look)
                return
            self._end(task)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._since[task]
        if task.done():
            return
        self._on_hit()
        state = state_of(task)
        if state is None:
            _log.error("a call without a request could not be ended: gRPC is made otherwise than expected")
            return
        ending = asyncio.create_task(_abort(state))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _abort(state: Any) -> None:
    number = Code.TOO_MANY_CONNECTIONS
    text = f"{int(number)} {number.name}: the request has not come in time"
    await abort(state, grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def _is_generator(behavior: Callable[..., Any]) -> bool:
    """Else it writes to its context."""
    return inspect.isasyncgenfunction(behavior)


class _WatchedHandler(grpc.GenericRpcHandler):
    def __init__(self, unsent: UnsentRequests, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._unsent = unsent
        self._handlers = handlers
        self._methods: dict[str, Any] = {}  # those that there are: bounded by what is served

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        found = self._methods.get(method)
        if found is None:
            asked = (handler.service(handler_call_details) for handler in self._handlers)
            found = next((one for one in asked if one is not None), None)
            if found is None:
                return None
            found = self._methods[method] = self._watched(found)
        if not found.request_streaming:
            self._unsent.begin()
        return found

    def _watched(self, found: Any) -> Any:
        if found.request_streaming:
            return found
        name = "unary_stream" if found.response_streaming else "unary_unary"
        behavior = getattr(found, name)
        streams = found.response_streaming and _is_generator(behavior)
        return found._replace(**{name: self._unsent.wrap(behavior, streams=streams)})
