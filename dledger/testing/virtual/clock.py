"""Virtual time, implemented as a heap of scheduled actions. Nothing waits, and nothing depends on the wall
clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """Runs actions in order of time; actions of the same millisecond run in scheduling order."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self._scheduled = 0  # breaks ties, so that the heap never compares actions
        self._heap: list[tuple[int, int, Action]] = []

    def after(self, delay_ms: int, action: Action) -> None:
        """Run `action` after a delay. It cannot be cancelled, so it must check whether it still applies."""
        assert delay_ms >= 0, delay_ms
        self._scheduled += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._scheduled, action))

    def step(self) -> bool:
        """Run the next action. Returns False if there is none."""
        if not self._heap:
            return False
        when_ms, _, action = heapq.heappop(self._heap)
        assert when_ms >= self.now_ms
        self.now_ms = when_ms
        self.steps += 1
        action()
        return True

    def run_until(self, when_ms: int) -> None:
        """Run all actions that are due up to and including `when_ms`."""
        heap = self._heap
        while heap and heap[0][0] <= when_ms:
            self.step()
        self.now_ms = max(self.now_ms, when_ms)
