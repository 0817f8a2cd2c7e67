"""Wall clocks of the members, and the leader's correction of cluster time (docs/guarantees.md rule 12).

One wrong clock has no effect: time moves only as far as a majority of the configured voters shows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger.core.cluster_clock import ClockChange, ClusterClock, Stamp
from dledger.core.messages import Heartbeat, HeartbeatResponse, VoteRequest, VoteResponse
from dledger.core.quorum import majority
from dledger.core.values import Membership, VoteResult

#: Received wall clocks later than this (the year 6429), or before 1970, count as missing.
MAX_WALL_MS = 1 << 47
#: A running cluster makes up a lag of up to this much at double speed. A longer lag becomes a step.
STEP_WHILE_RUNNING_MS = 600_000
#: A new leader's first stamp turns a longer lag, the result of a stop, into a step.
STEP_AFTER_A_STOP_MS = 1000
#: After a longer step, purging by age pauses (PAUSE_MS): it would delete acknowledged messages.
PAUSING_STEP_MS = 3_600_000
PAUSE_MS = 3_600_000
#: A node without other clocks to compare makes longer steps only if its wall clock is steady.
UNCHECKED_STEP_MS = 60_000
STEADY_WITHIN_MS = 500
STEADY_FOR_MS = 30_000


class ClockSample(NamedTuple):
    ahead_ms: int  # the member's wall clock minus this node's monotonic clock, at receipt
    at_ms: int  # receipt, on this node's monotonic clock


class ClockBounds(NamedTuple):
    """Cluster time advances up to `forward_ms`, and slows down if it is ahead of `back_ms`. A bound is None
    if there is no majority."""

    forward_ms: int | None  # F: the k-th greatest sample; k is a majority of the configured voters
    back_ms: int | None  # S: the k-th smallest


class MemberClocks:
    """Samples of the other members' wall clocks, relative to this node's monotonic clock."""

    def __init__(self) -> None:
        self.samples: dict[str, ClockSample] = {}

    def hear(
        self, peer: str, message: VoteRequest | VoteResponse | Heartbeat | HeartbeatResponse, now_ms: int
    ) -> None:
        """Record the wall clock in a message, unless the peer is rejoining and counts in no majority."""
        rejoins = isinstance(message, HeartbeatResponse) and not message.counts
        if rejoins or (isinstance(message, VoteResponse) and message.result is VoteResult.REJECT_NOT_READY):
            self.samples.pop(peer, None)
        else:
            self.note(peer, message.wall_ms, now_ms)

    def note(self, peer: str, wall_ms: int | None, now_ms: int) -> None:
        """Record the wall clock in a message from `peer`. Keeps the last sample if `wall_ms` is None or an
        impossible time."""
        if wall_ms is not None and 0 <= wall_ms <= MAX_WALL_MS:
            self.samples[peer] = ClockSample(wall_ms - now_ms, now_ms)

    def fresh(self, now_ms: int, since_ms: int) -> dict[str, int]:
        """Current time of each member whose sample is not older than `since_ms`."""
        return {p: s.ahead_ms + now_ms for p, s in self.samples.items() if s.at_ms >= since_ms}


def bounds(membership: Membership, walls: Mapping[str, int]) -> ClockBounds:
    """Return the bounds F and S of rule 12. `walls`: wall clock times by member.

    A voter without a clock counts as minus infinity for F and as plus infinity for S, so that neither moves
    time without a majority. In a joint configuration, F and S are the bounds on which both halves agree.
    """
    forward: list[int] = []
    back: list[int] = []
    for voters in membership.halves:
        samples = sorted(walls[voter] for voter in voters if voter in walls)
        k = majority(voters)
        if len(samples) < k:
            return ClockBounds(None, None)
        forward.append(samples[-k])
        back.append(samples[k - 1])
    return ClockBounds(min(forward), max(back))


def correction(time_ms: int, limits: ClockBounds, *, is_first: bool) -> tuple[int, int]:
    """Return the correction of cluster time as (step, slew). `is_first`: the stamp is the leader's first in
    its term."""
    forward_ms, back_ms = limits
    if forward_ms is not None and forward_ms > time_ms:
        lag_ms = forward_ms - time_ms
        steps = lag_ms > (STEP_AFTER_A_STOP_MS if is_first else STEP_WHILE_RUNNING_MS)
        return (lag_ms, 0) if steps else (0, lag_ms)
    if back_ms is not None and back_ms < time_ms:
        return 0, back_ms - time_ms
    return 0, 0


def changed_stamp(clock: ClusterClock, time_ms: int, step_ms: int, slew_ms: int) -> Stamp:
    """Return the stamp with a step and a slew that follows a stamp of `time_ms`."""
    pause_ms = step_ms if step_ms > PAUSING_STEP_MS else clock.pause_ms
    return Stamp(time_ms + step_ms, ClockChange(step_ms, slew_ms, clock.steps_ms + step_ms, pause_ms))


class SteadyWatch:
    """Checks that the wall clock keeps pace with the monotonic clock, within 0.5 s for 30 s."""

    def __init__(self) -> None:
        self._ahead_ms: int | None = None
        self._since_ms = 0

    def observe(self, wall_ms: int, now_ms: int) -> bool:
        """Sample both clocks and return True if steady. Call at least every few seconds."""
        ahead_ms = wall_ms - now_ms
        if self._ahead_ms is None or abs(ahead_ms - self._ahead_ms) > STEADY_WITHIN_MS:
            self._ahead_ms, self._since_ms = ahead_ms, now_ms
        return now_ms - self._since_ms >= STEADY_FOR_MS
