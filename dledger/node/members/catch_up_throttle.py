"""The pace of catching up, adjusted to append latency so that clients are not starved. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from dledger.node.loop.pacing import Pace

#: Appends may take so many times as long on the leader as in a pause. For clients that wait for their answers
#: that is not all of a round: of their throughput about 72 % are left.
_LONGEST = 1.65
#: Those who hardly append may wait so much longer all the same: their throughput is not what suffers.
_LIGHT_BYTES_PER_S = 1 << 20
_LIGHT_WAIT_S = 0.010
#: What a follower comes nearer at least, whatever clients append meanwhile, and of that again so much.
_LEAST_BYTES_PER_S = 16 << 20
_LEAST_OF_GROWTH = 0.25
_FIRST_BYTES_PER_S = 32 << 20
_SLOWER = 0.92
_FASTER = 1.06
#: Before appends have taken too long for the first time.
_FIRST_FASTER = 1.25
#: The rate is adjusted to append latency every `_PERIOD_S`, less often when there are few appends.
_PERIOD_S = 0.1
_LONG_PERIOD_S = 1.0
_ENOUGH_APPENDS = 16
#: So often there is a pause, in which appends show what they take alone. What is on its way when it
#: begins has some time to arrive.
_BETWEEN_PAUSES_S = 3.0
_ARRIVAL_S = 0.05
_LONGEST_PAUSE_S = 0.3
#: A tenth of a second says as much of what else was going on: of so many pauses the median counts.
_PAUSES = 3
#: After so long without a range it is another catch-up.
_OVER_AFTER_S = 0.5


class Appends(NamedTuple):
    """What a leader has appended for clients since it started, and how far its log goes."""

    answered: int
    seconds: float  # they took, in all
    end_pos: int


NO_APPENDS = Appends(0, 0.0, 0)


class _Stretch(NamedTuple):
    """What was appended between two moments."""

    seconds: float
    answered: int
    mean_s: float | None  # None: nothing was
    growth: float  # of the log, in bytes a second


class CatchUpThrottle:
    """The common pace of all followers that are far behind, from what appends take.

    Without appends there is no limit. With them the rate rises, ten times a second, while they take at most
    `_LONGEST` times what they take in pauses (the median of the last `_PAUSES`), and falls while they take
    longer; but never below what the log grows by and `_LEAST_BYTES_PER_S` more, so that a follower arrives
    under any load. A catch-up begins anew after `_OVER_AFTER_S` without a range.
    """

    def __init__(self) -> None:
        self._pace = Pace(0)
        self._rate: float | None = None
        self._calms_s: deque[float] = deque(maxlen=_PAUSES)  # what appends took in the last pauses
        self._is_new = True  # the rate has not been too high yet
        self._since = 0.0
        self._before = NO_APPENDS
        self._pausing = False
        self._pause_at = 0.0
        self._took_at = float("-inf")

    @property
    def bytes_per_second(self) -> float | None:
        """None: no limit."""
        return self._rate

    def wait_s(self, now_s: float, appends: Appends) -> float:
        """0: the next range may be read. Else ask again after so long."""
        if self._pausing:
            return self._pause(now_s, appends)
        found = self._stretch(now_s, appends)
        is_another = now_s - self._took_at > _OVER_AFTER_S
        if is_another or now_s >= self._pause_at:
            if is_another:
                self._calms_s.clear()
                self._is_new = True
            if found.answered:
                self._pausing = True
                self._begin(now_s + _ARRIVAL_S, appends)
                return _ARRIVAL_S
            self._pause_at = now_s + _BETWEEN_PAUSES_S  # there is nobody to look at
        if _says_enough(found, _LONG_PERIOD_S):
            self._begin(now_s, appends)
            self._adapt(found)
        return self._pace.wait_s(now_s)

    def took(self, size: int, now_s: float) -> None:
        self._took_at = now_s
        self._pace.took(size, now_s)

    def _pause(self, now_s: float, appends: Appends) -> float:
        if now_s < self._since:
            self._before = appends
            return self._since - now_s
        found = self._stretch(now_s, appends)
        if not _says_enough(found, _LONGEST_PAUSE_S):
            return _PERIOD_S / 4
        if found.mean_s is None:
            self._calms_s.clear()
            self._set_rate(None)
        else:
            self._calms_s.append(found.mean_s)
            if self._rate is None:
                self._set_rate(_FIRST_BYTES_PER_S)
        self._pausing = False
        self._took_at = now_s
        self._pause_at = now_s + _BETWEEN_PAUSES_S
        self._begin(now_s, appends)
        return 0.0

    def _begin(self, now_s: float, appends: Appends) -> None:
        self._since, self._before = now_s, appends

    def _stretch(self, now_s: float, appends: Appends) -> _Stretch:
        seconds, before = now_s - self._since, self._before
        answered = appends.answered - before.answered
        mean_s = (appends.seconds - before.seconds) / answered if answered else None
        grown = max(0, appends.end_pos - before.end_pos)
        return _Stretch(seconds, answered, mean_s, grown / seconds if seconds > 0 else 0.0)

    def _adapt(self, found: _Stretch) -> None:
        if found.mean_s is None:
            self._set_rate(None)
            return
        calm_s = median(self._calms_s) if self._calms_s else 0.0  # no faster before the first pause
        longest = calm_s * _LONGEST
        if found.growth < _LIGHT_BYTES_PER_S:
            longest = max(longest, calm_s + _LIGHT_WAIT_S)
        least = found.growth * (1 + _LEAST_OF_GROWTH) + _LEAST_BYTES_PER_S
        rate = _FIRST_BYTES_PER_S if self._rate is None else self._rate
        if found.mean_s > longest:
            self._is_new = self._is_new and not self._calms_s
            change = _SLOWER
        else:
            change = _FIRST_FASTER if self._is_new else _FASTER
        self._set_rate(max(least, rate * change))

    def _set_rate(self, rate: float | None) -> None:
        self._rate = rate
        self._pace.set_rate(0 if rate is None else int(rate))


def _says_enough(found: _Stretch, at_most_s: float) -> bool:
    return found.seconds >= at_most_s or (found.seconds >= _PERIOD_S and found.answered >= _ENOUGH_APPENDS)
