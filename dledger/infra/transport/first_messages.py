"""Limits the number of calls whose first message is incomplete, and the time until it must be complete.

gRPC keeps the received part of a message until the rest arrives. A client that withholds the last byte
occupies almost a whole message of memory per call, as long as its connection exists. No option of gRPC limits
this. A method with a single request starts only when the request is complete, so it cannot end such a call. A
method with a stream of requests starts after the headers and reads the first message itself. Both have the
same wire format. Methods with a single request are therefore served as if they had a stream, and this module
reads every first message.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import Any, Final

import grpc
import grpc.aio

from dledger.errors import Code, Overloaded
from dledger.infra.quotas import client_of, peer_host
from dledger.infra.transport.handlers import changed

#: Time limit of a first message: 4 MiB need 1.7 Mbit/s.
FIRST_MESSAGE_TIMEOUT_S: Final = 20.0
#: Maximum number of calls that wait longer than LONG_S for their first message. Beyond it, the oldest call of
#: the address with the most is ended. With messages of maximum size they occupy 272 MiB.
MAX_FIRST_MESSAGES: Final = 64
LONG_S: Final = 1.0
#: Calls that become overdue, per turn of the event loop.
_TURN: Final = 64


class FirstMessages:
    """Reads the first messages of calls. On the event loop."""

    def __init__(
        self,
        on_hit: Callable[[], None] = lambda: None,
        *,
        limit: int = MAX_FIRST_MESSAGES,
        timeout_s: float = FIRST_MESSAGE_TIMEOUT_S,
        long_s: float = LONG_S,
    ) -> None:
        """`on_hit` is called for each call that is ended."""
        self._on_hit = on_hit
        self._limit = limit
        self._timeout_s = timeout_s
        self._long_s = long_s
        # since when, and the context or address; the oldest first
        self._young: dict[asyncio.Task[Any], tuple[float, Any]] = {}
        self._long: dict[asyncio.Task[Any], tuple[float, str]] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their first message."""
        return len(self._young) + len(self._long)

    async def read(self, context: Any) -> Any:
        """Return the result of `context.read`. Raises Overloaded (TOO_MANY_CONNECTIONS) after the time limit.
        If too many calls have waited for longer than `long_s`, the oldest of them from the address with the
        most such calls raises it, too."""
        task = asyncio.current_task()
        assert task is not None
        now = task.get_loop().time()
        self._young[task] = now, context
        if self._timer is None or self._timer.when() > now + self._long_s:
            self._arm()
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel() > 0:
                raise
            text = "the first message did not arrive in time, or too many calls wait for theirs"
            raise Overloaded(text, code=Code.TOO_MANY_CONNECTIONS) from None
        finally:
            self._young.pop(task, None)
            self._long.pop(task, None)
            self._ended.discard(task)

    def over(self, *handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return one handler for all methods of `handlers`. A call whose single request does not arrive in
        time ends with RESOURCE_EXHAUSTED and 612 in its details."""
        return changed(handlers, self._as_stream)

    def _arm(self) -> None:
        """Schedule the next run for the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [since + self._long_s for since, _ in islice(self._young.values(), 1)]
        ends += [since + self._timeout_s for since, _ in islice(self._long.values(), 1)]
        self._timer = asyncio.get_running_loop().call_at(min(ends), self._run) if ends else None

    def _run(self) -> None:
        """End the overdue calls."""
        now = asyncio.get_running_loop().time()
        for task, (since, context) in list(islice(self._young.items(), _TURN)):
            if now < since + self._long_s:
                break
            del self._young[task]
            self._long[task] = since, client_of(peer_host(context.peer()))
            if len(self._long) > self._limit:
                self._end(self._oldest_of_most())
        for task, (since, _) in list(self._long.items()):
            if now < since + self._timeout_s:
                break
            self._end(task)
        self._arm()

    def _oldest_of_most(self) -> asyncio.Task[Any]:
        """Return the oldest long call of the address that has the most."""
        counts = Counter(address for _, address in self._long.values())
        most = max(counts.values())
        return next(task for task, (_, address) in self._long.items() if counts[address] == most)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._long[task]
        self._ended.add(task)
        task.cancel()
        self._on_hit()

    async def _read_single(self, context: Any) -> Any:
        """Return the request of a call with a single one, or abort the call."""
        try:
            request = await self.read(context)
        except Overloaded as error:
            number = f"{int(error.code)} {error.code.name}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{number}: {error.message}")
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INTERNAL, "the call ended without a request")
        return request

    def _as_stream(self, method: Any) -> Any:
        """Convert a method of grpc.aio with a single request to one with a stream of requests."""
        if method.request_streaming:
            return method
        behavior = method.unary_stream if method.response_streaming else method.unary_unary

        # No variable holds the request, so that it is released before the call ends.
        async def answer(_: object, context: Any) -> Any:
            return await behavior(await self._read_single(context), context)

        async def stream(_: object, context: Any) -> AsyncGenerator[Any, None]:
            async for item in behavior(await self._read_single(context), context):
                yield item

        served = stream if inspect.isasyncgenfunction(behavior) else answer
        kind = "stream_stream" if method.response_streaming else "stream_unary"
        return method._replace(request_streaming=True, unary_unary=None, unary_stream=None, **{kind: served})
