"""The leader's side of replication: pushes the log, commits, confirms reads and hands over leadership
(docs/guarantees.md rules 4, 5 and 7).

A Leadership object exists for one term of one node, so no state of an earlier term survives.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.core_state import CoreState
from dledger.core.effects import (
    AppendNoop,
    PushAppended,
    PushRange,
    ReadReady,
    ReadRefused,
)
from dledger.core.events import EntriesAppended, EntriesPushed, StreamDown, StreamUp
from dledger.core.handing_over import HandingOver
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    InstallBase,
    PushResponse,
    PushType,
    Truncate,
)
from dledger.core.progress import FollowerProgress, PushState
from dledger.core.quorum import committed_by, is_majority
from dledger.core.read_index import ReadIndexQueue
from dledger.core.reconfiguring import Reconfiguration
from dledger.core.values import TermRun
from dledger.errors import Code

_PROBES = (PushType.COMPARE, PushType.INSTALL_BASE)


@dataclass(slots=True)
class Departure:
    index: int  # of the configuration entry without the member
    deadline_ms: int


class Leadership:
    def __init__(self, core: CoreState) -> None:
        self.core = core
        self.term = core.term
        self.noop_index: int | None = None
        # Time of the last commit, or of the first uncommitted append after it. Unused while nothing is
        # uncommitted.
        self.commit_waits_since_ms = core.now_ms
        self.progress = {p: FollowerProgress(p, core.now_ms) for p in core.membership.others(core.node_id)}
        self.round = 0
        self.next_heartbeat_ms = core.now_ms
        self.reads = ReadIndexQueue()
        self.handing_over = HandingOver(core, self)
        self.majority_has_room = True  # including this node; without it, appends could not commit
        self.changes = Reconfiguration(core, self)
        # Members that the configuration no longer has. They receive the log until they know.
        self.departing: dict[str, Departure] = {}

    @property
    def transferring_to(self) -> str | None:
        handover = self.handing_over.running
        return handover.to if handover else None

    def start_leading(self) -> None:
        """Append a no-op immediately (rule 4), so that entries of older terms commit even on an idle
        cluster.
        """
        self.core.emit(AppendNoop(self.term))
        self._heartbeat()

    def resign(self, reason: str) -> None:
        core = self.core
        for p in self.progress.values():
            if p.state is not PushState.DISCONNECTED:
                core.send(p.peer, Goodbye(self.term, core.node_id, p.stream_id, core.committed_index, reason))
        for request_id in self.reads.drain():
            core.emit(ReadRefused(request_id, Code.NOT_LEADER))
        self.changes.resigned(reason)
        self.handing_over.resign(reason)

    def on_event(self, event: EntriesAppended | StreamUp | StreamDown | EntriesPushed) -> None:
        match event:
            case EntriesAppended():
                self._appended(event)
            case EntriesPushed():
                self._pushed(event)
            case StreamUp() if event.peer in self.progress:
                p = self.progress[event.peer]
                p.stream_up(event.stream_id, event.incarnation)
                p.last_contact_ms = self.core.now_ms
                self._probe(p, self.core.log.end_index)
            case StreamDown() if event.peer in self.progress:
                p = self.progress[event.peer]
                if event.stream_id == p.stream_id:
                    p.stream_down()

    # -- appending and pushing ----------------------------------------------------------------------------

    def _appended(self, event: EntriesAppended) -> None:
        core, log = self.core, self.core.log
        first, last, size = event.first_index, event.last_index, event.byte_size
        assert event.term == self.term and first == log.end_index + 1, (event, log)
        prev_term = log.end_term
        runs = (TermRun(self.term, first),)
        log.append(runs, last, event.memberships)
        if event.memberships:
            core.note_memberships()
            self.changes.appended()
        log.verified_index = last
        if core.committed_index == first - 1 and self.noop_index is not None:
            self.commit_waits_since_ms = core.now_ms
        if self.noop_index is None:
            assert first == last, "the first entry of a term is its no-op, alone"
            self.noop_index = first
        for p in self.progress.values():
            if (
                not p.accepts_direct_push(first, core.config.max_inflight_bytes)
                or size > core.config.max_push_bytes
            ):
                self._push(p)
                continue
            # The steady state: a follower that has everything before this range receives the appended batch
            # unchanged.
            committed = p.committed_sent = core.committed_index
            p.pushed(last, size, core.now_ms)
            message = Append(
                self.term, core.node_id, p.stream_id, committed, first - 1, prev_term, first, last, runs
            )
            core.emit(PushAppended(p.peer, message))

    def _pushed(self, event: EntriesPushed) -> None:
        if not self.awaits_push(event.peer, event.stream_id, event.first_index):
            return  # belongs to a stream or pipeline that has ended
        p = self.progress[event.peer]
        p.loading = False
        if event.last_index < event.first_index:
            self._probe_later(p, min(p.next_index - 1, self.core.log.end_index))
            return
        assert event.first_index == p.next_index
        p.pushed(event.last_index, event.byte_size, self.core.now_ms)
        p.committed_sent = self.core.committed_index
        self._push(p)

    def awaits_push(self, peer: str, stream_id: int, first_index: int) -> bool:
        """Return True if the push starting at first_index is still needed. The stream or the next index may
        have changed while the range was read.
        """
        p = self.progress.get(peer)
        return p is not None and p.stream_id == stream_id and p.loading and p.next_index == first_index

    def awaits_probe(self, peer: str, message: Compare) -> bool:
        """Return True if this delayed probe is still current."""
        p = self.progress.get(peer)
        return (
            p is not None
            and message.term == self.term
            and p.stream_id == message.stream_id
            and p.is_answer_to_probe(message.index)
            and p.probe_due_ms is None
            and message.index >= self.core.log.base.index
        )

    def _push(self, p: FollowerProgress) -> None:
        core, log = self.core, self.core.log
        if p.state is not PushState.APPEND or p.loading or p.next_index > log.end_index:
            return
        if p.inflight_bytes >= core.config.max_inflight_bytes:
            return
        p.loading = True
        core.emit(
            PushRange(
                p.peer,
                p.stream_id,
                p.next_index,
                log.end_index,
                core.config.max_push_bytes,
                log.term_at(p.next_index - 1),
            )
        )

    def _probe(self, p: FollowerProgress, index: int) -> None:
        core, log = self.core, self.core.log
        assert log.base.index <= index <= log.end_index, (index, log)
        p.probe_again()
        p.probe_index = index
        term = log.term_at(index)
        core.send(p.peer, Compare(self.term, core.node_id, p.stream_id, core.committed_index, index, term))

    def _probe_later(self, p: FollowerProgress, index: int, wait_ms: int | None = None) -> None:
        """Probe again after a wait. The last attempt made no progress, and an immediate retry could loop
        forever.
        """
        p.probe_again()
        p.probe_index = index
        wait_ms = self.core.timing.heartbeat_ms if wait_ms is None else wait_ms
        p.probe_due_ms = self.core.now_ms + wait_ms

    def on_response(self, peer: str, response: HeartbeatResponse | PushResponse) -> None:
        p = self.progress.get(peer)
        if p is None or response.node_id != peer or response.term != self.term:
            return
        p.counts, p.owner = response.counts, response.owner
        if not response.counts:
            p.match_index = -1  # may be from a previous incarnation; do not count it
        if not isinstance(response, PushResponse):
            p.image_index = response.image_index
            self._note_room(p, response.has_room)
            # Rule 14: conditions that keep this peer from storing more and that another leader would not
            # change.
            busy = not (response.stored_all and response.counts and response.has_room)
            if busy or p.peer not in self.in_contact():
                p.last_active_ms = self.core.now_ms
            if response.success and response.counts:
                p.last_contact_ms = self.core.now_ms
                p.acked_round = max(p.acked_round, response.round)
                self._confirm_reads()
            return
        if response.stream_id != p.stream_id or p.state is PushState.DISCONNECTED:
            return  # rule 6: the response belongs to an older stream
        if response.counts:
            p.last_contact_ms = self.core.now_ms
        p.awaits_new_term = response.awaits_new_term
        self._note_room(p, response.has_room)
        self._push_response(p, response)

    def _note_room(self, p: FollowerProgress, has_room: bool) -> None:
        if p.has_room is not has_room:
            p.has_room = has_room
            self._count_room()

    def _count_room(self) -> None:
        able = {peer for peer, p in self.progress.items() if p.has_room}
        self.majority_has_room = is_majority(self.core.membership, {self.core.node_id, *able})

    def _push_response(self, p: FollowerProgress, response: PushResponse) -> None:
        log = self.core.log
        if response.code is Code.SUCCESS:
            if response.index > log.end_index:
                return  # No follower can match beyond our end: ignore the response.
            if response.type is PushType.APPEND:
                if p.acknowledged(response.index, self.core.now_ms, counts=response.counts):
                    if response.index > self.core.committed_index:
                        self.advance_commit()
                    self.handing_over.advance()
                self._push(p)
            elif response.type in _PROBES and p.is_answer_to_probe(response.index):
                self._matched(p, response)
        elif response.type in (PushType.COMPARE, PushType.APPEND):
            expected = PushState.COMPARE if response.type is PushType.COMPARE else PushState.APPEND
            if p.state is expected:
                self._back_up(p, response)

    def _matched(self, p: FollowerProgress, response: PushResponse) -> None:
        core, log = self.core, self.core.log
        p.matched(response.index)
        cut = response.index + 1
        if response.ledger_end_index >= cut and cut <= log.end_index:
            # The follower's log continues past the match. It deletes only entries whose term differs from
            # ours (rule 6).
            core.send(
                p.peer,
                Truncate(self.term, core.node_id, p.stream_id, core.committed_index, cut, log.term_at(cut)),
            )
        self._push(p)
        if p.next_index > log.end_index:
            self._send_commit(p)

    def _back_up(self, p: FollowerProgress, response: PushResponse) -> None:
        """Move the probe back one step per conflicting term (rule 7), always below the index that failed."""
        log = self.core.log
        failed = min(response.index, log.end_index + 1)
        if response.code is Code.DISK_FULL:
            # A full disk stays full for a while: do not resend immediately.
            self._note_room(p, False)
            p.last_active_ms = self.core.now_ms
            probe = max(log.base.index, min(response.index, log.end_index))
            self._probe_later(p, probe, self.core.timing.election_min_ms)
            return
        if response.code is not Code.INCONSISTENT_STATE:
            probe = min(p.next_index, log.end_index + 1) - 1 if response.type is PushType.APPEND else failed
            if response.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN:
                probe = response.ledger_begin_index - 1
            elif response.conflict_index >= 0:
                # Push again from before the damaged range. The follower then receives the correct entries. If
                # no other log has some of them, it learns where to truncate.
                probe = min(probe, response.conflict_index - 1)
            self._probe_later(p, max(log.base.index, min(probe, log.end_index)))
            return
        probe = response.conflict_index - 1
        if response.conflict_term >= 0:
            last = log.last_index_of_term(response.conflict_term)
            if last is not None and last >= response.conflict_index:
                probe = last
        probe = max(log.base.index, min(probe, failed - 1))
        if probe < failed:
            self._probe(p, probe)
        else:  # our log starts after the follower's end: the follower must start at our base
            self._install_base(p)

    def _install_base(self, p: FollowerProgress) -> None:
        core, base = self.core, self.core.log.base
        p.probe_again()
        p.probe_index = base.index
        membership = core.log.memberships_from(base.index)[0]
        core.send(
            p.peer, InstallBase(self.term, core.node_id, p.stream_id, core.committed_index, base, membership)
        )

    def purged(self) -> None:
        """Reposition followers that need purged entries to the new base."""
        base = self.core.log.base
        for p in self.progress.values():
            needs = p.next_index if p.state is PushState.APPEND else p.probe_index + 1
            if p.state is not PushState.DISCONNECTED and needs <= base.index:
                self._install_base(p)

    # -- committing ---------------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        core, log = self.core, self.core.log
        match = {peer: p.match_index for peer, p in self.progress.items()}
        match[core.node_id] = log.durable_index
        index = committed_by(core.membership, match)
        # Rule 4: only entries of our own term are committed by counting (Raft paper 5.4.2, Figure 8).
        if index > core.committed_index and log.term_at(index) == self.term:
            core.commit_to(index)
            core.stall_guard.committed_as_leader()
            self.commit_waits_since_ms = core.now_ms
            if self.reads.before_noop and self.noop_is_committed:
                for request_id in self.reads.before_noop:
                    self.reads.add(request_id, core.committed_index, self.round)
                self.reads.before_noop.clear()
                self._confirm_reads()
            self.changes.committed()

    @property
    def noop_is_committed(self) -> bool:
        return self.noop_index is not None and self.core.committed_index >= self.noop_index

    def announce_commit(self) -> None:
        """Immediately send the committed index to followers that have no entries left to receive."""
        for p in self.progress.values():
            if p.state is PushState.APPEND and p.next_index > self.core.log.end_index:
                self._send_commit(p)

    def _send_commit(self, p: FollowerProgress) -> None:
        core = self.core
        if p.committed_sent < core.committed_index:
            p.committed_sent = core.committed_index
            core.send(p.peer, Commit(self.term, core.node_id, p.stream_id, core.committed_index))

    # -- heartbeats and reads -----------------------------------------------------------------------------

    def tick(self) -> None:
        core = self.core
        if not self._has_quorum():
            core.step_down("quorum-lost")
            return
        if core.disk_is_stuck and self._others_disks_work():
            self.handing_over.prompt_successor()
            core.step_down("disk-stalled")
            return
        stall = self._commit_stall()
        if stall:
            self.handing_over.prompt_successor()
            core.step_down("commit-stalled", stall)
            core.stall_guard.stepped_down(core.now_ms)
            return
        if self._peer_awaits_term():
            core.campaign("rejoined-peer", transfer=True)
            return
        if core.now_ms >= self.next_heartbeat_ms:
            self._heartbeat()
        for p in self.progress.values():
            if p.probe_due_ms is not None and core.now_ms >= p.probe_due_ms:
                self._probe(p, p.probe_index)
        if self.departing:
            self._dismiss_departed()
        self.handing_over.tick()

    def _commit_stall(self) -> str:
        """Return the reason why this leader has not committed within its limit (rule 14), or "" if it has."""
        core, log, bound_ms = self.core, self.core.log, self.core.stall_guard.bound_ms
        if self.noop_index is not None and core.committed_index == log.end_index:
            return ""
        since_ms = core.now_ms - bound_ms
        if self.commit_waits_since_ms > since_ms:
            return ""
        voters = core.membership.electors
        contact = [peer for peer in self.in_contact() if peer in voters]
        idle = [peer for peer in contact if self.progress[peer].last_active_ms <= since_ms]
        stored_here = log.durable_index > core.committed_index or log.durable_index == log.end_index
        if not is_majority(core.membership, {*idle, *([core.node_id] if stored_here else [])}):
            return ""
        return (
            f"nothing after entry {core.committed_index} was committed for {bound_ms} ms;"
            f" {', '.join(idle)} answered heartbeats, had nothing to store and acknowledged nothing new"
        )

    def _has_quorum(self) -> bool:
        """Check quorum: return True if a majority responded within the minimum election time-out."""
        return is_majority(self.core.membership, {self.core.node_id, *self.in_contact()})

    def _others_disks_work(self) -> bool:
        """Rule 9: return True if a majority without this node acknowledged data pushed well after our fsync
        started.

        If all disks are slow, or if all members share one disk, a change of leader would not help. A shared
        disk might also complete the writes in flight of the other members and then hang for all of them.
        """
        core = self.core
        lately = core.now_ms - core.timing.fsync_stall_ms // 2
        assert core.fsync_began_ms is not None and core.fsync_began_ms <= lately
        fast = {peer for peer, p in self.progress.items() if p.counts and p.acked_pushed_ms >= lately}
        return is_majority(core.membership, fast)

    def _peer_awaits_term(self) -> bool:
        """Rule 11: return True if a rejoined node that holds our log needs a new term before it counts.

        Wait until the no-op of this term is committed, so that the leader does not start several terms in a
        row.
        """
        if not self.noop_is_committed or self.handing_over.running:
            return False
        near = self.core.log.end_index - self.core.config.max_transfer_lag
        membership = self.core.membership  # a learner counts once it is promoted
        return self.core.node_id in membership.electors and any(
            p.awaits_new_term and p.stored_index >= near
            for p in self.progress.values()
            if p.peer in membership.nodes
        )

    # -- members ------------------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Follow the configuration in force: add new members, and let members go that it no longer has."""
        core, log = self.core, self.core.log
        nodes = core.membership.others(core.node_id)
        for peer in nodes:
            self.departing.pop(peer, None)
            if peer not in self.progress:
                self.progress[peer] = FollowerProgress(peer, core.now_ms)
        for peer in self.progress:
            if peer not in nodes and peer not in self.departing:
                deadline_ms = core.now_ms + core.timing.election_max_ms
                self.departing[peer] = Departure(log.membership_index, deadline_ms)
        self._count_room()
        self.handing_over.members_changed()

    def _dismiss_departed(self) -> None:
        """Forget members that know that they are none any more, or do not respond."""
        core = self.core
        for peer, departure in list(self.departing.items()):
            if core.committed_index < departure.index:
                continue
            p = self.progress[peer]
            if p.stored_index < departure.index and core.now_ms < departure.deadline_ms:
                continue
            if p.state is not PushState.DISCONNECTED:
                self._send_commit(p)
                text = f"{peer} is no longer a member"
                core.send(peer, Goodbye(self.term, core.node_id, p.stream_id, core.committed_index, text))
            del self.departing[peer], self.progress[peer]
            core.announce_peers()

    def live(self) -> set[str]:
        """Members that count and have responded lately, including this node."""
        return {self.core.node_id, *(peer for peer in self.in_contact() if self.progress[peer].counts)}

    def why_not_ready(self, node_id: str) -> str:
        """Return why a learner is not ready to vote; "" if it is."""
        p = self.progress[node_id]
        if node_id not in self.in_contact():
            return f"{node_id} is not in contact"
        if not p.counts:
            return f"{node_id} is rejoining"
        if not self.has_image(node_id):
            return f"{node_id} has no state image yet"
        if not p.keeps_pace(self.core.log.end_index, self.core.now_ms - self.core.timing.election_min_ms):
            return f"{node_id} is {self.core.log.end_index - p.match_index} entries behind"
        return ""

    def has_image(self, node_id: str) -> bool:
        """Return True if a member has an image of the entries that may be purged, if there are any. Without
        one, its log may be no copy of them: it may start at the base of another leader, which has executed a
        PURGE before this one."""
        core = self.core
        purged = max(core.log.base.index, core.purged_index)
        image = core.image_index if node_id == core.node_id else self.progress[node_id].image_index
        return purged < 0 or image > purged

    def retire(self) -> None:
        """Step down, because this node is no longer a voter."""
        self.announce_commit()
        self.handing_over.prompt_successor()
        self.core.step_down("removed")

    def in_contact(self) -> list[str]:
        """Peers that have responded within the minimum election time-out."""
        oldest = self.core.now_ms - self.core.timing.election_min_ms
        return [peer for peer, p in self.progress.items() if p.last_contact_ms > oldest]

    def _heartbeat(self) -> None:
        core = self.core
        self.round += 1
        self.next_heartbeat_ms = core.now_ms + core.timing.heartbeat_ms
        for peer in self.progress:
            beat = Heartbeat(self.term, core.node_id, self.round, core.committed_index)
            beat.image_index = core.image_index
            core.send(peer, beat)

    def read_index(self, request_id: int) -> None:
        if not self.noop_is_committed:
            self.reads.before_noop.append(request_id)
            return
        self.reads.add(request_id, self.core.committed_index, self.round)
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        core = self.core
        if not self.reads.waiting:
            return
        if self.reads.needs_round(self.round):
            self._heartbeat()
        rounds = {peer: p.acked_round for peer, p in self.progress.items()}
        rounds[core.node_id] = self.round
        for read in self.reads.confirmed(committed_by(core.membership, rounds)):
            core.emit(ReadReady(read.request_id, read.read_index))
        if self.reads.needs_round(self.round):
            self._heartbeat()
