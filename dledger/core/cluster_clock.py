"""Cluster time: stamps in the log that never decrease (docs/guarantees.md rule 12).

Every node counts from the newest stamp in its log with its monotonic clock, so reading the time never causes
a step. A stamp may carry a `ClockChange`. Only the leader writes those, from the wall clocks of the members
(`dledger.core.member_clocks`). A change either steps the time forward, or makes every node count faster or
slower until it has gained or lost `slew_ms`. A slew is bounded: it ends even if no stamp follows.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Corrections up to this much change the speed by 10 %; the part beyond it runs at double or half speed.
FINE_MS = 1000


class ClockChange(NamedTuple):
    """A change in the rate or offset of cluster time, with totals of earlier changes."""

    step_ms: int  # distance from the previous count to this stamp
    slew_ms: int  # to be gained (lost, if negative) by counting faster (slower) from this stamp on
    steps_ms: int  # sum of all steps in the log, including this one
    pause_ms: int  # length of the step that paused purging by age; 0: not paused


class Stamp(NamedTuple):
    time_ms: int  # since the Unix epoch
    change: ClockChange | None = None


class CountedTime(NamedTuple):
    """The time that a member has counted since a committed stamp. It is sent to members that learned the
    stamp later or have restarted."""

    stamp_ms: int  # time of the newest stamp
    time_ms: int  # the count at the moment of sending
    slew_ms: int  # still to be gained (lost, if negative)


class _Anchor(NamedTuple):
    """Start of a count."""

    index: int  # type: ignore[assignment]  # of the entry that carries the stamp
    stamp: Stamp
    counted_ms: int  # the count at learned_ms: from the stamp, or from another member's count
    learned_ms: int  # on this node's monotonic clock
    floor_ms: int  # the last time returned: a late stamp must not turn time back
    slew_ms: int
    steps_ms: int
    pause_ms: int

    def count(self, now_ms: int) -> int:
        elapsed_ms = max(0, now_ms - self.learned_ms)
        return self.counted_ms + elapsed_ms + slewed_ms(self.slew_ms, elapsed_ms)

    def read(self, now_ms: int) -> int:
        return max(self.floor_ms, self.count(now_ms))


def slewed_ms(slew_ms: int, elapsed_ms: int) -> int:
    """Return the part of `slew_ms` gained (lost: negative) after `elapsed_ms`."""
    coarse_ms = max(0, abs(slew_ms) - FINE_MS)
    if slew_ms >= 0:
        coarse_took_ms = coarse_ms  # double speed
        gained_ms = min(elapsed_ms, coarse_ms)
    else:
        coarse_took_ms = 2 * coarse_ms  # half speed
        gained_ms = min(elapsed_ms // 2, coarse_ms)
    fine_ms = max(0, elapsed_ms - coarse_took_ms) // 10
    gained_ms += min(abs(slew_ms) - coarse_ms, fine_ms)
    return gained_ms if slew_ms >= 0 else -gained_ms


class ClusterClock:
    """The stamps of one log. Truncating the uncommitted tail also removes its stamps."""

    def __init__(self) -> None:
        self._anchors: deque[_Anchor] = deque()  # the newest committed one and its successors
        self._committed_index = -1

    @property
    def newest(self) -> Stamp | None:
        """The newest stamp in the log, or None if there is none."""
        return self._anchors[-1].stamp if self._anchors else None

    @property
    def last_stamp_ms(self) -> int | None:
        return self._anchors[-1].stamp.time_ms if self._anchors else None

    @property
    def stamps(self) -> list[tuple[int, Stamp]]:
        """(index, stamp) of the newest committed stamp and its successors."""
        return [(anchor.index, anchor.stamp) for anchor in self._anchors]

    @property
    def steps_ms(self) -> int:
        """Sum of the steps in the log. Cluster time minus this sum passes only as clocks count."""
        return self._anchors[-1].steps_ms if self._anchors else 0

    @property
    def pause_ms(self) -> int:
        """Length in ms of the step that paused purging by age; 0 if purging by age is not paused."""
        return self._anchors[-1].pause_ms if self._anchors else 0

    def slew_left_ms(self, now_ms: int) -> int:
        """Milliseconds still to gain (lose: negative) by counting faster (slower)."""
        if not self._anchors:
            return 0
        newest = self._anchors[-1]
        return newest.slew_ms - slewed_ms(newest.slew_ms, max(0, now_ms - newest.learned_ms))

    @property
    def stored(self) -> tuple[int, int, int]:
        """(stamp, sum of steps, pause) of the committed log; the stamp is -1 if there is none.

        The remaining part of a slew is not included, because the next leader computes a new correction for
        its first stamp.
        """
        if not self._anchors or self._anchors[0].index > self._committed_index:
            return -1, 0, 0
        oldest = self._anchors[0]
        return oldest.stamp.time_ms, oldest.steps_ms, oldest.pause_ms

    def learn(self, index: int, stamp: Stamp, now_ms: int) -> None:
        """Add the stamp of the entry at `index`. Decreasing stamps are ignored."""
        before = self._anchors[-1] if self._anchors else None
        if before is not None and stamp.time_ms < before.stamp.time_ms:
            return
        slew_ms, steps_ms, pause_ms = self.slew_left_ms(now_ms), self.steps_ms, self.pause_ms
        if stamp.change is not None:
            _, slew_ms, steps_ms, pause_ms = stamp.change
        floor_ms = stamp.time_ms if before is None else before.read(now_ms)
        self._anchors.append(
            _Anchor(index, stamp, stamp.time_ms, now_ms, floor_ms, slew_ms, steps_ms, pause_ms)
        )

    def counted(self, now_ms: int) -> CountedTime | None:
        """Return the count to send to other members, or None while the newest stamp is uncommitted and may be
        truncated."""
        if not self._anchors or self._anchors[-1].index > self._committed_index:
            return None
        newest = self._anchors[-1]
        return CountedTime(newest.stamp.time_ms, newest.count(now_ms), self.slew_left_ms(now_ms))

    def catch_up(self, other: CountedTime | None, now_ms: int) -> None:
        """Adopt another member's count from the same stamp, if it is ahead.

        Suppose a node restarts after an hour without appends. The newest stamp in its log is an hour old, and
        the node would count from that time. If it then leads, and no majority of the clocks shows a later
        time, cluster time would decrease by an hour. The node adopts only counts from the same committed
        stamp, so that no count is ahead of the leader's.
        """
        own = self.counted(now_ms)
        if other is None or own is None or own.stamp_ms != other.stamp_ms:
            return
        if own.time_ms < other.time_ms:
            self._anchors[-1] = self._anchors[-1]._replace(
                counted_ms=other.time_ms, learned_ms=now_ms, slew_ms=other.slew_ms
            )

    def learn_again(self, other: ClusterClock, after_index: int) -> None:
        """Add the stamps after `after_index` that another clock of the same log has learned."""
        for anchor in other._anchors:
            if anchor.index > after_index:
                self.learn(anchor.index, anchor.stamp, anchor.learned_ms)

    def committed(self, committed_index: int) -> None:
        """Mark stamps up to committed_index as final."""
        self._committed_index = max(self._committed_index, committed_index)
        anchors = self._anchors
        while len(anchors) > 1 and anchors[1].index <= committed_index:
            anchors.popleft()

    def truncate_after(self, last_index: int) -> None:
        while self._anchors and self._anchors[-1].index > last_index:
            self._anchors.pop()

    def reset(self) -> None:
        """Continue from the committed time after the log was replaced by one that starts later."""
        committed = [a._replace(index=-1) for a in self._anchors if a.index <= self._committed_index]
        self._anchors = deque(committed[:1])
        self._committed_index = -1

    def read(self, now_ms: int, wall_ms: int) -> int:
        """Return cluster time in ms since the Unix epoch. Before the first stamp, this is the wall clock."""
        return self._anchors[-1].read(now_ms) if self._anchors else wall_ms

    def offset_ms(self, now_ms: int, wall_ms: int) -> int:
        """Return how far this node's wall clock is ahead of cluster time."""
        return wall_ms - self.read(now_ms, wall_ms)
