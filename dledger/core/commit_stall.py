"""Makes a leader that commits nothing step down (docs/guarantees.md rule 14).

A leader that has uncommitted entries and commits none of them gives up leadership. Responses to heartbeats
show that a connection works, but not that the log makes progress. The rule does not depend on the cause of
the stall, because the core cannot distinguish unreadable entries, a push stream without effect and a bug. It
considers only whether another leader could commit. That is possible if every node of a majority that includes
this node has stored everything that it received, because then no commit waits for the disks of these nodes.
While disks are slow or stuck, no other leader could commit, and rule 9 decides.
"""

from __future__ import annotations

from dledger.core.values import Timing

#: The other members have this many maximum election time-outs to elect a leader.
_ELECTIONS_LEFT_TO_OTHERS = 3
#: Limits double up to 32 times, to several minutes with default time-outs.
_MAX_DOUBLINGS = 5


class CommitStallGuard:
    """Limits the time without a commit, and keeps a node that exceeded the limit from leading again soon.

    It exists as long as its node, so limits that were raised in earlier terms as leader still apply.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._fruitless = 0  # consecutive step-downs without any commit by any leader
        self._uncommitted_leaderships = 0  # consecutive step-downs without a commit by this node as leader
        self.candidate_from_ms = 0  # this node does not stand for election before this time
        self._successor_from_ms = 0

    @property
    def bound_ms(self) -> int:
        """Longest time without a commit. It doubles after each step-down that is not followed by a commit, so
        that leadership does not circulate if no other member can commit either.
        """
        return self._timing.commit_stall_ms << min(self._fruitless, _MAX_DOUBLINGS)

    def may_stand(self, now_ms: int) -> bool:
        """Return True if this node may stand for election, and False while the other members are to stand
        instead."""
        return now_ms >= self.candidate_from_ms

    def may_succeed(self, now_ms: int) -> bool:
        """Return True if this node may accept a handover.

        A leader that prefers this node would otherwise hand over repeatedly to a node that can win
        elections but cannot commit.
        """
        return now_ms >= self._successor_from_ms

    def committed(self) -> None:
        """Record a commit by any leader."""
        self._fruitless = 0

    def committed_as_leader(self) -> None:
        self._uncommitted_leaderships = 0

    def stepped_down(self, now_ms: int) -> None:
        stall_ms = self._timing.commit_stall_ms
        self.candidate_from_ms = now_ms + _ELECTIONS_LEFT_TO_OTHERS * self._timing.election_max_ms
        self._successor_from_ms = now_ms + (stall_ms << min(self._uncommitted_leaderships, _MAX_DOUBLINGS))
        self._fruitless += 1
        self._uncommitted_leaderships += 1
