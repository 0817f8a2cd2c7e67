"""Virtual time: a heap of things that will happen. Nothing waits, and nothing depends on the wall clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """Runs actions in order of their time; those of one millisecond in the order in which they came."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self._asked = 0  # breaks ties, so that the heap never compares actions
        self._heap: list[tuple[int, int, Action]] = []

    def after(self, delay_ms: int, action: Action) -> None:
        """Run `action` after so many milliseconds. No cancelling: actions check that they still apply."""
        assert delay_ms >= 0, delay_ms
        self._asked += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._asked, action))

    def step(self) -> bool:
        """Let the next thing happen. False when there is nothing left."""
        if not self._heap:
            return False
        when_ms, _, action = heapq.heappop(self._heap)
        assert when_ms >= self.now_ms
        self.now_ms = when_ms
        self.steps += 1
        action()
        return True

    def run_until(self, when_ms: int) -> None:
        """Let everything happen that is due up to and including `when_ms`."""
        heap = self._heap
        while heap and heap[0][0] <= when_ms:
            self.step()
        self.now_ms = max(self.now_ms, when_ms)
