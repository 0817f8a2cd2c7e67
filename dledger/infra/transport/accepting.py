"""A gRPC server for asyncio that requests several calls in advance.

gRPC's own server requests one call, and the next one when the event loop has received it. Each call then
needs a hand-over from gRPC's thread and several turns of the loop. On a busy machine this delay, not the
work, limits the number of unary calls per second and of calls that share an append: with 64 callers, a group
had only 7 appends. This server also needs no task that waits for each call, which takes a fifth of the CPU
time of gRPC's server.

This is the only module that uses private parts of grpcio. It is used with tested versions only; with other
versions gRPC's own server is used. `tests/rpc/test_accepting.py` runs with the installed grpcio, and `make
test-grpc` runs it with each minor version of the pinned range.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Self

import grpc
import grpc.aio

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:
    cygrpc = None

#: Tested minor versions: a private method may keep its name and change its meaning.
TRIED: Final = ("1.84.", "1.85.")
_SERVER_METHODS: Final = (
    "_make_request_call_future",
    "_request_call",
    "_start_shutting_down",
    "is_running",
)
_AioServer: Any = getattr(cygrpc, "AioServer", object)

#: Maximum number of calls that gRPC may deliver before the first one is handled.
AT_ONCE: Final = 32


class _IncomingCall(asyncio.Future[Any]):
    """A future for a call, or for the failure to get one. A callback that is added after completion runs
    immediately instead of in the next turn of the loop, so calls that arrive together are handled
    together."""

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        if self.done():
            fn(self)
        else:
            super().add_done_callback(fn, context=context)


class AcceptingServer(_AioServer):  # type: ignore[misc]
    """The implementation inside a `grpc.aio.Server`. The main loop of gRPC awaits one future per incoming
    call. This class requests the calls in advance."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        self._on_loop = loop
        self._requested = 0
        self._arrived: deque[_IncomingCall] = deque()  # not awaited yet
        self._awaited: _IncomingCall | None = None  # awaited, and not completed yet

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Return a future for the next call. The main loop calls it once per call. `method`: for registered
        methods."""
        if method is not None:
            future: asyncio.Future[Any] = super()._make_request_call_future(method)
            return future
        while self._requested + len(self._arrived) < AT_ONCE:
            self._request()
        if self._arrived:
            return self._arrived.popleft()
        self._awaited = _IncomingCall(loop=self._on_loop)
        return self._awaited

    async def _start_shutting_down(self) -> None:
        await super()._start_shutting_down()
        self._arrived.clear()

    def _request(self) -> None:
        """Request one call from gRPC. Uses a single future, because a task per call is expensive."""
        request = self._request_call()
        pending = request.send(None)
        assert isinstance(pending, asyncio.Future), f"cannot await {pending}"
        pending._asyncio_future_blocking = False  # as a task does, to show that it awaits the future
        pending.add_done_callback(partial(self._on_call, request))
        self._requested += 1

    def _on_call(self, request: Coroutine[Any, Any, Any], _: asyncio.Future[Any]) -> None:
        self._requested -= 1
        call, self._awaited = self._awaited, None
        if call is None or call.done():
            call = _IncomingCall(loop=self._on_loop)
            if self.is_running():  # otherwise no task would receive it, and the server would not end
                self._arrived.append(call)
        try:
            request.send(None)
            raise AssertionError("gRPC awaited a second future before it returned the call")
        except StopIteration as end:
            call.set_result(end.value)
        except asyncio.CancelledError:
            call.cancel()
        except Exception as error:
            call.set_exception(error)
            call.exception()  # all fail when the server stops, and most are never awaited


def supports_advance_requests() -> bool:
    """Return True if this grpcio supports requesting calls in advance."""
    inner = getattr(cygrpc, "AioServer", None)
    return grpc.__version__.startswith(TRIED) and all(hasattr(inner, name) for name in _SERVER_METHODS)


def accepting_server(options: Sequence[tuple[str, str | int]]) -> grpc.aio.Server:
    """Create a server like `grpc.aio.server`, with this module's implementation if it supports the grpcio
    version."""
    if not supports_advance_requests():
        return grpc.aio.server(options=options)
    own = cygrpc.AioServer
    cygrpc.AioServer = AcceptingServer
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = own
