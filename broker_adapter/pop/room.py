"""How much of the log is in memory on its way to consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from broker_adapter.pop.api import Delivery


class Received(list[Delivery]):
    """What a receive was given. It takes room until it is closed, or forgotten."""

    def __init__(self, deliveries: Iterable[Delivery] = (), close: Callable[[], None] = lambda: None) -> None:
        super().__init__(deliveries)
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()

    def __del__(self) -> None:
        self.close()


class Room:
    """So many bytes at once; who wants more waits, in the order of the calls. One alone has room always."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def take_now(self, size: int) -> bool:
        """False: somebody else has it, or wants it first."""
        if self._waiting or not self._fits(size):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        if self.take_now(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            was_given = future.done() and not future.cancelled()
            self.give(size if was_given else 0)
            raise

    def give(self, size: int) -> None:
        """Negative: something has turned out to be larger."""
        self.taken -= size
        while self._waiting:
            wanted, future = self._waiting[0]
            if not future.done():
                if not self._fits(wanted):
                    return
                self.taken += wanted
                future.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return self.taken <= 0 or self.taken + size <= self._most
