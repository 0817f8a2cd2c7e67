"""A gRPC server for asyncio that asks for several calls at once.

gRPC's own asks for one, and for the next one when the loop has taken that: a hand-over from gRPC's thread and
some turns of the loop for each call. On a busy machine that, and not the work, bounds how many unary calls a
second there are, and how many share an append: 64 callers stood in line there while every group held 7.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

#: gRPC's versions of which this has been tried: nothing promises that another one is made alike.
TRIED: Final = ("1.85.",)
#: Calls that gRPC may hand over before the first of them is taken.
AT_ONCE: Final = 32


class AcceptingServer(cygrpc.AioServer):  # type: ignore[misc]
    """What is inside a `grpc.aio.Server`. Its main loop waits for one future for each call to come; here
    the calls are asked for ahead of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        self._on_loop = loop
        self._asking = 0
        self._come: deque[asyncio.Task[Any]] = deque()
        self._wanted: asyncio.Future[Any] | None = None

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Called for each call; again when that has come. `method`: of calls that are registered by name."""
        if method is not None:
            future: asyncio.Future[Any] = super()._make_request_call_future(method)
            return future
        wanted = self._wanted = self._on_loop.create_future()
        while self._asking + len(self._come) < AT_ONCE:
            self._asking += 1
            self._on_loop.create_task(self._request_call()).add_done_callback(self._has_come)
        self._give()
        return wanted

    async def _start_shutting_down(self) -> None:
        await super()._start_shutting_down()
        self._come.clear()

    def _has_come(self, asked: asyncio.Task[Any]) -> None:
        self._asking -= 1
        if not asked.cancelled():
            asked.exception()  # when the server stops all fail, and nobody looks at most of them
        self._come.append(asked)
        self._give()
        if not self.is_running():
            self._come.clear()  # nobody takes calls any more, and while one is kept the server does not end

    def _give(self) -> None:
        wanted = self._wanted
        if wanted is None or wanted.done() or not self._come:
            return
        asked = self._come.popleft()
        if asked.cancelled():
            wanted.cancel()
        elif (error := asked.exception()) is not None:
            wanted.set_exception(error)
        else:
            wanted.set_result(asked.result())


def accepting_server(options: Sequence[tuple[str, str | int]]) -> grpc.aio.Server:
    """As `grpc.aio.server`; the plain one if gRPC may be made otherwise than this module knows it."""
    plain = cygrpc.AioServer
    if not grpc.__version__.startswith(TRIED) or not hasattr(plain, "_make_request_call_future"):
        return grpc.aio.server(options=options)
    cygrpc.AioServer = AcceptingServer
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = plain
