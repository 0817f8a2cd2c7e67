"""The threads on which a broker reads files and evaluates filters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_READERS: Final = 2


def reader_threads() -> ReaderThreads:
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="pull")
    return ReaderThreads(readers, ThreadPoolExecutor(1, thread_name_prefix="filter"))


class ReaderThreads:
    """On the event loop. Filters have one thread of their own: what they cost is up to clients, and two
    clients with expensive ones would have taken both readers from all others."""

    def __init__(self, readers: Executor | None = None, filters: Executor | None = None) -> None:
        """None: the event loop's own."""
        self._readers = readers
        self._filters = filters
        self._is_filtering = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address, the next one first

    async def run(self, work: Callable[[], T]) -> T:
        """What blocks, for a bounded time."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def run_filter(self, work: Callable[[], T], address: str) -> T:
        """What evaluates a client's filter expression: one at a time, addresses take turns."""
        loop = asyncio.get_running_loop()
        if self._is_filtering:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._is_filtering = True
        job = loop.run_in_executor(self._filters, work)
        job.add_done_callback(self._ended)
        # A caller that gives up leaves its work on the thread: the turn is over when that ends.
        return await asyncio.shield(job)

    def stop(self) -> None:
        for executor in (self._readers, self._filters):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, job: asyncio.Future[T]) -> None:
        if not job.cancelled():
            job.exception()  # looked at, although its caller may have gone
        self._next()

    def _next(self) -> None:
        self._is_filtering = False
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns  # the last one now
            if not turn.done():
                self._is_filtering = True
                turn.set_result(None)
                return
