"""Rebuilds the state that a replica derives from its log, while the replica already votes and follows.

Leading, purging and storing a session table require the sessions, images and purges. Voting, storing pushed
entries and serving entries to other members do not. A node therefore does not wait for the rebuild when it
starts. Slow reads, and damage in the entries to read, only prevent it from leading.
"""

from __future__ import annotations

from dledger.replica.parts import ReplicaParts
from dledger.replica.rebuild_job import RebuildJob, RebuildResult
from dledger.store.api import Damage, EntryDamaged

_RETRY_MS = 100
#: Limit of heads of pushed batches in memory. Beyond it, durable ones are dropped and read from the log
#: again.
MOST_NOTED = 4096


class StateRebuild:
    """The rebuild of one replica after it started. Call all methods on the replica's thread.

    `admission.state` notes the heads of batches above `_noted_from` until a job has read everything up to
    that index.
    """

    def __init__(self, replica: ReplicaParts) -> None:
        self._replica = replica
        self._number = 0  # newest job; results of older jobs are ignored
        self._upto = -1  # last index that the job reads
        self._is_reading = False
        self._noted_from = replica.core.log.end_index
        self._damaged_index = -1  # unreadable entry of the last job
        self._purged: Damage | None = None  # purged by another member, entirely or in part
        self._purged_begin = 0  # start of this log at that time
        self._behind = -1  # damaged entries up to this index are skipped
        self._retry_ms = 0

    @property
    def is_done(self) -> bool:
        return not self._replica.admission.state.is_rebuilding

    def text(self) -> str:
        """Describe the pending work. Returns an empty text once it is done."""
        if self.is_done:
            return ""
        if self._damaged_index >= 0:
            return f"waits for the repair of entry {self._damaged_index}, which the session rebuild needs"
        return f"reads the log up to entry {self._upto} to rebuild the sessions"

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

    def purged_elsewhere(self, damage: Damage) -> None:
        """Mark a damaged range as unrepairable: another member has purged its first entry, below a committed
        image.

        This has no effect if a purge of this log has changed the damage in the meantime.
        """
        begin_index = self._replica.store.begin_index  # read before the damages: the disk thread changes both
        if damage in self._replica.store.damages and damage.last_index > self._unrepairable_upto():
            self._purged, self._purged_begin = damage, begin_index

    def _unrepairable_upto(self) -> int:
        """Last damaged entry that cannot be repaired; -1 if there is none.

        Valid until this log is purged itself. If the damage extends past the new start, other members may
        still have the remaining entries, so the repairer requests them again.
        """
        if self._purged is None or self._purged_begin != self._replica.store.begin_index:
            return -1
        return self._purged.last_index

    def lacks_entries(self) -> bool:
        """Return True if entries are damaged that other members may need from a leader.

        Entries that another member has purged do not count: the PURGE is committed, and this log will start
        after these entries once the node knows that. If its log is the longest, the node must lead before it
        can know that the PURGE is committed.
        """
        unrepairable_upto = self._unrepairable_upto()
        return any(damage.last_index > unrepairable_upto for damage in self._replica.store.damages)

    def truncated(self, last_index: int) -> None:
        """Note a truncation. A running job beyond it may have read deleted entries."""
        self._noted_from = min(self._noted_from, last_index)
        if last_index < self._upto:
            self._forget_job()

    def reset(self) -> None:
        """Note that the log and therefore the state are empty again, so there is nothing to read."""
        if not self.is_done:
            self._forget_job()
            self._replica.shell.rebuilt()

    def read(self, now_ms: int, number: int, outcome: RebuildResult | EntryDamaged | None) -> None:
        """Process the result of a job."""
        if number != self._number or self.is_done:
            return
        self._is_reading = False
        if isinstance(outcome, RebuildResult):
            if outcome.upto < self._noted_from:
                self._begin(outcome)
            else:
                self._install(outcome)
            return
        self._retry_ms = now_ms + _RETRY_MS
        if outcome is not None:
            self._damaged_index = outcome.index
            self._replica.suspects.append(outcome.index)

    def _begin(self, earlier: RebuildResult | None) -> None:
        log = self._replica.core.log
        assert log.durable_index >= self._noted_from, "entries are neither noted nor on disk"
        self._number += 1
        self._is_reading = True
        self._upto = log.durable_index
        unrepairable_upto = self._unrepairable_upto()
        if 0 <= self._damaged_index <= unrepairable_upto:
            self._behind = unrepairable_upto
        self._replica.shell.rebuild(RebuildJob(self._number, self._upto, self._behind, earlier))

    def _forget_job(self) -> None:
        self._number += 1
        self._is_reading = False
        self._damaged_index = self._upto = -1
        self._retry_ms = 0

    def _awaits_repair(self) -> bool:
        """Return True while a known damage blocks the read, unless other members have purged it."""
        index = self._damaged_index
        if index < 0 or index <= self._unrepairable_upto():
            return False
        return any(d.first_index <= index <= d.last_index for d in self._replica.store.damages)

    def _install(self, rebuilt: RebuildResult) -> None:
        replica, state = self._replica, rebuilt.state
        state.add_noted(replica.admission.state, rebuilt.upto)
        replica.admission.state = state
        self._damaged_index = -1
        replica.retainer.publish()
        replica.retainer.marked(rebuilt.unfinished + state.committed(replica.core.committed_index))
        replica.shell.rebuilt()
