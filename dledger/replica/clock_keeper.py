"""Creates the leader's stamps that step cluster time or change its rate (docs/guarantees.md rule 12).

All nodes count from the newest stamp in their log. When the members' clocks show that this count is off,
the leader writes a stamp with a correction, and all nodes count from that one.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.core.cluster_clock import FINE_MS, Stamp
from dledger.core.core_state import LONG_AGO_MS
from dledger.core.member_clocks import (
    MAX_WALL_MS,
    PAUSE_MS,
    UNCHECKED_STEP_MS,
    ClockBounds,
    SteadyWatch,
    bounds,
    changed_stamp,
    correction,
)
from dledger.replica.parts import ReplicaParts

#: A new stamp corrects a slew that is off by at least this much, and at most this often: message jitter is
#: not worth an entry. An idle log gets a stamp only above FINE_MS.
_OFF_MS = 250
_EVERY_MS = 1000
_COMPARISON_INTERVAL_MS = 250
_NEVER = 1 << 62


class ClockKeeper:
    """The clock keeper of one replica. It must be ticked on followers as well, because the only node of a
    cluster observes its clock before it follows it.
    """

    def __init__(self, replica: ReplicaParts) -> None:
        self._replica = replica
        self._watch = SteadyWatch()
        self._is_steady = False
        # the first stamp of this leadership must step, but waits for a steady clock
        self._first_is_due = False
        self._changed_ms = LONG_AGO_MS
        self._changed_index = -1
        self._pause_began_ms = 0
        self._next_comparison_ms = 0

    @property
    def next_comparison_ms(self) -> int:
        """Time of the leader's next clock comparison; far in the future on other nodes."""
        return self._next_comparison_ms if self._may_stamp else _NEVER

    @property
    def _may_stamp(self) -> bool:
        core = self._replica.core
        leadership = core.leadership
        return leadership is not None and leadership.noop_is_committed and core.transferring_to is None

    def walls(self, now_ms: int) -> Mapping[str, int]:
        """Current wall clocks by member, without stale ones."""
        return self._walls(now_ms, now_ms - self._replica.core.timing.election_max_ms)

    def _walls(self, now_ms: int, since_ms: int) -> Mapping[str, int]:
        core, own_ms = self._replica.core, self._replica.wall_ms()
        walls = core.member_clocks.fresh(now_ms, since_ms)
        if not core.hard_state.is_barred and 0 <= own_ms <= MAX_WALL_MS:
            walls[core.node_id] = own_ms
        return walls

    @property
    def _is_alone(self) -> bool:
        return len(self._replica.core.membership.voters) == 1

    def first_stamp(self, now_ms: int) -> Stamp:
        """Return the stamp for the no-op of a new leader. The votes for it contained the clocks of a
        majority."""
        admission, core = self._replica.admission, self._replica.core
        clock = admission.state.clock
        since_ms = min(now_ms - core.timing.election_max_ms, core.campaigned_ms)
        limits = bounds(core.membership, self._walls(now_ms, since_ms))
        self._first_is_due = False
        self._pause_began_ms = now_ms
        self._next_comparison_ms = now_ms + _COMPARISON_INTERVAL_MS
        last_ms = clock.last_stamp_ms
        if last_ms is None:
            own_ms = min(max(0, self._replica.wall_ms()), MAX_WALL_MS)
            return Stamp(own_ms if limits.forward_ms is None else limits.forward_ms)
        # Owners may have received later times than the log contains. This stamp must not be earlier.
        time_ms = max(clock.read(now_ms, 0), last_ms + admission.limits.owner_stamp_every_ms)
        return self._change(time_ms, limits, now_ms, is_first=True) or Stamp(time_ms)

    def tick(self, now_ms: int) -> None:
        replica, core = self._replica, self._replica.core
        if self._is_alone:
            self._is_steady = self._watch.observe(replica.wall_ms(), now_ms)
        if now_ms < self._next_comparison_ms or not self._may_stamp:
            return
        self._next_comparison_ms = now_ms + _COMPARISON_INTERVAL_MS
        clock = replica.admission.state.clock
        time_ms = clock.read(now_ms, 0)
        limits = bounds(core.membership, self.walls(now_ms))
        stamp = self._change(time_ms, limits, now_ms, is_first=self._first_is_due)
        if stamp is None and clock.pause_ms and now_ms - self._pause_began_ms >= PAUSE_MS:
            stamp = changed_stamp(clock, time_ms, 0, clock.slew_left_ms(now_ms))
            assert stamp.change is not None
            stamp = Stamp(time_ms, stamp.change._replace(pause_ms=0))
        if stamp is not None:
            replica.admission.append_stamp(stamp, core.term, now_ms)

    def _change(self, time_ms: int, limits: ClockBounds, now_ms: int, *, is_first: bool) -> Stamp | None:
        """Return the stamp to write now, or None to continue the current count."""
        clock = self._replica.admission.state.clock
        step_ms, slew_ms = correction(time_ms, limits, is_first=is_first)
        if step_ms > UNCHECKED_STEP_MS and self._is_alone and not self._is_steady:
            self._first_is_due |= is_first
            return None
        if not step_ms:
            self._first_is_due = False
            is_idle = self._replica.admission.tail.index == self._changed_index
            off_ms = abs(slew_ms - clock.slew_left_ms(now_ms))
            if off_ms < (FINE_MS if is_idle else _OFF_MS) or now_ms - self._changed_ms < _EVERY_MS:
                return None
        stamp = changed_stamp(clock, time_ms, step_ms, slew_ms)
        self._first_is_due = False
        self._changed_ms = now_ms
        self._changed_index = self._replica.admission.tail.index + 1
        assert stamp.change is not None
        if step_ms and stamp.change.pause_ms == step_ms:
            self._pause_began_ms = now_ms
        return stamp

    @property
    def age_purge_step_ms(self) -> int:
        """Length in ms of the step of cluster time that paused purging by age; 0 if purging by age is not
        paused."""
        return self._replica.admission.state.clock.pause_ms

    def pause_left_ms(self, now_ms: int) -> int:
        """Return the remaining pause in ms as known to this leader. A new leader restarts the pause."""
        if not self.age_purge_step_ms:
            return 0
        began_ms = self._pause_began_ms if self._replica.core.leadership is not None else now_ms
        return max(0, began_ms + PAUSE_MS - now_ms)
