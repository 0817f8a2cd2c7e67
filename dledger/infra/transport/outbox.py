"""A queue of messages for one gRPC stream. `put` does not wait; the messages are written one after the other.

There is no writer task. Waking one takes a turn of the event loop, which is expensive during an append.
Instead `put` runs the first step of a write, and the callbacks of its futures run the next ones.
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
    """A queue with a single writer. It has no limit of its own: each user documents one."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._write: Callable[[T], Writing] | None = None  # while `run` is active
        self._pending_write: Writing | None = None
        self._ended: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._finished = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def last(self) -> T | None:
        """The last queued item, if it is not being written yet."""
        return self._waiting[-1] if self._waiting else None

    def put(self, item: T) -> None:
        """Queue an item. If no write is pending, its write starts before this returns."""
        self._waiting.append(item)
        if self._pending_write is None:
            self._write_queued()

    def replace_last(self, item: T) -> None:
        """Replace the last item, which must still be queued."""
        self._waiting[-1] = item

    def finish(self) -> None:
        """Accept no further items. `run` returns once all items are written."""
        self._finished = True
        if self._pending_write is None:
            self._write_queued()

    async def run(self, write: Callable[[T], Writing]) -> None:
        """Write until finished. Ends with any exception of `write`."""
        self._ended = asyncio.get_running_loop().create_future()
        self._write = write
        self._write_queued()
        try:
            await self._ended
        finally:
            self._write = None
            if self._pending_write is not None:
                self._pending_write.close()
                self._pending_write = None

    async def drained(self) -> None:
        """Wait until all items are written. Only for the single task that calls `put`."""
        if self._waiting:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _write_queued(self) -> None:
        """Write queued items until a write has to wait."""
        while self._waiting and self._write is not None and self._pending_write is None:
            self._pending_write = self._write(self._waiting.popleft())
            self._step(self._pending_write)
        if self._waiting or self._pending_write is not None or self._write is None:
            return
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self._finished and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _step(self, writing: Writing) -> None:
        """Run a write up to its next suspension, as a task would."""
        try:
            awaited = writing.send(None)
        except StopIteration:
            self._pending_write = None
        except (Exception, asyncio.CancelledError) as error:
            self._pending_write = self._write = None
            self._fail(error)
        else:
            if awaited is None:  # it only yields to other tasks
                asyncio.get_running_loop().call_soon(self._resume, writing)
            else:
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(partial(self._resume, writing))

    def _resume(self, writing: Writing, awaited: asyncio.Future[object] | None = None) -> None:
        if writing is self._pending_write:
            self._step(writing)
            if self._pending_write is None:
                self._write_queued()
        elif awaited is not None and not awaited.cancelled():
            # the call is over; retrieve the exception, so that it is not reported as lost
            awaited.exception()

    def _fail(self, error: BaseException) -> None:
        assert self._ended is not None
        if self._ended.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self._ended.cancel()  # the call was cancelled, not the task that runs this
        else:
            self._ended.set_exception(error)
