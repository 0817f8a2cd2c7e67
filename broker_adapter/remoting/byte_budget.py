"""Memory that all connections of a server share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_adapter.shares import SharedRoom


class ByteBudget:
    """Who has been granted what it asked for can finish; the others wait in their order, so that no two wait
    for each other. An address has its share: what it wants beyond that waits, and holds up no others. "" is
    one without a share."""

    def __init__(self, size: int) -> None:
        self._room = SharedRoom(size)
        self._waiting: dict[str, deque[tuple[int, Callable[[], None]]]] = {}  # by address, in turn

    @property
    def taken(self) -> int:
        return self._room.used

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def ask(self, size: int, granted: Callable[[], None], address: str = "") -> bool:
        """Whether it is granted at once; `granted` is called later if not. What is larger than the whole
        budget is granted when nobody else has any."""
        if address in self._waiting or self._has_due() or not self._fits(address, size):
            self._waiting.setdefault(address, deque()).append((size, granted))
            return False
        self._room.take(address, size)
        return True

    def give_back(self, size: int, address: str = "") -> None:
        self._room.take(address, -size)
        assert self.taken >= 0, "more was given back than taken"
        while (found := self._next()) is not None:
            queue = self._waiting.pop(found)
            size, granted = queue.popleft()
            if queue:
                self._waiting[found] = queue  # the last one now
            self._room.take(found, size)
            granted()

    def withdraw(self, granted: Callable[[], None], address: str = "") -> None:
        """Wait no longer; nothing happens to those who do not wait."""
        queue = self._waiting.pop(address, None)
        if queue is not None and (left := deque(asked for asked in queue if asked[1] != granted)):
            self._waiting[address] = left
        self.give_back(0)

    def _next(self) -> str | None:
        """Whose turn it is: nobody whose share allows what it wants is overtaken."""
        for address, queue in self._waiting.items():
            if self._room.is_due(address, queue[0][0]):
                return address if self._room.has_room(queue[0][0]) else None
        return None

    def _has_due(self) -> bool:
        """Whether somebody waits for room that its share allows."""
        return any(self._room.is_due(address, queue[0][0]) for address, queue in self._waiting.items())

    def _fits(self, address: str, size: int) -> bool:
        return self._room.is_due(address, size) and self._room.has_room(size)
