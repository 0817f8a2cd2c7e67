"""The wall clock of this node, and checks that log problems with it and with the clocks of other members.

Cluster time does not follow a jump of one clock in a group of three nodes or more, except while too few other
clocks are known (docs/guarantees.md, Cluster time).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dledger.infra.logs import get_logger

_log = get_logger("clock")

_JUMP_MS = 1000
#: Clocks synchronized by NTP differ by less than this, including the latency between members.
_APART_MS = 5000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class JumpWatch:
    """Logs a warning when wall clock and monotonic clock disagree about the elapsed time."""

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._apart_ms = wall() - monotonic()
        self.jumps = 0

    def check(self) -> None:
        apart_ms = self._wall() - self._monotonic()
        jump_ms = apart_ms - self._apart_ms
        self._apart_ms = apart_ms
        if abs(jump_ms) >= _JUMP_MS:
            self.jumps += 1
            _log.warning(
                "the wall clock jumped; cluster time does not follow it", jump_ms=jump_ms, jumps=self.jumps
            )


def suspicious_clocks(clocks: Mapping[str, int]) -> tuple[str, ...]:
    """Return the members whose clock differs from the median by more than five seconds. Returns all members
    if no clock is near the median."""
    times_ms = sorted(clocks.values())
    if not times_ms or times_ms[-1] - times_ms[0] <= _APART_MS:
        return ()
    medians = times_ms[(len(times_ms) - 1) // 2 : len(times_ms) // 2 + 1]
    if medians[-1] - medians[0] > _APART_MS:
        return tuple(sorted(clocks))  # two against two: either pair may be right
    return tuple(sorted(m for m, ms in clocks.items() if min(abs(ms - at) for at in medians) > _APART_MS))


class SpreadWatch:
    """Logs a warning when the clocks of members start to disagree, and again when the set of these members
    changes."""

    def __init__(self) -> None:
        self._logged: tuple[str, ...] = ()

    def check(self, clocks: Mapping[str, int]) -> None:
        """`clocks`: how far each member's clock is ahead of cluster time, in ms."""
        suspects = suspicious_clocks(clocks)
        if suspects and suspects != self._logged:
            _log.warning(
                "the members' clocks disagree: check NTP on the machines of these members",
                members=list(suspects),
                ahead_ms=dict(clocks),
            )
        self._logged = suspects
