"""Rebuilds, after a start, what a replica derives from its log, while it already votes and follows.

Sessions, images and purges have to be known to lead, to purge, and to store a session table: not to vote, to
store what a leader pushes, or to give entries to other members. So a start waits for nothing. Damage in what
has to be read, and the time that reading takes, keep this node from leading, and nobody from anything else.
"""

from __future__ import annotations

from dledger.replica.parts import ReplicaParts
from dledger.replica.rebuild_job import RebuildJob, Rebuilt
from dledger.store.api import EntryDamaged

_RETRY_MS = 100
#: So many heads of pushed batches are kept in memory; what is durable of more is read from the log again.
MOST_NOTED = 4096


class Rebuilding:
    """Of one replica, in one life. Everything on the replica's thread.

    `admission.state` notes the heads of batches above `_noted_from` until a job has read all up to there.
    """

    def __init__(self, replica: ReplicaParts) -> None:
        self._replica = replica
        self._number = 0  # of the newest job; the outcome of an older one is void
        self._upto = -1  # how far that reads
        self._is_reading = False
        self._noted_from = replica.core.log.end_index
        self._damaged_index = -1  # what the last job could not read
        self._purged_upto = -1
        self._behind = -1  # what is damaged up to there is not read
        self._retry_ms = 0

    @property
    def is_done(self) -> bool:
        return not self._replica.admission.state.is_rebuilding

    def text(self) -> str:
        """What it waits for, in words; empty if it is done."""
        if self.is_done:
            return ""
        if self._damaged_index >= 0:
            return f"waits for the repair of entry {self._damaged_index}, which sessions are rebuilt from"
        return f"reads the log up to entry {self._upto}, which sessions are rebuilt from"

    def start(self, now_ms: int) -> None:
        self._begin(None)

    def tick(self, now_ms: int) -> None:
        if self.is_done:
            return
        state = self._replica.admission.state
        if not self._is_reading or state.noted_count > MOST_NOTED:
            self._noted_from = max(self._noted_from, self._replica.core.log.durable_index)
            state.forget_noted(self._noted_from)
        if not self._is_reading and now_ms >= self._retry_ms and not self._awaits_repair():
            self._begin(None)

    def purged_elsewhere(self, last_index: int) -> None:
        """Damaged entries up to this one cannot be repaired: another member has purged them, as it may when
        a state image behind them is committed."""
        self._purged_upto = max(self._purged_upto, last_index)

    def lacks_entries(self) -> bool:
        """Is anything damaged that others may need from a leader? Not what one of them has purged: a PURGE
        of it is committed. This log begins behind it as soon as that is known here, and if this is the
        longest log, it becomes known only by leading."""
        return any(damage.last_index > self._purged_upto for damage in self._replica.store.damages)

    def truncated(self, last_index: int) -> None:
        """The log ends here now. A job that was to read more may have read what is gone."""
        self._noted_from = min(self._noted_from, last_index)
        if last_index < self._upto:
            self._forget_job()

    def reset(self) -> None:
        """The log is about to begin anew, and with it the state: there is nothing left to be read."""
        if not self.is_done:
            self._forget_job()
            self._replica.shell.rebuilt()

    def read(self, now_ms: int, number: int, outcome: Rebuilt | EntryDamaged | None) -> None:
        """A job has ended."""
        if number != self._number or self.is_done:
            return
        self._is_reading = False
        if isinstance(outcome, Rebuilt):
            if outcome.upto < self._noted_from:
                self._begin(outcome)
            else:
                self._take_over(outcome, now_ms)
            return
        self._retry_ms = now_ms + _RETRY_MS
        if outcome is not None:
            self._damaged_index = outcome.index
            self._replica.suspects.append(outcome.index)

    def _begin(self, so_far: Rebuilt | None) -> None:
        log = self._replica.core.log
        assert log.durable_index >= self._noted_from, "entries that are neither noted nor on the disk"
        self._number += 1
        self._is_reading = True
        self._upto = log.durable_index
        if 0 <= self._damaged_index <= self._purged_upto:
            self._behind = self._purged_upto
        self._replica.shell.rebuild(RebuildJob(self._number, self._upto, self._behind, so_far))

    def _forget_job(self) -> None:
        self._number += 1
        self._is_reading = False
        self._damaged_index = self._upto = -1
        self._retry_ms = 0

    def _awaits_repair(self) -> bool:
        """Reading again is in vain as long as the damage is known, unless others have purged it."""
        index = self._damaged_index
        if index < 0 or index <= self._purged_upto:
            return False
        return any(d.first_index <= index <= d.last_index for d in self._replica.store.damages)

    def _take_over(self, rebuilt: Rebuilt, now_ms: int) -> None:
        replica, state = self._replica, rebuilt.state
        state.add_noted(replica.admission.state, rebuilt.upto, now_ms)
        replica.admission.state = state
        self._damaged_index = -1
        replica.carry_out(rebuilt.unfinished + state.committed(replica.core.committed_index))
        replica.shell.rebuilt()
