"""The threads on which a broker reads files and evaluates filters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_READERS: Final = 2


class _Turns:
    """An executor of so many threads, which addresses use by turns: whoever asks for much waits behind
    what he has asked for himself."""

    def __init__(self, executor: Executor | None, threads: int) -> None:
        """None: the event loop's own."""
        self.executor = executor
        self._free = threads
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address, the next one first

    async def run(self, work: Callable[[], T], address: str) -> T:
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        try:
            job = loop.run_in_executor(self.executor, work)
        except BaseException:  # no thread could be started, or the broker has stopped
            self._next()
            raise
        job.add_done_callback(self._ended)
        # A caller that gives up leaves its work on the thread: the turn is over when that ends.
        return await asyncio.shield(job)

    def _ended(self, job: asyncio.Future[T]) -> None:
        if not job.cancelled():
            job.exception()  # looked at, although its caller may have gone
        self._next()

    def _next(self) -> None:
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns  # the last one now
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def reader_threads() -> ReaderThreads:
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="pull")
    return ReaderThreads(readers, ThreadPoolExecutor(1, thread_name_prefix="filter"))


class ReaderThreads:
    """On the event loop. Filters have one thread of their own: what they cost is up to clients, and two
    clients with expensive ones would have taken both readers from all others."""

    def __init__(self, readers: Executor | None = None, filters: Executor | None = None) -> None:
        """None: the event loop's own."""
        self._readers = _Turns(readers, _READERS)
        self._filters = _Turns(filters, 1)

    async def run(self, work: Callable[[], T], address: str = "") -> T:
        """What blocks, for a bounded time. `address`: of the client that it is done for; "": of none."""
        return await self._readers.run(work, address)

    async def run_filter(self, work: Callable[[], T], address: str) -> T:
        """What evaluates a client's filter expression."""
        return await self._filters.run(work, address)

    def stop(self) -> None:
        for turns in (self._readers, self._filters):
            if turns.executor is not None:
                turns.executor.shutdown(wait=False, cancel_futures=True)
