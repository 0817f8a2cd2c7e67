"""The time of a classic log: of its records, and of what waits in it for a time.

It follows the wall clock, as RocketMQ's stores do, but never falls, and never stands still: where the newest
record is ahead of the wall clock, because a clock was set or because it is another machine's record, it goes
on by the monotonic clock, slower by 0.1 % until the wall clock is there. What waits would otherwise wait for
as long as the clocks are apart.
"""

from __future__ import annotations

from collections.abc import Callable

_SLEW_PER_MILLE = 1


class StoreClock:
    """Any thread."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._known = (0, 0)  # a time, and when that was, on the monotonic clock

    def read(self, newest_ms: int) -> int:
        """`newest_ms`: the stamp of the log's newest record; 0: there is none."""
        known_ms, at_ms = self._known
        now_ms = self._monotonic_ms()
        passed_ms = (now_ms - at_ms) * (1000 - _SLEW_PER_MILLE) // 1000
        found_ms = max(newest_ms, self._wall_ms())
        if known_ms and found_ms <= known_ms + passed_ms:
            return known_ms + passed_ms
        self._known = (found_ms, now_ms)
        return found_ms
