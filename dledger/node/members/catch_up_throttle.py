"""Control of the catch-up rate by the latency of appends, so that catch-up does not starve clients. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from dledger.infra.loops.pacing import Pacer

#: Maximum append latency, relative to the latency in a pause. Clients that wait for each result spend only
#: part of a round in the append, and keep about 72 % of their throughput.
_LONGEST = 1.65
#: Under a light load, appends may always take this much longer: the throughput does not suffer.
_LIGHT_BYTES_PER_S = 1 << 20
_LIGHT_WAIT_S = 0.010
#: Minimum by which the rate exceeds the growth of the log, in bytes per second and as a share of that growth.
_LEAST_BYTES_PER_S = 16 << 20
_LEAST_OF_GROWTH = 0.25
_FIRST_BYTES_PER_S = 32 << 20
_SLOWER = 0.92
_FASTER = 1.06
#: Used until appends exceed the limit for the first time.
_FIRST_FASTER = 1.25
#: Interval of rate adjustments by append latency; longer while appends are few.
_PERIOD_S = 0.1
_LONG_PERIOD_S = 1.0
_ENOUGH_APPENDS = 16
#: Interval of pauses, which measure append latency without catch-up. Ranges in flight at the start of a pause
#: are given some time to arrive.
_BETWEEN_PAUSES_S = 3.0
_ARRIVAL_S = 0.05
_LONGEST_PAUSE_S = 0.3
#: Number of pauses in the median. A single pause of 0.1 s also reflects unrelated activity.
_PAUSES = 3
#: A gap of this length ends a catch-up.
_OVER_AFTER_S = 0.5


class AppendTotals(NamedTuple):
    """Totals of client appends on a leader since it started, and the end of its log."""

    answered: int
    seconds: float  # total latency
    end_pos: int


NO_APPENDS = AppendTotals(0, 0.0, 0)


class _Stretch(NamedTuple):
    """Client appends between two points in time."""

    seconds: float
    answered: int
    mean_s: float | None  # None: no appends
    growth: float  # growth of the log, in bytes per second


class CatchUpThrottle:
    """The common rate of all followers that are far behind, controlled by append latency.

    Without appends there is no limit. With appends, the rate is adjusted ten times a second. It rises while
    their latency is at most `_LONGEST` times the latency in pauses (the median of the last `_PAUSES`), and
    falls otherwise. It always exceeds the growth of the log by at least `_LEAST_BYTES_PER_S`, so that a
    follower catches up under any load. A gap of `_OVER_AFTER_S` without a range starts a new catch-up.
    """

    def __init__(self) -> None:
        self._pace = Pacer(0)
        self._rate: float | None = None
        self._calms_s: deque[float] = deque(maxlen=_PAUSES)  # append latency in the last pauses
        self._is_new = True  # no latency above the limit so far
        self._since = 0.0
        self._before = NO_APPENDS
        self._pausing = False
        self._pause_at = 0.0
        self._took_at = float("-inf")

    @property
    def bytes_per_second(self) -> float | None:
        """Current limit; None: no limit."""
        return self._rate

    def wait_s(self, now_s: float, appends: AppendTotals) -> float:
        """Return 0 if the next range may be read now, otherwise the seconds after which to call again."""
        if self._pausing:
            return self._pause(now_s, appends)
        stretch = self._stretch(now_s, appends)
        is_another = now_s - self._took_at > _OVER_AFTER_S
        if is_another or now_s >= self._pause_at:
            if is_another:
                self._calms_s.clear()
                self._is_new = True
            if stretch.answered:
                self._pausing = True
                self._start_catch_up(now_s + _ARRIVAL_S, appends)
                return _ARRIVAL_S
            self._pause_at = now_s + _BETWEEN_PAUSES_S  # no appends to measure
        if _is_conclusive(stretch, _LONG_PERIOD_S):
            self._start_catch_up(now_s, appends)
            self._adapt(stretch)
        return self._pace.wait_s(now_s)

    def record_read(self, size: int, now_s: float) -> None:
        self._took_at = now_s
        self._pace.record(size, now_s)

    def _pause(self, now_s: float, appends: AppendTotals) -> float:
        if now_s < self._since:
            self._before = appends
            return self._since - now_s
        stretch = self._stretch(now_s, appends)
        if not _is_conclusive(stretch, _LONGEST_PAUSE_S):
            return _PERIOD_S / 4
        if stretch.mean_s is None:
            self._calms_s.clear()
            self._set_rate(None)
        else:
            self._calms_s.append(stretch.mean_s)
            if self._rate is None:
                self._set_rate(_FIRST_BYTES_PER_S)
        self._pausing = False
        self._took_at = now_s
        self._pause_at = now_s + _BETWEEN_PAUSES_S
        self._start_catch_up(now_s, appends)
        return 0.0

    def _start_catch_up(self, now_s: float, appends: AppendTotals) -> None:
        self._since, self._before = now_s, appends

    def _stretch(self, now_s: float, appends: AppendTotals) -> _Stretch:
        seconds, before = now_s - self._since, self._before
        answered = appends.answered - before.answered
        mean_s = (appends.seconds - before.seconds) / answered if answered else None
        grown = max(0, appends.end_pos - before.end_pos)
        return _Stretch(seconds, answered, mean_s, grown / seconds if seconds > 0 else 0.0)

    def _adapt(self, stretch: _Stretch) -> None:
        if stretch.mean_s is None:
            self._set_rate(None)
            return
        calm_s = median(self._calms_s) if self._calms_s else 0.0  # never faster before the first pause
        longest = calm_s * _LONGEST
        if stretch.growth < _LIGHT_BYTES_PER_S:
            longest = max(longest, calm_s + _LIGHT_WAIT_S)
        least = stretch.growth * (1 + _LEAST_OF_GROWTH) + _LEAST_BYTES_PER_S
        rate = _FIRST_BYTES_PER_S if self._rate is None else self._rate
        if stretch.mean_s > longest:
            self._is_new = self._is_new and not self._calms_s
            change = _SLOWER
        else:
            change = _FIRST_FASTER if self._is_new else _FASTER
        self._set_rate(max(least, rate * change))

    def _set_rate(self, rate: float | None) -> None:
        self._rate = rate
        self._pace.set_rate(0 if rate is None else int(rate))


def _is_conclusive(stretch: _Stretch, at_most_s: float) -> bool:
    return stretch.seconds >= at_most_s or (
        stretch.seconds >= _PERIOD_S and stretch.answered >= _ENOUGH_APPENDS
    )
