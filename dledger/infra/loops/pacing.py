"""Rate limit of background work in bytes per second, without bursts."""

from __future__ import annotations


class Pacer:
    """Delays each piece of work until the previous pieces have taken as long as the configured rate requires.
    Rate 0 means no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._next_s = 0.0

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the rate, starting with the next piece."""
        self._rate = bytes_per_second

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s)

    def record(self, size: int, now_s: float) -> None:
        if self._rate:
            self._next_s = max(self._next_s, now_s) + size / self._rate
