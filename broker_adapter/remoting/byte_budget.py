"""Memory that all connections of a server share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteBudget:
    """Who has been granted what it asked for can finish; the others wait in their order, so that no two wait
    for each other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.taken = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, size: int, granted: Callable[[], None]) -> bool:
        """Whether it is granted at once; `granted` is called later if not. What is larger than the whole
        budget is granted when nobody else has any."""
        if self._waiting or not self._fits(size):
            self._waiting.append((size, granted))
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size
        assert self.taken >= 0, "more was given back than taken"
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.taken += size
            granted()

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Wait no longer; nothing happens to those who do not wait."""
        self._waiting = deque(asked for asked in self._waiting if asked[1] != granted)
        self.give_back(0)

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._size
