"""Messages on their way into one gRPC stream: put without waiting, written in order by one task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """A queue with one writer. It has no bound of its own: whoever puts has one, and says which."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._finished = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def last(self) -> T | None:
        """What was put last, if it still waits."""
        return self._waiting[-1] if self._waiting else None

    def put(self, item: T) -> None:
        self._waiting.append(item)
        self._rouse()

    def finish(self) -> None:
        """Nothing more will be put: `run` returns once all is written."""
        self._finished = True
        self._rouse()

    async def run(self, write: Callable[[T], Awaitable[object]]) -> None:
        """Write until finished. Whatever `write` raises ends it."""
        waiting = self._waiting
        while True:
            while waiting:
                await write(waiting.popleft())
            if self._drained is not None:
                self._drained.set_result(None)
                self._drained = None
            if self._finished:
                return
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    async def drained(self) -> None:
        """Until all that was put is written. For the one task that puts."""
        if self._waiting:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _rouse(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)
