"""A gRPC server for asyncio that asks for several calls at once.

gRPC's own asks for one, and for the next one when the loop has taken that: a hand-over from gRPC's thread and
some turns of the loop for each call. On a busy machine that, and not the work, bounds how many unary calls a
second there are, and how many share an append: 64 callers stood in line there while every group had 7.
Nor does a call that comes take a task of its own to be waited for: a fifth of what a server does for one.
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

from dledger.rpc.transport import grpc_internals

#: Calls that gRPC may hand over before the first of them is taken.
AT_ONCE: Final = 32


class _Come(asyncio.Future[Any]):
    """A call, or the failure to get one. Who waits for it when it is there already is told at once, not in
    another turn of the loop: so calls that have come together are taken together."""

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        if self.done():
            fn(self)
        else:
            super().add_done_callback(fn, context=context)


class AcceptingServer(grpc_internals.AioServer):  # type: ignore[misc]
    """What is inside a `grpc.aio.Server`. Its main loop waits for one future for each call to come; here
    the calls are asked for ahead of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        self._on_loop = loop
        self._asking = 0
        self._come: deque[_Come] = deque()  # not waited for yet
        self._wanted: _Come | None = None  # waited for, and not come yet

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Called for each call; again when that has come. `method`: of calls that are registered by name."""
        if method is not None:
            future: asyncio.Future[Any] = super()._make_request_call_future(method)
            return future
        while self._asking + len(self._come) < AT_ONCE:
            self._ask()
        if self._come:
            return self._come.popleft()
        self._wanted = _Come(loop=self._on_loop)
        return self._wanted

    async def _start_shutting_down(self) -> None:
        await super()._start_shutting_down()
        self._come.clear()

    def _ask(self) -> None:
        """Await one call of gRPC. A single future: one task per call is expensive."""
        asking = self._request_call()
        waited_for = asking.send(None)
        assert isinstance(waited_for, asyncio.Future), f"{waited_for} is nothing to wait for"
        waited_for._asyncio_future_blocking = False  # as a task says that it has taken it over
        waited_for.add_done_callback(partial(self._has_come, asking))
        self._asking += 1

    def _has_come(self, asking: Coroutine[Any, Any, Any], _: asyncio.Future[Any]) -> None:
        self._asking -= 1
        come, self._wanted = self._wanted, None
        if come is None or come.done():
            come = _Come(loop=self._on_loop)
            if self.is_running():  # else nobody takes it, and while it is kept the server does not end
                self._come.append(come)
        try:
            asking.send(None)
            raise AssertionError("gRPC waits for more than one thing before a call has come")
        except StopIteration as end:
            come.set_result(end.value)
        except asyncio.CancelledError:
            come.cancel()
        except Exception as error:
            come.set_exception(error)
            come.exception()  # when the server stops all fail, and nobody looks at most of them


def accepting_server(options: Sequence[tuple[str, str | int]]) -> grpc.aio.Server:
    """As `grpc.aio.server`; the plain one if gRPC may be made otherwise than this module knows it."""
    if not grpc_internals.can_ask_ahead():
        return grpc.aio.server(options=options)
    return grpc_internals.server_with(AcceptingServer, options)
