"""Cluster time: stamps in the log that never fall and follow nobody's jumps (docs/guarantees.md rule 12).

A stamp is the last stamp in the log plus the time that has passed since on the leader's monotonic clock,
drawn towards its wall clock by at most 0.1 %. So time goes on across changes of leader, a clock that jumps
moves nothing, and a clock that is merely wrong is approached slowly.
"""

from __future__ import annotations

SLEW_PER_MILLE = 1


class ClusterClock:
    def __init__(self) -> None:
        self.last_stamp_ms: int | None = None  # the newest stamp in the log, None before the first
        self._learned_ms = 0  # when, on this node's monotonic clock, it was learned

    def learn(self, stamp_ms: int, now_ms: int) -> None:
        """A stamp is in the log."""
        if self.last_stamp_ms is None or stamp_ms >= self.last_stamp_ms:
            self.last_stamp_ms = stamp_ms
            self._learned_ms = now_ms

    def read(self, now_ms: int, wall_ms: int) -> int:
        """Cluster time now, in ms since the Unix epoch. Before the first stamp it is the wall clock's."""
        if self.last_stamp_ms is None:
            return wall_ms
        elapsed = max(0, now_ms - self._learned_ms)
        straight = self.last_stamp_ms + elapsed
        slew = elapsed * SLEW_PER_MILLE // 1000
        return max(self.last_stamp_ms, straight + max(-slew, min(slew, wall_ms - straight)))

    def offset_ms(self, now_ms: int, wall_ms: int) -> int:
        """How far this node's wall clock is ahead of cluster time: to be reported, not followed."""
        return wall_ms - self.read(now_ms, wall_ms)
