"""Messages on their way into one gRPC stream: put without waiting, written one after the other.

No task does the writing. Waking one takes a turn of the event loop, which is expensive during an append;
so the first step of a write is taken by whoever puts, and the next ones by what wakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Writing = Coroutine[Any, None, object]


class Outbox(Generic[T]):
    """A queue with one writer. It has no bound of its own: whoever puts has one, and says which."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._write: Callable[[T], Writing] | None = None  # while `run` runs
        self._under_way: Writing | None = None
        self._ended: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._finished = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def last(self) -> T | None:
        """What was put last, if it still waits."""
        return self._waiting[-1] if self._waiting else None

    def put(self, item: T) -> None:
        """Queue an item. If nothing is being written, its writing begins before this returns."""
        self._waiting.append(item)
        if self._under_way is None:
            self._go_on()

    def replace_last(self, item: T) -> None:
        """Put an item in the place of the last one, which still waits."""
        self._waiting[-1] = item

    def finish(self) -> None:
        """Nothing more will be put: `run` returns once all is written."""
        self._finished = True
        if self._under_way is None:
            self._go_on()

    async def run(self, write: Callable[[T], Writing]) -> None:
        """Write until finished. Whatever `write` raises ends it."""
        self._ended = asyncio.get_running_loop().create_future()
        self._write = write
        self._go_on()
        try:
            await self._ended
        finally:
            self._write = None
            if self._under_way is not None:
                self._under_way.close()
                self._under_way = None

    async def drained(self) -> None:
        """Until all that was put is written. For the one task that puts."""
        if self._waiting:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _go_on(self) -> None:
        """Write what waits, as far as it goes at once."""
        while self._waiting and self._write is not None and self._under_way is None:
            self._under_way = self._write(self._waiting.popleft())
            self._step(self._under_way)
        if self._waiting or self._under_way is not None or self._write is None:
            return
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self._finished and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _step(self, writing: Writing) -> None:
        """Run a write up to what it waits for, as a task would."""
        try:
            awaited = writing.send(None)
        except StopIteration:
            self._under_way = None
        except (Exception, asyncio.CancelledError) as error:
            self._under_way = self._write = None
            self._fail(error)
        else:
            if awaited is None:  # it merely lets others run
                asyncio.get_running_loop().call_soon(self._resume, writing)
            else:
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(partial(self._resume, writing))

    def _resume(self, writing: Writing, awaited: asyncio.Future[object] | None = None) -> None:
        if writing is self._under_way:
            self._step(writing)
            if self._under_way is None:
                self._go_on()
        elif awaited is not None and not awaited.cancelled():
            awaited.exception()  # the call is over; nobody else asks how the write ended

    def _fail(self, error: BaseException) -> None:
        assert self._ended is not None
        if self._ended.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self._ended.cancel()  # the call was cancelled, not whoever runs this
        else:
            self._ended.set_exception(error)
