"""Bounded queues before each class of call: whoever finds one full is told so, and does not wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broker_adapter.errors import NameServerBusy, Status


class Executor:
    """Lets `running` calls of one class go on at a time, in order of arrival, and `waiting` more wait."""

    def __init__(self, name: str, *, running: int, waiting: int, on_refused: Callable[[str], None]) -> None:
        """`on_refused(name)` counts what was refused."""
        self.name = name
        self._most = running + waiting
        self._admitted = 0
        self._turn = asyncio.Semaphore(running)
        self._on_refused = on_refused

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """The call goes on inside. NameServerBusy (NAMESRV_BUSY) if too many wait."""
        if self._admitted >= self._most:
            self._on_refused(self.name)
            raise NameServerBusy(
                Status.NAMESRV_BUSY, f"{self._most} calls of the kind {self.name} are under way: try again"
            )
        self._admitted += 1
        try:
            async with self._turn:
                # Others get on between two calls; so a burst is seen here, and not hidden in the event loop.
                await asyncio.sleep(0)
                yield
        finally:
            self._admitted -= 1
