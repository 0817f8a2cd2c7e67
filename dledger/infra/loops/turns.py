"""Spreads large numbers of wake-ups over many turns of the event loop.

One event may wake thousands of waiters (a thundering herd), and many clients may send large requests at the
same time. If all of this work ran in one turn of the loop, heartbeats would have to wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from dledger.infra.counts import decrement

T = TypeVar("T")

#: Wake-ups per turn of the loop. The work that one triggers, until it waits again, takes 0.1 to 3 ms.
MAX_WOKEN: Final = 4
#: Size from which a request occupies the event loop for milliseconds: it is parsed, copied, checksummed and
#: encoded.
LARGE_BYTES: Final = 64 << 10
#: Maximum number of requests that are processed together, in one step of the event loop (5 ms for sends).
MAX_TOGETHER: Final = 64


class WakeQueue:
    """Runs a few wake-ups immediately in each turn of the loop and queues the others. Keys take turns;
    wake-ups of one key keep their order. No wake-up is dropped. Use it on the event loop only."""

    def __init__(self, limit: int = MAX_WOKEN) -> None:
        self._limit = limit
        self._remaining = limit  # in this turn of the loop
        self._queues: dict[Hashable, deque[Callable[[], object]]] = {}
        # Tasks that have been given their turn and have not run yet, by key. They run in the next step of the
        # loop. A task that asks for a turn before that step must not run before them.
        self._resuming = Counter[Hashable]()
        self._is_armed = False

    def __len__(self) -> int:
        """The number of queued wake-ups."""
        return sum(map(len, self._queues.values()))

    def add(self, key: Hashable, wake: Callable[[], object]) -> None:
        """Run `wake` now or in a later turn. It must be short and must not raise; for example, it may set a
        future."""
        if self._queues or not self._remaining or key in self._resuming:
            self._queues.setdefault(key, deque()).append(wake)
            self._arm()
            return
        self._remaining -= 1
        self._arm()
        wake()

    def each(self, key: Hashable, items: Iterable[T], wake: Callable[[T], bool]) -> None:
        """Run `wake` for every item, in order, like `add`. If `wake` returns False because it woke no waiter,
        the next item is processed immediately."""
        pending = deque(items)

        def step() -> None:
            while pending and not wake(pending.popleft()):
                pass
            if pending:
                self.add(key, step)

        if pending:
            self.add(key, step)

    def settle(self, key: Hashable, future: asyncio.Future[None]) -> None:
        """Complete the future in the same way as `add`, unless it is already done."""
        if not future.done():
            self.add(key, partial(settle, future))

    async def turn(self, key: Hashable) -> None:
        """Wait for a turn of the loop with capacity for the caller. Return immediately if the current turn
        has capacity. Callers with one key run in the order of their calls."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_waiting = False

        def wake() -> None:
            if settle(future) and is_waiting:
                self._resuming[key] += 1

        self.add(key, wake)
        if future.done():
            return
        is_waiting = True
        try:
            await future
        finally:
            if future.done() and not future.cancelled():
                decrement(self._resuming, key)

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_armed = False
        self._remaining = self._limit
        try:
            while self._queues and self._remaining:
                key = next(iter(self._queues))
                queue = self._queues.pop(key)
                wake = queue.popleft()
                if queue:
                    self._queues[key] = queue  # move the key to the end of the order
                self._remaining -= 1
                wake()
        finally:
            if self._queues or self._remaining < self._limit:
                self._arm()


def settle(future: asyncio.Future[None]) -> bool:
    """Complete the future. Returns False if it is already done."""
    if future.done():
        return False
    future.set_result(None)
    return True


_Queues = WeakKeyDictionary[asyncio.AbstractEventLoop, WakeQueue]
_of_loop: _Queues = WeakKeyDictionary()
_large_of_loop: _Queues = WeakKeyDictionary()


class _DiscardingQueue(WakeQueue):
    """Drops all wake-ups. Used without a running loop, when an abandoned coroutine is garbage collected."""

    def add(self, key: Hashable, wake: Callable[[], object]) -> None:
        pass


def wake_queue() -> WakeQueue:
    """Return the queue of the running loop, which all wake-ups of the process share."""
    return _queue_of(_of_loop, MAX_WOKEN)


def large_turns() -> WakeQueue:
    """Return the queue of the running loop for large requests (LARGE_BYTES or more), one per turn, so that a
    heartbeat waits for at most one of them. All services of the process share it. Use the client address or
    the stream as the key, so that they take turns."""
    return _queue_of(_large_of_loop, 1)


def _queue_of(queues: _Queues, limit: int) -> WakeQueue:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _DiscardingQueue()
    queue = queues.get(loop)
    if queue is None:
        queue = queues[loop] = WakeQueue(limit)
    return queue
