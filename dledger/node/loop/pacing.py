"""How fast background work may go: so many bytes a second, and none saved up for later."""

from __future__ import annotations


class Pace:
    """After `took` bytes the next piece waits until they would have gone at the rate. 0: no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._next_s = 0.0

    def set_rate(self, bytes_per_second: int) -> None:
        """From the next piece on."""
        self._rate = bytes_per_second

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s)

    def took(self, size: int, now_s: float) -> None:
        if self._rate:
            self._next_s = max(self._next_s, now_s) + size / self._rate
