"""What must hold after every step of every node: properties of the Raft paper, rules of docs/guarantees.md.

Everything is incremental. A chain checksum stands for all that is before it, so that comparing two logs up to
a batch is comparing two numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from dledger.core.messages import (
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import NO_BASE, Base, HardState, Role, VoteResult
from dledger.node.machine.applier import Applier
from dledger.replica.replica import Replica
from dledger.replica.shell import (
    DiskJob,
    HardStateJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    TruncateJob,
    WriteJob,
)
from dledger.store.format.batch import Batch
from dledger.testing.checks.deltas import NodeState, check_step
from dledger.testing.checks.housekeeping import Housekeeping
from dledger.testing.checks.mirror import BatchLog, NodeMirror
from dledger.testing.virtual.violation import Violation


class Observed(Protocol):
    """A process, as far as it is looked at."""

    node_id: str
    incarnation: int
    replica: Replica

    @property
    def applier(self) -> Applier: ...


class Invariants:
    """All rules that concern more than one moment or more than one node."""

    def __init__(
        self, node_ids: tuple[str, ...], counts: Counter[str], on_commit: Callable[[Batch], None]
    ) -> None:
        self.majority = len(node_ids) // 2 + 1
        self.mirrors = {node_id: NodeMirror(node_id) for node_id in node_ids}
        self.counts = counts
        self.committed = BatchLog()  # the one log, as far as any node has said that it is committed
        self.leaders: dict[int, str] = {}  # term -> who has led it
        self.housekeeping = Housekeeping(counts)
        self._on_commit = on_commit
        self._committed_in: dict[int, Batch] = {}  # term -> the last batch that its leader committed
        self._votes: dict[int, dict[str, str]] = {}  # term -> voter -> candidate
        self._chains: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # (index, term) -> (chain, end of its batch)
        self._known: dict[tuple[int, int], Batch] = {}  # (last index, chain) -> batch
        self._seen: dict[tuple[str, int], NodeState] = {}  # by node and incarnation, after its last step
        self._cut_after: dict[str, int] = {}  # by node: the lowest entry that this step has cut behind
        self._looked_at: dict[str, tuple[object, ...]] = {}  # by node: what was checked last

    def committed_batch(self, index: int) -> Batch | None:
        """The committed batch that holds `index`."""
        return self.committed.holding(index)

    def preloaded(self, node_id: str, batches: list[Batch], hard_state: HardState) -> None:
        """A node starts with this log, as if it had lived before."""
        mirror = self.mirrors[node_id]
        for batch in batches:
            self._appended(mirror, batch)
            self.written(node_id, batch)
        self.synced(node_id)
        mirror.hard_state = mirror.hard_state_wanted = hard_state

    # -- what a replica asks of its disk: its log as it believes it to be

    def submitted(self, process: Observed, job: DiskJob) -> None:
        mirror = self.mirrors[process.node_id]
        match job:
            case WriteJob():
                for batch in job.batches:
                    self._appended(mirror, batch)
            case TruncateJob():
                self._truncated(process, mirror, job.last_index)
            case ResetJob():
                self._reset(process, mirror, job.base)
            case PurgeJob():
                self._check_base(mirror.node_id, job.base)
                mirror.view.purge(job.base)
            case HardStateJob():
                self.saving_hard_state(mirror.node_id, job.hard_state)

    def _appended(self, mirror: NodeMirror, batch: Batch) -> None:
        view = mirror.view
        if batch.first_index != view.end_index + 1:
            raise Violation("no gaps", f"{mirror.node_id} writes {batch.first_index} after {view.end_index}")
        if batch.term < view.end_term:
            raise Violation("terms rise", f"{mirror.node_id} writes term {batch.term} after {view.end_term}")
        known = (batch.chain_crc, batch.last_index)
        for index in range(batch.first_index, batch.last_index + 1):
            found = self._chains.setdefault((index, batch.term), known)
            if found != known:
                raise Violation(
                    "log matching",
                    f"{mirror.node_id} has another entry {index} of term {batch.term}:"
                    f" batch to {known[1]}#{known[0]:08x}, elsewhere {found[1]}#{found[0]:08x}",
                )
        view.append(self._remember(batch))

    def _reset(self, process: Observed, mirror: NodeMirror, base: Base) -> None:
        self.counts["logs begun anew at a base"] += 1
        if process.replica.core.role is Role.LEADER:
            raise Violation("leader append-only", f"{mirror.node_id} begins a new log while it leads")
        if base.index <= mirror.view.base.index:
            raise Violation("begin only grows", f"{mirror.node_id}: {base} after {mirror.view.base}")
        self._check_base(mirror.node_id, base)
        self._note_cut(process.node_id, base.index)
        mirror.view = BatchLog(base=base)

    def _note_cut(self, node_id: str, last_index: int) -> None:
        self._cut_after[node_id] = min(last_index, self._cut_after.get(node_id, last_index))

    def _check_base(self, node_id: str, base: Base) -> None:
        """Only a committed PURGE moves the begin of a log, and by all nodes to the same places."""
        self.housekeeping.check_base(node_id, base)
        last = self.committed.ending_at(base.index)
        if last is None or (last.term, last.chain_crc) != (base.term, base.chain_crc):
            raise Violation("purge", f"{node_id} begins after {base}, which is committed as {last}")

    def _remember(self, batch: Batch) -> Batch:
        """One copy of each batch for all logs: those of a replica let go of their bytes when it is done."""
        key = (batch.last_index, batch.chain_crc)
        if key not in self._known:
            self._known[key] = replace(batch, data=bytes(batch.data))
        return self._known[key]

    def _truncated(self, process: Observed, mirror: NodeMirror, last_index: int) -> None:
        self.counts["truncations"] += 1
        if process.replica.core.role is Role.LEADER:
            raise Violation("leader append-only", f"{mirror.node_id} truncates while it leads")
        # What was committed here before this step: a push may cut, and commit what it puts there.
        seen = self._seen.get((process.node_id, process.incarnation))
        if seen is not None and last_index < seen.committed_index:
            raise Violation(
                "committed is forever",
                f"{mirror.node_id} truncates after {last_index}, committed {seen.committed_index}",
            )
        if not mirror.view.ends_at(last_index):
            raise Violation(
                "batches are atomic", f"{mirror.node_id} truncates after {last_index}, inside a batch"
            )
        self._note_cut(process.node_id, last_index)
        cut = mirror.view.truncate_after(last_index)
        for batch in cut:
            self.counts["entries truncated"] += batch.count
            if self.committed.holds(batch):
                # Not yet known to be committed here, but it is: the majority that holds it shrinks.
                raise Violation("committed is forever", f"{mirror.node_id} cuts committed {batch.last_index}")

    def saving_hard_state(self, node_id: str, new: HardState) -> None:
        """A node has decided to store a term, a vote, or the incarnation of a new life."""
        mirror = self.mirrors[node_id]
        old = mirror.hard_state_wanted
        if new.term < old.term or new.incarnation < old.incarnation:
            raise Violation("hard state", f"{mirror.node_id} goes back from {old} to {new}")
        if new.term == old.term and old.voted_for not in (None, new.voted_for):
            raise Violation("one vote per term", f"{mirror.node_id} changes its vote from {old} to {new}")
        mirror.hard_state_wanted = new

    # -- what a node says

    def sent(self, process: Observed, peer: str, message: Message) -> None:
        """Rule 2: nothing leaves that depends on a term or a vote which is not durable."""
        mirror = self.mirrors[process.node_id]
        durable = mirror.hard_state
        if isinstance(message, HeartbeatResponse | PushResponse) and message.counts and durable.is_barred:
            raise Violation("rejoining", f"{process.node_id} counts, durable: {durable}")
        if isinstance(message, VoteRequest) and message.pre_vote:
            return
        if message.term > durable.term:
            raise Violation("durable term", f"{process.node_id} sends {message}, durable: {durable}")
        candidate: str | None = None
        if isinstance(message, VoteRequest):
            candidate = message.candidate_id
        elif (
            isinstance(message, VoteResponse) and message.result is VoteResult.ACCEPT and not message.pre_vote
        ):
            candidate = peer
        if candidate is not None:
            self._voted(process, message.term, candidate, durable)
        if isinstance(message, Heartbeat):
            self._check_leads(message.term, process.node_id)

    def _voted(self, process: Observed, term: int, candidate: str, durable: HardState) -> None:
        if durable.rejoining or term <= durable.barred_term:
            raise Violation("rejoining", f"{process.node_id} votes for {candidate}, durable: {durable}")
        votes = self._votes.setdefault(term, {})
        if votes.setdefault(process.node_id, candidate) != candidate:
            raise Violation(
                "one vote per term",
                f"{process.node_id} votes for {candidate} in term {term}, not for {votes[process.node_id]}",
            )
        if durable.term == term and durable.voted_for != candidate:
            raise Violation("durable vote", f"{process.node_id} votes for {candidate}, durable: {durable}")

    def _check_leads(self, term: int, node_id: str) -> None:
        if self.leaders.get(term) != node_id:
            raise Violation(
                "election safety",
                f"{node_id} sends as leader of term {term}, which {self.leaders.get(term)} led",
            )

    # -- roles

    def role_changed(self, process: Observed, notice: RoleNotice) -> None:
        mirror = self.mirrors[process.node_id]
        if notice.role_epoch < mirror.role_epoch:
            raise Violation("role_epoch", f"{process.node_id}: {notice.role_epoch} after {mirror.role_epoch}")
        if notice.role is Role.LEADER and notice.role_epoch > mirror.role_epoch:
            self._elected(process, notice)
        elif notice.role is Role.CANDIDATE and notice.role_epoch > mirror.role_epoch:
            self.counts[f"candidacies: {notice.cause}"] += 1
        mirror.role_epoch = notice.role_epoch

    def _elected(self, process: Observed, notice: RoleNotice) -> None:
        self.counts["elections won"] += 1
        if notice.term in self.leaders:
            raise Violation(
                "election safety",
                f"{process.node_id} is elected in term {notice.term}, led by {self.leaders[notice.term]}",
            )
        self.leaders[notice.term] = process.node_id
        if self.mirrors[process.node_id].hard_state.is_barred:
            raise Violation("rejoining", f"{process.node_id} leads term {notice.term} and is barred from it")
        # What leaders of higher terms committed is not asked for: votes of a term may arrive very late.
        earlier = [batch for term, batch in self._committed_in.items() if term < notice.term]
        last = max(earlier, key=lambda batch: batch.last_index, default=None)
        if last is not None and not self.mirrors[process.node_id].view.covers(last):
            raise Violation(
                "leader completeness",
                f"{process.node_id} leads term {notice.term} without the committed entry {last.last_index}",
            )

    # -- commits

    def advanced(self, process: Observed, index: int) -> None:
        """A node says that it is committed up to `index`."""
        mirror = self.mirrors[process.node_id]
        if mirror.view.base.index == index >= 0:
            return  # it was checked when the log began there
        here = mirror.view.ending_at(index)
        if here is None:
            raise Violation(
                "batches are atomic",
                f"{process.node_id} commits {index}: no end of a batch in a log to {mirror.view.end_index}",
            )
        core = process.replica.core
        if core.role is Role.LEADER and here.term != core.term:
            raise Violation(
                "own term only",
                f"{process.node_id} leads term {core.term}, counts {index} of term {here.term}",
            )
        for batch in mirror.view.ending_in(self.committed.end_index, index):
            self._check_majority(process, batch)
            self.committed.append(batch)
            self._committed_in[core.term] = batch
            self.housekeeping.committed(batch)
            self._on_commit(batch)
        if not self.committed.holds(here):
            raise Violation("state-machine safety", f"{process.node_id} commits another entry {index}")

    def _check_majority(self, process: Observed, batch: Batch) -> None:
        holders = [m.node_id for m in self.mirrors.values() if m.has_stored(batch)]
        if len(holders) < self.majority:
            raise Violation(
                "durable on a majority",
                f"{process.node_id} commits {batch.last_index} of term {batch.term}, durable on {holders}",
            )
        if self.committed.batches and batch.first_index != self.committed.end_index + 1:
            raise Violation("state-machine safety", f"{batch.first_index} after {self.committed.end_index}")

    def acknowledged(self, process: Observed, last_index: int) -> None:
        """Rule 1, at the moment of the answer. A replica may answer before it announces the commit."""
        if self.committed.end_index < last_index <= process.replica.core.committed_index:
            self.advanced(process, process.replica.core.committed_index)
        batch = self.committed_batch(last_index)
        if batch is None:
            raise Violation(
                "acknowledged", f"{process.node_id} answers {last_index}, which is committed nowhere"
            )
        # A batch that was committed before may have holders that are truncating nothing but crashed: their
        # disks still count. So the majority is there at every acknowledgement, the first and any later one.
        if sum(m.has_stored(batch) for m in self.mirrors.values()) < self.majority:
            raise Violation("durable on a majority", f"{process.node_id} acknowledges {last_index} too early")

    # -- after each step of a process

    def after_step(self, process: Observed) -> None:
        core, mirror = process.replica.core, self.mirrors[process.node_id]
        view = mirror.view
        looked_at = (
            process.incarnation,
            core.term,
            core.hard_state.voted_for,
            core.committed_index,
            core.role_epoch,
            core.log.end_index,
            core.log.durable_index,
            core.log.verified_index,
            core.log.base.index,
            process.applier.applied_index,
            mirror.durable_index,
            view.version,
        )
        if self._looked_at.get(process.node_id) == looked_at:
            return  # most steps change nothing of this
        self._looked_at[process.node_id] = looked_at
        new = self._state_of(process, view)
        life = (process.node_id, process.incarnation)
        old = self._seen.get(life)
        self._seen[life] = new
        cut_after = self._cut_after.pop(process.node_id, None)
        if old is not None:
            chain_before = _chain_at(view, old.committed_index)
            check_step(process.node_id, old, new, cut_after=cut_after, chain_before=chain_before)
        if not -1 <= core.committed_index <= max(view.end_index, core.log.end_index):
            raise Violation(
                "committed <= end", f"{process.node_id}: {core.committed_index} of {view.end_index}"
            )
        # A base that was installed is committed elsewhere: it counts as durable before it is so here, too.
        if core.log.durable_index > max(mirror.durable_index, view.base.index):
            raise Violation(
                "durable_index",
                f"{process.node_id} believes {core.log.durable_index} durable, it is {mirror.durable_index}",
            )
        for index in (core.log.durable_index, core.log.verified_index):
            if index <= view.end_index and not view.ends_at(index):
                raise Violation("batches are atomic", f"{process.node_id}: {index} is inside a batch")

    def _state_of(self, process: Observed, view: BatchLog) -> NodeState:
        core = process.replica.core
        return NodeState(
            core.term,
            core.hard_state.voted_for,
            core.role_epoch,
            core.committed_index,
            process.applier.applied_index,
            core.log.base.index,
            core.log.durable_index,
            _chain_at(view, core.committed_index),
        )

    # -- what the disk did

    def written(self, node_id: str, batch: Batch) -> None:
        self.mirrors[node_id].written.append(self._remember(batch))

    def synced(self, node_id: str) -> None:
        mirror = self.mirrors[node_id]
        mirror.durable_index = mirror.written.end_index

    def truncating(self, node_id: str, last_index: int) -> None:
        self.mirrors[node_id].truncating_after = last_index

    def truncated(self, node_id: str, last_index: int) -> None:
        mirror = self.mirrors[node_id]
        mirror.written.truncate_after(last_index)
        mirror.durable_index = min(mirror.durable_index, last_index)
        mirror.truncating_after = None

    def purging(self, node_id: str, base: Base) -> None:
        mirror = self.mirrors[node_id]
        if base.index > mirror.durable_index:
            raise Violation("purge", f"{node_id} purges to {base}, only {mirror.durable_index} is durable")
        mirror.purging_to = base

    def purged(self, node_id: str) -> None:
        mirror = self.mirrors[node_id]
        if mirror.purging_to is not None:
            mirror.written.purge(mirror.purging_to)
        mirror.purging_to = None

    def resetting(self, node_id: str, base: Base) -> None:
        self.mirrors[node_id].resetting_to = base

    def reset(self, node_id: str) -> None:
        mirror = self.mirrors[node_id]
        assert mirror.resetting_to is not None
        mirror.written = BatchLog(base=mirror.resetting_to)
        mirror.durable_index = mirror.resetting_to.index
        mirror.purging_to = mirror.resetting_to = None

    def wiped(self, node_id: str, hard_state: HardState) -> None:
        """The disk of a node that is down was replaced by an empty one."""
        self.mirrors[node_id].wipe(hard_state)
        # The node that was to be elected by its vote for itself is no more. Its next life may give that vote
        # to another one only in a term of which nobody has heard: else it is barred from the term.
        for votes in self._votes.values():
            if votes.get(node_id) == node_id:
                del votes[node_id]

    @property
    def lost_nodes(self) -> set[str]:
        """Nodes whose copies do not count: they lost their logs and are not back yet."""
        return {m.node_id for m in self.mirrors.values() if m.hard_state.is_barred}

    def hard_state_starts(self, node_id: str, state: HardState) -> None:
        self.mirrors[node_id].hard_state_under_way = state

    def hard_state_saved(self, node_id: str, state: HardState) -> None:
        self.mirrors[node_id].hard_state = state

    def _end_lost(self, mirror: NodeMirror, promised: int, new: HardState) -> None:
        """Rule 10: what was at the end is gone, and the node knows how far its log went. It counts for what
        it had, as one that lost its disk does."""
        self.counts["ends of logs lost"] += 1
        old = mirror.hard_state
        known = (old, mirror.hard_state_under_way or old)
        floor = (new.floor_term, new.floor_index)
        end = mirror.written.ending_at(promised)
        least = (end.term, promised) if end is not None else (-1, -1)
        most = (mirror.written.end_term, mirror.written.end_index)
        kept = [replace(s, rejoining=True, floor_term=floor[0], floor_index=floor[1]) for s in known]
        if new not in kept or floor < least or floor > max(most, (old.floor_term, old.floor_index)):
            raise Violation("damage", f"{mirror.node_id} ended at {least}..{most}, comes back with {new}")
        if not old.is_barred:
            mirror.lost.append((mirror.durable_index, BatchLog(mirror.written.batches, mirror.written.base)))
        mirror.hard_state = new

    def recovered(
        self,
        node_id: str,
        ends: list[tuple[int, int, int]],
        hard_state: HardState,
        base: Base = NO_BASE,
        *,
        is_damaged: bool = False,
    ) -> None:
        """A node has opened its store after a crash: (last index, term, chain) of each batch found.

        With `is_damaged` it may have lost the end of its log, if it knows how far it had come.
        """
        mirror = self.mirrors[node_id]
        if base not in (mirror.written.base, mirror.purging_to, mirror.resetting_to):
            raise Violation("recovery", f"{node_id} began after {mirror.written.base}, now after {base}")
        batches = []
        for last_index, term, chain in ends:
            batch = self._known.get((last_index, chain))
            if batch is None or batch.term != term:
                raise Violation("recovery", f"{node_id} finds an entry {last_index}@{term} that nobody wrote")
            batches.append(batch)
        found = BatchLog(batches, base)
        promised = mirror.durable_index
        if base == mirror.resetting_to and base.index >= 0:
            promised = base.index
        if mirror.truncating_after is not None:
            promised = min(promised, mirror.truncating_after)
        was = mirror.hard_state_under_way or mirror.hard_state
        if is_damaged and hard_state not in (mirror.hard_state, was):
            self._end_lost(mirror, promised, hard_state)
            promised = min(promised, found.end_index)
        last = mirror.written.ending_at(promised)
        if promised > base.index and (last is None or not found.holds(last)):
            raise Violation(
                "recovery", f"{node_id} had {promised} durable and comes back with {found.end_index}"
            )
        if hard_state not in (mirror.hard_state, mirror.hard_state_under_way):
            raise Violation("recovery", f"{node_id} had {mirror.hard_state} and comes back with {hard_state}")
        mirror.hard_state = mirror.hard_state_wanted = hard_state
        mirror.hard_state_under_way = None
        mirror.truncating_after = mirror.purging_to = mirror.resetting_to = None
        mirror.written = found
        mirror.durable_index = found.end_index
        mirror.view = BatchLog(batches, base)


def _chain_at(log: BatchLog, index: int) -> int | None:
    """None if the log begins behind it, or holds nothing."""
    if index < 0 or index < log.base.index:
        return None
    if index == log.base.index:
        return log.base.chain_crc
    batch = log.ending_at(index)
    return None if batch is None else batch.chain_crc
