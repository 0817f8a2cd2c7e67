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
    TransferEnded,
)
from dledger.core.events import EntriesAppended, EntriesPushed, StreamDown, StreamUp
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
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
)
from dledger.core.progress import FollowerProgress, PushState
from dledger.core.quorum import committed_by, is_majority
from dledger.core.read_index import ReadIndexQueue
from dledger.core.values import OwnerFitness, TermRun
from dledger.errors import Code

_PROBES = (PushType.COMPARE, PushType.INSTALL_BASE)
NO_REQUEST = -1  # request_id of a transfer to a preferred leader


@dataclass(slots=True)
class LeadershipTransfer:
    """A leadership transfer in progress. Appends fail with LEADER_TRANSFERRING until it ends."""

    request_id: int
    to: str
    deadline_ms: int
    prompted: bool = False  # TakeLeadership has been sent


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
        self.next_preferred_check_ms = core.now_ms + core.timing.preferred_check_ms
        self.reads = ReadIndexQueue()
        self.handover: LeadershipTransfer | None = None
        self.majority_has_room = True  # including this node; without it, appends could not commit

    @property
    def transferring_to(self) -> str | None:
        return self.handover.to if self.handover else None

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
        handover, self.handover = self.handover, None
        if handover and handover.request_id != NO_REQUEST:
            if handover.prompted:
                core.await_successor(handover.request_id, handover.to, handover.deadline_ms)
            else:
                core.emit(TransferEnded(handover.request_id, Code.TAKE_LEADERSHIP_FAILED, reason))

    def on_event(self, event: EntriesAppended | StreamUp | StreamDown | EntriesPushed) -> None:
        match event:
            case EntriesAppended():
                self._appended(event)
            case EntriesPushed():
                self._pushed(event)
            case StreamUp():
                p = self.progress[event.peer]
                p.stream_up(event.stream_id, event.incarnation)
                p.last_contact_ms = self.core.now_ms
                self._probe(p, self.core.log.end_index)
            case StreamDown():
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
        log.append(runs, last)
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
        p = self.progress[event.peer]
        if not self.awaits_push(event.peer, event.stream_id, event.first_index):
            return  # belongs to a stream or pipeline that has ended
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
        p = self.progress[peer]
        return p.stream_id == stream_id and p.loading and p.next_index == first_index

    def awaits_probe(self, peer: str, message: Compare) -> bool:
        """Return True if this delayed probe is still current."""
        p = self.progress[peer]
        return (
            message.term == self.term
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
            able = 1 + sum(other.has_room for other in self.progress.values())
            self.majority_has_room = able >= self.core.membership.majority

    def _push_response(self, p: FollowerProgress, response: PushResponse) -> None:
        log = self.core.log
        if response.code is Code.SUCCESS:
            if response.index > log.end_index:
                return  # No follower can match beyond our end: ignore the response.
            if response.type is PushType.APPEND:
                if p.acknowledged(response.index, self.core.now_ms, counts=response.counts):
                    if response.index > self.core.committed_index:
                        self.advance_commit()
                    self._advance_handover()
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
        core.send(p.peer, InstallBase(self.term, core.node_id, p.stream_id, core.committed_index, base))

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
            self._prompt_successor()
            core.step_down("disk-stalled")
            return
        stall = self._commit_stall()
        if stall:
            self._prompt_successor()
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
        if self.handover and core.now_ms >= self.handover.deadline_ms:
            self._fail_handover(Code.TAKE_LEADERSHIP_FAILED, f"{self.handover.to} did not take over in time")
        if core.now_ms >= self.next_preferred_check_ms:
            self.next_preferred_check_ms = core.now_ms + core.timing.preferred_check_ms
            if core.may_lead and core.has_room:
                self._hand_over_to_preferred()
            else:
                self._hand_over_to_able_peer()

    def _commit_stall(self) -> str:
        """Return the reason why this leader has not committed within its limit (rule 14), or "" if it has."""
        core, log, bound_ms = self.core, self.core.log, self.core.stall_guard.bound_ms
        if self.noop_index is not None and core.committed_index == log.end_index:
            return ""
        since_ms = core.now_ms - bound_ms
        if self.commit_waits_since_ms > since_ms:
            return ""
        idle = [peer for peer in self.in_contact() if self.progress[peer].last_active_ms <= since_ms]
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
        if not self.noop_is_committed or self.handover:
            return False
        near = self.core.log.end_index - self.core.config.max_transfer_lag
        return any(p.awaits_new_term and p.stored_index >= near for p in self.progress.values())

    def in_contact(self) -> list[str]:
        """Peers that have responded within the minimum election time-out."""
        oldest = self.core.now_ms - self.core.timing.election_min_ms
        return [peer for peer, p in self.progress.items() if p.last_contact_ms > oldest]

    def _heartbeat(self) -> None:
        core = self.core
        self.round += 1
        self.next_heartbeat_ms = core.now_ms + core.timing.heartbeat_ms
        for peer in self.progress:
            core.send(peer, Heartbeat(self.term, core.node_id, self.round, core.committed_index))

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

    # -- handing over -------------------------------------------------------------------------------------

    def transfer(self, request_id: int, to: str | None) -> None:
        core = self.core
        target = to if to is not None else self._most_complete_peer()
        problem = self._why_not(target)
        if target == core.node_id:
            core.emit(TransferEnded(request_id, Code.SUCCESS, "already leads"))
        elif problem:
            core.emit(TransferEnded(request_id, *problem))
        else:
            assert target is not None
            self.handover = LeadershipTransfer(
                request_id, target, core.now_ms + core.timing.transfer_timeout_ms
            )
            self._advance_handover()

    def _why_not(self, target: str | None) -> tuple[Code, str] | None:
        """Return why leadership cannot go to this member now, or None."""
        core = self.core
        if self.handover:
            return Code.LEADER_TRANSFERRING, f"a transfer to {self.handover.to} is under way"
        if target is None:
            return Code.TAKE_LEADERSHIP_FAILED, "no other member is connected"
        if target not in core.membership.voters:
            return (
                Code.UNKNOWN_MEMBER,
                f"{target} is not a member; members: {', '.join(core.membership.voters)}",
            )
        if target == core.node_id:
            return None
        p = self.progress[target]
        if not p.counts or not p.has_room:
            return Code.ILLEGAL_MEMBER_STATE, f"{target} is rejoining, or its disk is full"
        if p.state is not PushState.APPEND or target not in self.in_contact():
            return Code.FALL_BEHIND_TOO_MUCH, f"{target} is not connected, or has not been compared yet"
        lag = core.log.end_index - p.match_index
        if lag > core.config.max_transfer_lag:
            return Code.FALL_BEHIND_TOO_MUCH, f"{target} is {lag} entries behind, more than max_transfer_lag"
        return None

    def _most_complete_peer(self) -> str | None:
        """Return the peer with the highest match index among those that can lead. Peers whose owner is fit
        take precedence."""
        contact = self.in_contact()
        able = [
            p
            for p in self.progress.values()
            if p.state is PushState.APPEND and p.peer in contact and p.counts and p.has_room
        ]
        if not able:
            return None
        preferred = self.core.config.preferred_leaders
        return max(able, key=lambda p: (p.owner_is_fit, p.match_index, p.peer in preferred)).peer

    def peer_with_least_backlog(self, mine: OwnerFitness | None) -> str | None:
        """Return the peer whose program has the least backlog, if that is less than ours or ours is unfit.

        Peers that have not reported their fitness are ignored. `mine` is the current fitness of this node's
        own program, which the core otherwise learns with the next tick.
        """
        mine = mine or OwnerFitness(0, True)
        able = [
            (p.owner.lag_bytes, -p.match_index, p.peer)
            for p in self.progress.values()
            if p.owner is not None
            and p.owner.fit
            and (p.owner.lag_bytes < mine.lag_bytes or not mine.fit)
            and self._why_not(p.peer) is None
        ]
        return min(able)[2] if able else None

    def _advance_handover(self) -> None:
        handover, core = self.handover, self.core
        if handover is None or handover.prompted:
            return
        if self.progress[handover.to].match_index == core.log.end_index:
            handover.prompted = True
            core.send(handover.to, TakeLeadership(self.term, core.node_id, core.log.end_index))

    def on_take_leadership_response(self, peer: str, response: TakeLeadershipResponse) -> None:
        handover = self.handover
        if handover and handover.to == peer and handover.prompted and response.code is not Code.SUCCESS:
            self._fail_handover(Code.TAKE_LEADERSHIP_FAILED, f"{peer} answered {response.code.name}")

    def _fail_handover(self, code: Code, message: str) -> None:
        handover, self.handover = self.handover, None
        assert handover is not None
        # Give a preferred peer that failed time to recover before the next attempt.
        self.next_preferred_check_ms = self.core.now_ms + 10 * self.core.timing.preferred_check_ms
        if handover.request_id != NO_REQUEST:
            self.core.emit(TransferEnded(handover.request_id, code, message))

    def _prompt_successor(self) -> None:
        """Send TakeLeadership to the most complete peer before this node steps down, so that no follower
        waits for its election timeout.
        """
        core, successor = self.core, self._most_complete_peer()
        if successor is not None:
            match_index = self.progress[successor].match_index
            core.send(successor, TakeLeadership(self.term, core.node_id, match_index))

    def _hand_over_to_able_peer(self) -> None:
        """Hand over from a damaged or full node to a peer that has disk space, if one is caught up (rules 9
        and 10).
        """
        peer = self._most_complete_peer()
        if peer is not None and self.noop_is_committed and self._why_not(peer) is None:
            self.transfer(NO_REQUEST, peer)

    def _hand_over_to_preferred(self) -> None:
        core = self.core
        preferred = core.config.preferred_leaders
        if not preferred or core.node_id in preferred or self.handover or not self.noop_is_committed:
            return
        for peer in preferred:
            p = self.progress.get(peer)
            if p is not None and p.owner_is_fit and self._why_not(peer) is None:
                self.transfer(NO_REQUEST, peer)
                return
