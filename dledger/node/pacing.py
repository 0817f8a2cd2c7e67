"""How fast background work may go: so many bytes a second, and next to none saved up for later."""

from __future__ import annotations

#: What a byte that clients append takes from a catch-up: it, too, is pushed and synced, and answered.
_LIVE_COSTS = 8
#: Bytes per second by which a follower always comes nearer to the end of a log that clients append to.
_LEAST_GAIN = 12 << 20
_SPAN_S = 0.25


class Pace:
    """After `took` bytes the next piece waits until they would have gone at the rate. 0: no limit.

    `slack_s`: what is late by no more than that is made up for, else each piece is followed by a full wait.
    """

    def __init__(self, bytes_per_second: int, slack_s: float = 0.0) -> None:
        self.rate = bytes_per_second
        self._slack_s = slack_s
        self._next_s = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s)

    def took(self, size: int, now_s: float, rate: float | None = None) -> None:
        """`rate`: of this piece, if it is not the usual one."""
        if rate is None:
            rate = self.rate
        if rate:
            self._next_s = max(self._next_s, now_s - self._slack_s) + size / rate


class LiveRate:
    """How fast a log grows, by where it ends from time to time."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None
        self._rate = 0.0

    def seen(self, end_pos: int, now_s: float) -> float:
        """Bytes per second of the last quarter of a second or more; 0 if nothing is known yet."""
        if self._since is None or end_pos < self._since[1]:
            self._since, self._rate = (now_s, end_pos), 0.0
        elif now_s - self._since[0] >= _SPAN_S:
            self._rate = (end_pos - self._since[1]) / (now_s - self._since[0])
            self._since = now_s, end_pos
        return self._rate


def beside(live: float, most: float) -> float:
    """The rate of a catch-up while clients append at the rate `live`, and `most` without any: they are to
    keep most of what they have, and the follower is to arrive. `most` 0, no limit, stays that."""
    return min(most, max(live + _LEAST_GAIN, most - _LIVE_COSTS * live))
