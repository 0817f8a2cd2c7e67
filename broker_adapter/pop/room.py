"""How much of the log is in memory on its way to consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from broker_adapter.pop.api import Delivery
from broker_adapter.shares import SharedRoom


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
    """So many bytes at once, shared by addresses of clients: one that does not read leaves some to others. ""
    is a client without a share. Who wants more waits, in the order of the calls; those whose share is used up
    hold up no others. What is alone has room always."""

    def __init__(self, most: int) -> None:
        self._shared = SharedRoom(most)
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def taken(self) -> int:
        return self._shared.used

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def take_now(self, size: int, client: str = "") -> bool:
        """False: somebody else has it, or wants it first."""
        if client in self._waiting or not self._shared.is_due(client, size) or self._has_due():
            return False
        if not self._shared.has_room(size):
            return False
        self._shared.take(client, size)
        return True

    async def take(self, size: int, client: str = "") -> None:
        if self.take_now(size, client):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            was_given = future.done() and not future.cancelled()
            self.give(size if was_given else 0, client)
            raise

    def give(self, size: int, client: str = "") -> None:
        """Negative: something has turned out to be larger."""
        self._shared.take(client, -size)
        while self._give_next():
            pass

    def _give_next(self) -> bool:
        """To the first whose share allows it. False: there is nobody, or no room for him."""
        for client in list(self._waiting):
            size = self._next_of(client)
            if size is None or not self._shared.is_due(client, size):
                continue
            if not self._shared.has_room(size):
                return False
            queue = self._waiting.pop(client)
            _, future = queue.popleft()
            if queue:
                self._waiting[client] = queue  # the last one now
            self._shared.take(client, size)
            future.set_result(None)
            return True
        return False

    def _has_due(self) -> bool:
        """Whether somebody waits whose share allows it."""
        sizes = {client: self._next_of(client) for client in list(self._waiting)}
        return any(size is not None and self._shared.is_due(client, size) for client, size in sizes.items())

    def _next_of(self, client: str) -> int | None:
        """What it waits for."""
        queue = self._waiting[client]
        while queue and queue[0][1].done():
            queue.popleft()
        if not queue:
            del self._waiting[client]
            return None
        return queue[0][0]
