"""A leader that has something to commit and commits nothing gives up leadership (docs/guarantees.md rule 14).

Answered heartbeats prove a connection, not progress. The cause of a stall is not looked for: entries that
cannot be read, a push stream that leads nowhere and a mistake in the code look alike from here. The rule asks
only whether another leader could do better. It could if a majority of the members, this node included, has
nothing to store: then their disks are not what a commit waits for. Where disks are slow or stuck, nobody
could do better, and rule 9 decides.

A CommitStall lives as long as its node: what it has learned from one leadership serves the next.
"""

from __future__ import annotations

from dledger.core.values import Timing

#: In so many of the longest election time-outs the others find a leader, if they can.
_ELECTIONS_LEFT_TO_OTHERS = 3
#: Bounds double up to 32 times, to some minutes where time-outs are the usual ones.
_MOST_DOUBLINGS = 5


class CommitStall:
    """Judges a leadership by its commits, and keeps this node back after one that committed nothing."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._fruitless = 0  # step-downs in a row after which nobody committed anything
        self._led_in_vain = 0  # step-downs in a row without a commit of this node as leader between them
        self.candidate_from_ms = 0  # this node leaves elections to the others until then
        self._successor_from_ms = 0

    @property
    def bound_ms(self) -> int:
        """How long a leader may commit nothing. It doubles with each step-down that was fruitless: where no
        other member can do better, leadership is not handed round."""
        return self._timing.commit_stall_ms << min(self._fruitless, _MOST_DOUBLINGS)

    def may_stand(self, now_ms: int) -> bool:
        """May this node be a candidate? Not while the others are to find a leader among themselves."""
        return now_ms >= self.candidate_from_ms

    def may_succeed(self, now_ms: int) -> bool:
        """May this node take over when a leader hands over to it? A leader that prefers it would otherwise
        hand over again and again to a node that can elect itself but cannot commit."""
        return now_ms >= self._successor_from_ms

    def committed(self) -> None:
        """An entry was committed, by whichever leader."""
        self._fruitless = 0

    def committed_as_leader(self) -> None:
        self._led_in_vain = 0

    def stepped_down(self, now_ms: int) -> None:
        stall_ms = self._timing.commit_stall_ms
        self.candidate_from_ms = now_ms + _ELECTIONS_LEFT_TO_OTHERS * self._timing.election_max_ms
        self._successor_from_ms = now_ms + (stall_ms << min(self._led_in_vain, _MOST_DOUBLINGS))
        self._fruitless += 1
        self._led_in_vain += 1
