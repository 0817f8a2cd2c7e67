"""Invariants that are checked after every step of every node: properties from the Raft paper, and rules of
docs/guarantees.md.

All checks are incremental. A chain checksum covers all preceding entries, so two logs are equal up to a batch
if their chain checksums at that batch are equal.
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
from dledger.store.format.internal import Purge, decode_internal, strip_stamp
from dledger.testing.checks.configurations import Configurations, check_elected
from dledger.testing.checks.housekeeping import Housekeeping
from dledger.testing.checks.mirror import BatchLog, NodeMirror
from dledger.testing.checks.quorums import decides
from dledger.testing.checks.transitions import ObservedState, check_step
from dledger.testing.virtual.violation import Violation


class ObservedProcess(Protocol):
    """The part of a process that the checks inspect."""

    node_id: str
    incarnation: int
    replica: Replica

    @property
    def applier(self) -> Applier: ...


class Invariants:
    """All rules that concern more than one point in time or more than one node."""

    def __init__(
        self, node_ids: tuple[str, ...], counts: Counter[str], on_commit: Callable[[Batch], None]
    ) -> None:
        self.mirrors = {node_id: NodeMirror(node_id) for node_id in node_ids}
        self.counts = counts
        self.committed = BatchLog()  # the committed log, as far as any node has reported
        self.leaders: dict[int, str] = {}  # term -> its leader
        self.housekeeping = Housekeeping(counts)
        self._on_commit = on_commit
        self._committed_in: dict[int, Batch] = {}  # term -> the last batch that its leader committed
        self._votes: dict[int, dict[str, str]] = {}  # term -> voter -> candidate
        # (index, term) -> (chain, end of its batch)
        self._chains: dict[tuple[int, int], tuple[int, int]] = {}
        self._known: dict[tuple[int, int], Batch] = {}  # (last index, chain) -> batch
        # state by node and incarnation, after its last step
        self._seen: dict[tuple[str, int], ObservedState] = {}
        self._configurations = Configurations()
        self._cut_after: dict[str, int] = {}  # by node: the lowest index that this step truncated after
        self._checked: dict[str, tuple[object, ...]] = {}  # by node: the values checked last

    def committed_batch(self, index: int) -> Batch | None:
        """Return the committed batch that contains `index`."""
        return self.committed.holding(index)

    def preloaded(self, node_id: str, batches: list[Batch], hard_state: HardState) -> None:
        """Register a node that starts with this log."""
        mirror = self.mirrors[node_id]
        for batch in batches:
            self._appended(mirror, batch)
            self.written(node_id, batch)
        self.synced(node_id)
        mirror.hard_state = mirror.hard_state_wanted = hard_state

    # -- disk jobs of a replica: the log in its view

    def submitted(self, process: ObservedProcess, job: DiskJob) -> None:
        mirror = self.mirrors[process.node_id]
        match job:
            case WriteJob():
                for batch in job.batches:
                    self._appended(mirror, batch)
                    self._check_purge(process, batch)
            case TruncateJob():
                self._truncated(process, mirror, job.last_index)
            case ResetJob():
                self._reset(process, mirror, job.base)
            case PurgeJob():
                self._check_base(mirror.node_id, job.base)
                self.housekeeping.purges(mirror.node_id, job.base, process.replica.store)
                mirror.view.purge(job.base)
            case HardStateJob():
                self.saving_hard_state(mirror.node_id, job.hard_state)

    def _check_purge(self, process: ObservedProcess, batch: Batch) -> None:
        replica = process.replica
        if batch.head is None or replica.core.role is not Role.LEADER:
            return
        value = strip_stamp(decode_internal(batch.head))[1]
        if isinstance(value, Purge):
            # A configuration that is written together with it, but follows it, is not in force there.
            in_force = replica.core.log.memberships_from(batch.first_index)[0].membership
            self.housekeeping.purge_written(process.node_id, value.base, in_force, replica.store)

    def _appended(self, mirror: NodeMirror, batch: Batch) -> None:
        view = mirror.view
        if batch.first_index != view.end_index + 1:
            raise Violation(
                "no gaps", f"{mirror.node_id} appended index {batch.first_index} after {view.end_index}"
            )
        if batch.term < view.end_term:
            raise Violation(
                "terms rise", f"{mirror.node_id} appended term {batch.term} after {view.end_term}"
            )
        known = (batch.chain_crc, batch.last_index)
        for index in range(batch.first_index, batch.last_index + 1):
            first_seen = self._chains.setdefault((index, batch.term), known)
            if first_seen != known:
                raise Violation(
                    "log matching",
                    f"{mirror.node_id} has a different entry {index} of term {batch.term}: its batch "
                    f"ends as {known[1]}#{known[0]:08x}, another node's as "
                    f"{first_seen[1]}#{first_seen[0]:08x}",
                )
        view.append(self._remember(batch))

    def _reset(self, process: ObservedProcess, mirror: NodeMirror, base: Base) -> None:
        self.counts["logs begun anew at a base"] += 1
        if process.replica.core.role is Role.LEADER:
            raise Violation("leader append-only", f"{mirror.node_id} resets its log while it leads")
        if base.index <= mirror.view.base.index:
            raise Violation(
                "begin only grows",
                f"{mirror.node_id} resets its log to {base}, not after its current base {mirror.view.base}",
            )
        self._check_base(mirror.node_id, base)
        self._note_cut(process.node_id, base.index)
        mirror.view = BatchLog(base=base)

    def _note_cut(self, node_id: str, last_index: int) -> None:
        self._cut_after[node_id] = min(last_index, self._cut_after.get(node_id, last_index))

    def _check_base(self, node_id: str, base: Base) -> None:
        """Check that a log starts only after a committed PURGE, at the same entry on all nodes."""
        self.housekeeping.check_base(node_id, base)
        last = self.committed.ending_at(base.index)
        if last is None or (last.term, last.chain_crc) != (base.term, base.chain_crc):
            raise Violation(
                "purge", f"the log of {node_id} starts after {base}, but the committed batch there is {last}"
            )

    def _remember(self, batch: Batch) -> Batch:
        """Return the shared copy of a batch. A replica releases the bytes of its own batches when it no
        longer needs them."""
        key = (batch.last_index, batch.chain_crc)
        if key not in self._known:
            self._known[key] = replace(batch, data=bytes(batch.data))
        return self._known[key]

    def _truncated(self, process: ObservedProcess, mirror: NodeMirror, last_index: int) -> None:
        self.counts["truncations"] += 1
        if process.replica.core.role is Role.LEADER:
            raise Violation("leader append-only", f"{mirror.node_id} truncates while it leads")
        # Use the committed index before this step: a push may truncate, and then commit the replacement.
        known = self._seen.get((process.node_id, process.incarnation))
        if known is not None and last_index < known.committed_index:
            raise Violation(
                "committed is forever",
                f"{mirror.node_id} truncates after {last_index}, committed {known.committed_index}",
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
                # This node may not know yet that the batch is committed, but the number of its copies
                # decreases.
                raise Violation(
                    "committed is forever",
                    f"{mirror.node_id} truncates the committed batch that ends at {batch.last_index}",
                )

    def saving_hard_state(self, node_id: str, new: HardState) -> None:
        """Check a term, vote or incarnation that a node has decided to store."""
        mirror = self.mirrors[node_id]
        old = mirror.hard_state_wanted
        if new.term < old.term or new.incarnation < old.incarnation:
            raise Violation("hard state", f"{mirror.node_id} replaces {old} with the older {new}")
        if new.term == old.term and old.voted_for not in (None, new.voted_for):
            raise Violation("one vote per term", f"{mirror.node_id} changes its vote from {old} to {new}")
        mirror.hard_state_wanted = new

    # -- messages

    def sent(self, process: ObservedProcess, peer: str, message: Message) -> None:
        """Check rule 2: no message depends on a term or a vote that is not durable."""
        mirror = self.mirrors[process.node_id]
        durable = mirror.hard_state
        if isinstance(message, HeartbeatResponse | PushResponse) and message.counts and durable.is_barred:
            raise Violation(
                "rejoining",
                f"{process.node_id} lets its copies count although its durable state bars it: {durable}",
            )
        if isinstance(message, HeartbeatResponse | Heartbeat):
            begin, store = process.replica.core.log.begin_index, process.replica.store
            self.housekeeping.reported(process.node_id, message.image_index, begin, store)
        if isinstance(message, VoteRequest) and message.pre_vote:
            return
        if message.term > durable.term:
            raise Violation(
                "durable term", f"{process.node_id} sends {message}, but its durable state is {durable}"
            )
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

    def _voted(self, process: ObservedProcess, term: int, candidate: str, durable: HardState) -> None:
        if durable.rejoining or term <= durable.barred_term:
            raise Violation(
                "rejoining",
                f"{process.node_id} votes for {candidate} although its durable state bars it: {durable}",
            )
        votes = self._votes.setdefault(term, {})
        if votes.setdefault(process.node_id, candidate) != candidate:
            raise Violation(
                "one vote per term",
                f"{process.node_id} votes for {candidate} in term {term}, but voted for "
                f"{votes[process.node_id]} before",
            )
        if durable.term == term and durable.voted_for != candidate:
            raise Violation(
                "durable vote", f"{process.node_id} votes for {candidate}, but its durable state is {durable}"
            )

    def _check_leads(self, term: int, node_id: str) -> None:
        if self.leaders.get(term) != node_id:
            raise Violation(
                "election safety",
                f"{node_id} sends as leader of term {term}, whose leader is {self.leaders.get(term)}",
            )

    # -- roles

    def role_changed(self, process: ObservedProcess, notice: RoleNotice) -> None:
        mirror = self.mirrors[process.node_id]
        if notice.role_epoch < mirror.role_epoch:
            raise Violation(
                "role_epoch",
                f"{process.node_id} announces role_epoch {notice.role_epoch} after {mirror.role_epoch}",
            )
        if notice.role is Role.LEADER and notice.role_epoch > mirror.role_epoch:
            self._elected(process, notice)
        elif notice.role is Role.CANDIDATE and notice.role_epoch > mirror.role_epoch:
            self.counts[f"candidacies: {notice.cause}"] += 1
        mirror.role_epoch = notice.role_epoch

    def _elected(self, process: ObservedProcess, notice: RoleNotice) -> None:
        self.counts["elections won"] += 1
        if notice.term in self.leaders:
            raise Violation(
                "election safety",
                f"{process.node_id} is elected in term {notice.term}, whose leader is "
                f"{self.leaders[notice.term]}",
            )
        self.leaders[notice.term] = process.node_id
        if self.mirrors[process.node_id].hard_state.is_barred:
            raise Violation(
                "rejoining", f"{process.node_id} leads in term {notice.term} although it is barred from it"
            )
        votes = self._votes.get(notice.term, {})
        granted = {process.node_id, *(v for v, candidate in votes.items() if candidate == process.node_id)}
        check_elected(process.node_id, notice.term, process.replica.core.membership, granted)
        # Entries committed by leaders of higher terms are not required: votes of a term may arrive very late.
        earlier = [batch for term, batch in self._committed_in.items() if term < notice.term]
        last = max(earlier, key=lambda batch: batch.last_index, default=None)
        if last is not None and not self.mirrors[process.node_id].view.covers(last):
            raise Violation(
                "leader completeness",
                f"{process.node_id} leads in term {notice.term}, but lacks the committed entry "
                f"{last.last_index}",
            )

    # -- commits

    def advanced(self, process: ObservedProcess, index: int) -> None:
        """Check that a node committed up to `index`."""
        mirror = self.mirrors[process.node_id]
        if mirror.view.base.index == index >= 0:
            return  # checked when the log was reset to this base
        reached = mirror.view.ending_at(index)
        if reached is None:
            raise Violation(
                "batches are atomic",
                f"{process.node_id} committed index {index}, which is not the last entry of any batch in its "
                f"log (log end: {mirror.view.end_index})",
            )
        core = process.replica.core
        if core.role is Role.LEADER and reached.term != core.term:
            raise Violation(
                "own term only",
                f"{process.node_id} leads in term {core.term}, but commits {index} of term "
                f"{reached.term} by counting copies",
            )
        for batch in mirror.view.ending_in(self.committed.end_index, index):
            self._check_majority(process, batch)
            self.committed.append(batch)
            self._committed_in[core.term] = batch
            self.housekeeping.committed(batch)
            self._configurations.committed(batch)
            self._on_commit(batch)
        if not self.committed.holds(reached):
            raise Violation("state-machine safety", f"{process.node_id} commits a different entry {index}")

    def _check_majority(self, process: ObservedProcess, batch: Batch) -> None:
        holders = self._holders(batch)
        if not self._is_majority(process, batch, holders):
            raise Violation(
                "durable on a majority",
                f"{process.node_id} commits entry {batch.last_index} of term {batch.term}, which is "
                f"durable only on {holders}, with {process.replica.core.membership}",
            )
        if self.committed.batches and batch.first_index != self.committed.end_index + 1:
            raise Violation(
                "state-machine safety",
                f"a batch that starts at {batch.first_index} is committed after entry "
                f"{self.committed.end_index}",
            )

    def _holders(self, batch: Batch) -> list[str]:
        return [mirror.node_id for mirror in self.mirrors.values() if mirror.has_stored(batch)]

    def _is_majority(self, process: ObservedProcess, batch: Batch, holders: list[str]) -> bool:
        """Return True if the holders decide by the configuration in force at the leader."""
        if process.replica.core.role is Role.LEADER:
            return decides(process.replica.core.membership, holders)
        return self._was_majority(process, batch, holders)

    def _was_majority(self, process: ObservedProcess, batch: Batch, holders: list[str]) -> bool:
        """Return True if the holders decide by a configuration that can have been in force at the commit."""
        log = process.replica.core.log
        return any(
            decides(at.membership, holders)
            for at in log.memberships_from(max(log.base.index, batch.first_index))
        )

    def acknowledged(self, process: ObservedProcess, last_index: int) -> None:
        """Check rule 1 when a replica answers a caller. The replica may answer before it announces the
        commit."""
        if self.committed.end_index < last_index <= process.replica.core.committed_index:
            self.advanced(process, process.replica.core.committed_index)
        batch = self.committed_batch(last_index)
        if batch is None:
            raise Violation(
                "acknowledged", f"{process.node_id} acknowledges entry {last_index}, which is not committed"
            )
        # Crashed holders still count, because their disks hold the batch. A majority therefore exists at the
        # first acknowledgment and at every later one.
        if not self._was_majority(process, batch, self._holders(batch)):
            raise Violation(
                "durable on a majority",
                f"{process.node_id} acknowledges entry {last_index} before it is durable on a majority",
            )

    # -- after each step of a process

    def after_step(self, process: ObservedProcess) -> None:
        core, mirror = process.replica.core, self.mirrors[process.node_id]
        self._configurations.in_force(process.node_id, core.log)
        view = mirror.view
        values = (
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
        if self._checked.get(process.node_id) == values:
            return  # most steps change none of these values
        self._checked[process.node_id] = values
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
                "committed <= end",
                f"{process.node_id}: committed_index is {core.committed_index}, but the log ends at "
                f"{view.end_index}",
            )
        # An installed base is committed on other nodes, so it counts as durable before it is durable on this
        # one.
        if core.log.durable_index > max(mirror.durable_index, view.base.index):
            raise Violation(
                "durable_index",
                f"{process.node_id} reports durable_index {core.log.durable_index}, but the disk has "
                f"{mirror.durable_index}",
            )
        for index in (core.log.durable_index, core.log.verified_index):
            if index <= view.end_index and not view.ends_at(index):
                raise Violation("batches are atomic", f"{process.node_id}: {index} is inside a batch")

    def _state_of(self, process: ObservedProcess, view: BatchLog) -> ObservedState:
        core = process.replica.core
        return ObservedState(
            core.term,
            core.hard_state.voted_for,
            core.role_epoch,
            core.committed_index,
            process.applier.applied_index,
            core.log.base.index,
            core.log.durable_index,
            _chain_at(view, core.committed_index),
            process.replica.admission.state.needs_image,
        )

    # -- effects of disk jobs

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
            raise Violation(
                "purge", f"{node_id} purges up to {base}, but only {mirror.durable_index} is durable"
            )
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
        """Register that the disk of a stopped node was replaced by an empty one."""
        self.mirrors[node_id].wipe(hard_state)
        # The vote of the node for itself is lost with its candidacy. The next life may vote for another
        # candidate only in a term that no node has seen; it is barred from all other terms.
        for votes in self._votes.values():
            if votes.get(node_id) == node_id:
                del votes[node_id]

    def replaced(self, node_id: str, hard_state: HardState) -> None:
        """Register that a stopped node was replaced by a new member. What the one before it stored and voted
        for does not count for the new one."""
        self.wiped(node_id, hard_state)
        self.mirrors[node_id].lost.clear()
        for votes in self._votes.values():
            votes.pop(node_id, None)

    def exchanged(self, node_id: str, inserted: NodeMirror) -> NodeMirror:
        """Register that the disk of a stopped node was exchanged for another one of its disks. Returns the
        mirror of the disk taken out, whose entries still count, as those of a lost disk."""
        removed = self.mirrors[node_id]
        if not removed.hard_state.is_barred:
            inserted.lost.append((removed.durable_index, removed.written))
        self.mirrors[node_id] = inserted
        self._checked.pop(node_id, None)
        return removed

    @property
    def lost_nodes(self) -> set[str]:
        """Nodes whose copies do not count: they lost their logs and have not rejoined yet."""
        return {m.node_id for m in self.mirrors.values() if m.hard_state.is_barred}

    def hard_state_starts(self, node_id: str, state: HardState) -> None:
        self.mirrors[node_id].hard_state_under_way = state

    def hard_state_saved(self, node_id: str, state: HardState) -> None:
        self.mirrors[node_id].hard_state = state

    def _end_lost(self, mirror: NodeMirror, promised: int, new: HardState) -> None:
        """Check rule 10 if the end of the log is lost: the node must know where its log ended. Its previous
        entries still count, as for a node that lost its disk."""
        self.counts["ends of logs lost"] += 1
        old = mirror.hard_state
        known = (old, mirror.hard_state_under_way or old)
        floor = (new.floor_term, new.floor_index)
        end = mirror.written.ending_at(promised)
        minimum = (end.term, promised) if end is not None else (-1, -1)
        maximum = (mirror.written.end_term, mirror.written.end_index)
        allowed = [replace(s, rejoining=True, floor_term=floor[0], floor_index=floor[1]) for s in known]
        if new not in allowed or floor < minimum or floor > max(maximum, (old.floor_term, old.floor_index)):
            raise Violation(
                "damage",
                f"the log of {mirror.node_id} ended between {minimum} and {maximum}, but it restarts "
                f"with {new}",
            )
        if not old.is_barred:
            mirror.lost.append((mirror.durable_index, BatchLog(mirror.written.batches, mirror.written.base)))
        mirror.hard_state = new

    def _forget_unheard(self, node_id: str, term: int) -> None:
        """Forget terms that this node led before they were durable. A single voter wins an election at once;
        if it crashes then, its vote and its entries were never stored, and nobody has heard of them."""
        for led in [led for led, leader in self.leaders.items() if leader == node_id and led > term]:
            del self.leaders[led]
            for place in [place for place in self._chains if place[1] == led]:
                del self._chains[place]

    def recovered(
        self,
        node_id: str,
        ends: list[tuple[int, int, int]],
        hard_state: HardState,
        base: Base = NO_BASE,
        *,
        is_damaged: bool = False,
    ) -> None:
        """Check the store of a node after a crash. `ends`: last index, term and chain of each recovered
        batch.

        With `is_damaged` the node may have lost the end of its log, if it knows where its log ended.
        """
        mirror = self.mirrors[node_id]
        if base not in (mirror.written.base, mirror.purging_to, mirror.resetting_to):
            raise Violation(
                "recovery",
                f"the log of {node_id} started after {mirror.written.base}; after recovery it starts "
                f"after {base}",
            )
        batches = []
        for last_index, term, chain in ends:
            batch = self._known.get((last_index, chain))
            if batch is None or batch.term != term:
                raise Violation(
                    "recovery",
                    f"{node_id} recovers entry {last_index} of term {term}, which was never written",
                )
            batches.append(batch)
        recovered_log = BatchLog(batches, base)
        promised = mirror.durable_index
        if base == mirror.resetting_to and base.index >= 0:
            promised = base.index
        if mirror.truncating_after is not None:
            promised = min(promised, mirror.truncating_after)
        was = mirror.hard_state_under_way or mirror.hard_state
        # A rejoining node may lose the end again, when its floor is already high enough.
        loses_again = hard_state.rejoining and recovered_log.end_index < promised
        if is_damaged and (loses_again or hard_state not in (mirror.hard_state, was)):
            self._end_lost(mirror, promised, hard_state)
            promised = min(promised, recovered_log.end_index)
        last = mirror.written.ending_at(promised)
        if promised > base.index and (last is None or not recovered_log.holds(last)):
            raise Violation(
                "recovery",
                f"{node_id} had made entry {promised} durable, but recovers only up to "
                f"{recovered_log.end_index}",
            )
        if hard_state not in (mirror.hard_state, mirror.hard_state_under_way):
            raise Violation(
                "recovery", f"{node_id} had stored {mirror.hard_state}, but recovers {hard_state}"
            )
        self._forget_unheard(node_id, hard_state.term)
        mirror.hard_state = mirror.hard_state_wanted = hard_state
        mirror.hard_state_under_way = None
        mirror.truncating_after = mirror.purging_to = mirror.resetting_to = None
        mirror.written = recovered_log
        mirror.durable_index = recovered_log.end_index
        mirror.view = BatchLog(batches, base)


def _chain_at(log: BatchLog, index: int) -> int | None:
    """Return the chain checksum at `index`, or None if the log starts after it or no batch ends at that
    index."""
    if index < 0 or index < log.base.index:
        return None
    if index == log.base.index:
        return log.base.chain_crc
    batch = log.ending_at(index)
    return None if batch is None else batch.chain_crc
