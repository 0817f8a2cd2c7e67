"""Clock for a log that follows a single wall clock (docs/guarantees.md rule 12). Pure."""

from __future__ import annotations

from dledger.core.cluster_clock import slewed_ms
from dledger.core.member_clocks import UNCHECKED_STEP_MS, ClockBounds, SteadyWatch, correction

_EVERY_MS = 1000


class LoneClock:
    """A clock that follows the wall clock and never decreases. It steps by more than a minute only if the
    wall clock is steady."""

    def __init__(self, wall_ms: int, now_ms: int) -> None:
        """Record both clocks at the start of the process; `now_ms` is the monotonic one."""
        self.steps_ms = 0  # sum of the steps in this process
        self._watch = SteadyWatch()
        self._watch.observe(wall_ms, now_ms)
        self._anchor: tuple[int, int, int] | None = None  # time, its monotonic time, ms still to gain
        self._is_first = True

    def read(self, newest_ms: int, wall_ms: int, now_ms: int) -> int:
        """Return the current time. `newest_ms`: time of the newest record in the log, 0 if there is none."""
        is_steady = self._watch.observe(wall_ms, now_ms)
        if self._anchor is None:
            time_ms = newest_ms or wall_ms
        else:
            began_ms, at_ms, slew_ms = self._anchor
            elapsed_ms = max(0, now_ms - at_ms)
            time_ms = began_ms + elapsed_ms + slewed_ms(slew_ms, elapsed_ms)
            is_due = elapsed_ms >= _EVERY_MS or self._steps(time_ms, wall_ms, is_steady)
            if time_ms >= newest_ms and not is_due:
                return time_ms
            time_ms = max(time_ms, newest_ms)
        step_ms, slew_ms = correction(time_ms, ClockBounds(wall_ms, wall_ms), is_first=self._is_first)
        if step_ms and not self._steps(time_ms, wall_ms, is_steady):
            step_ms = 0  # not yet: keep the current time until the clock is steady
        else:
            self._is_first = False
        time_ms += step_ms
        self.steps_ms += step_ms
        self._anchor = (time_ms, now_ms, slew_ms)
        return time_ms

    def _steps(self, time_ms: int, wall_ms: int, is_steady: bool) -> bool:
        step_ms, _ = correction(time_ms, ClockBounds(wall_ms, wall_ms), is_first=self._is_first)
        return step_ms > 0 and (is_steady or step_ms <= UNCHECKED_STEP_MS)
