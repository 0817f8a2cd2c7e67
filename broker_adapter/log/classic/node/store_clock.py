"""Time of a classic log, for store timestamps and delayed messages.

The time follows the wall clock, as in RocketMQ, but never decreases and never stops. This implements rule 12
of docs/guarantees.md for a log with one clock. The newest record may be ahead of the wall clock because a
clock was set or another machine stored the record. Time then advances more slowly until the wall clock has
caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from dledger.core.lone_clock import LoneClock


class StoreClock:
    """Clock of a classic log. May be used on any thread."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._clock = LoneClock(wall_ms(), monotonic_ms())
        self._lock = Lock()

    @property
    def steps_ms(self) -> int:
        """Total of the steps of the clock in this process."""
        return self._clock.steps_ms

    def read(self, newest_ms: int) -> int:
        """Return the time in ms. `newest_ms`: timestamp of the log's newest record, or 0 if there is none."""
        with self._lock:
            return self._clock.read(newest_ms, self._wall_ms(), self._monotonic_ms())


class StepSum:
    """Total of all steps of a classic log's time, which commands record. Runs on the event loop.

    After a restart, and on a slave that becomes master, the total continues from the log's newest command.
    Suppose instead that the total restarted at 0, and that the broker were stopped for 8 h every night. After
    the second night the total would again be 8 h. The second step would therefore go unnoticed, and every
    message id would age by 8 h.
    """

    def __init__(self, clock: StoreClock, recorded_ms: Callable[[], int]) -> None:
        """Create the total. `recorded_ms` returns the total in the newest command that this broker has
        applied.
        """
        self._clock = clock
        self._recorded_ms = recorded_ms
        self._sum_ms = 0
        self._counted_ms = 0  # part of the clock's own total

    def restart(self) -> None:
        """Restart the count on a new master, because earlier steps of this broker's clock are not steps of
        the log.
        """
        self._sum_ms, self._counted_ms = 0, self._clock.steps_ms

    def read(self) -> int:
        own_ms = self._clock.steps_ms
        self._sum_ms = max(self._sum_ms, self._recorded_ms()) + own_ms - self._counted_ms
        self._counted_ms = own_ms
        return self._sum_ms
