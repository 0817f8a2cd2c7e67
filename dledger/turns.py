"""Work that comes in crowds, a few pieces of it in each turn of the event loop.

One event may concern thousands that wait for it (a thundering herd), and many clients may send large requests
at a time. Together they would all run in one turn of the loop, and heartbeats would wait until the last of
them is through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

#: Wake-ups in one turn of the loop. What follows from one, until it waits again, takes 0.1 to 3 ms.
MOST_WOKEN: Final = 4
#: What has so many bytes takes the event loop milliseconds: it is parsed, copied, summed and encoded there.
LARGE_BYTES: Final = 64 << 10


class WakeQueue:
    """Runs wake-ups at once while a turn of the loop has few of them, and queues the others: one of each key
    in its turn, those of one key in their order. None is dropped. On the event loop only."""

    def __init__(self, most: int = MOST_WOKEN) -> None:
        self._most = most
        self._left = most  # in this turn of the loop
        self._queues: dict[Hashable, deque[Callable[[], object]]] = {}
        self._is_armed = False

    def __len__(self) -> int:
        """Wake-ups that are queued."""
        return sum(map(len, self._queues.values()))

    def add(self, key: Hashable, wake: Callable[[], object]) -> None:
        """Run `wake` now or in a later turn. It must be short and must not raise: setting a future is."""
        if self._queues or not self._left:
            self._queues.setdefault(key, deque()).append(wake)
            return
        self._left -= 1
        self._arm()
        wake()

    def each(self, key: Hashable, items: Iterable[T], wake: Callable[[T], bool]) -> None:
        """As `add` for every item, in order. `wake` says whether it woke somebody: otherwise the next item is
        taken at once."""
        left = deque(items)

        def step() -> None:
            while left and not wake(left.popleft()):
                pass
            if left:
                self.add(key, step)

        if left:
            self.add(key, step)

    def settle(self, key: Hashable, future: asyncio.Future[None]) -> None:
        """As `add`: complete the future, unless it is done by then."""
        if not future.done():
            self.add(key, partial(settle, future))

    async def turn(self, key: Hashable) -> None:
        """Wait until a turn of the loop has room for the caller; return at once if this one has."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settle(key, future)
        if not future.done():
            await future

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_armed = False
        self._left = self._most
        try:
            while self._queues and self._left:
                key = next(iter(self._queues))
                queue = self._queues.pop(key)
                wake = queue.popleft()
                if queue:
                    self._queues[key] = queue  # the last one now
                self._left -= 1
                wake()
        finally:
            if self._queues or self._left < self._most:
                self._arm()


def settle(future: asyncio.Future[None]) -> bool:
    """Complete the future. False: it is done already."""
    if future.done():
        return False
    future.set_result(None)
    return True


_Queues = WeakKeyDictionary[asyncio.AbstractEventLoop, WakeQueue]
_of_loop: _Queues = WeakKeyDictionary()
_large_of_loop: _Queues = WeakKeyDictionary()


class _Nobody(WakeQueue):
    """Where no loop runs, nobody waits: a coroutine that was left behind is closed when it is forgotten."""

    def add(self, key: Hashable, wake: Callable[[], object]) -> None:
        pass


def wake_queue() -> WakeQueue:
    """The queue of the running loop: all herds of a process share it."""
    return _queue_of(_of_loop, MOST_WOKEN)


def large_turns() -> WakeQueue:
    """The queue of the running loop for what is large (LARGE_BYTES or more): one piece of it in each turn, so
    that a heartbeat waits for one of them at most. All services of a process share it. Keys are whom others
    must not wait for: addresses of clients, or streams."""
    return _queue_of(_large_of_loop, 1)


def _queue_of(queues: _Queues, most: int) -> WakeQueue:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _Nobody()
    found = queues.get(loop)
    if found is None:
        found = queues[loop] = WakeQueue(most)
    return found
