"""The Raft core of one node, as a pure state machine.

`RaftCore.step(event, now_ms)` returns the effects of one event, to be executed in order. The core touches
no clock, disk, network or random source: `now_ms` is monotonic milliseconds, and the caller supplies
`random_ms(low, high)`.

This module holds the node's own state, terms, roles, votes and timers. `leadership.py` holds the leader's
side and `following.py` the follower's. Rule numbers in comments refer to docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dledger.core.core_state import LONG_AGO_MS, CoreState
from dledger.core.effects import (
    ChangeEnded,
    Effect,
    MembershipChanged,
    MessageRefused,
    PersistHardState,
    ReadRefused,
    RoleChanged,
    TransferEnded,
    without_overtaken_state,
)
from dledger.core.election import Candidacy, Shortcut, compare_logs
from dledger.core.events import (
    ChangeRequest,
    CommitSettled,
    DirectorySeen,
    EntriesAppended,
    EntriesPushed,
    EntriesStored,
    Event,
    FitnessChanged,
    LeaderStreamLost,
    LogPurged,
    MessageReceived,
    ReadIndexRequest,
    StreamDown,
    StreamUp,
    Tick,
    TransferRequest,
    UidAssigned,
)
from dledger.core.following import Follower
from dledger.core.invariants import check_core
from dledger.core.leadership import Leadership
from dledger.core.log_view import LogView
from dledger.core.messages import (
    CLOCKED,
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    InstallBase,
    PositionRequest,
    PositionResponse,
    PushResponse,
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.core.rejoining import RejoinProcess
from dledger.core.term_allowance import TermAllowance
from dledger.core.values import CoreConfig, HardState, MembershipAt, Role, VoteResult
from dledger.errors import Code

#: Consecutive terms without a leader that are normal, for example after a split vote. Each further term
#: doubles the time-outs.
_USUAL_TERMS = 3
#: Limit of the doubling. A disk whose sync takes twice the longest time-out counts as stuck
#: (Timing.fsync_stall_ms).
_MOST_DOUBLINGS = 3


class RaftCore(CoreState):
    """One node of a Raft group, driven through `step`."""

    def __init__(
        self,
        config: CoreConfig,
        hard_state: HardState,
        log: LogView,
        committed_index: int,
        random_ms: Callable[[int, int], int],
    ) -> None:
        """Start from the checkpoint's committed_index, limited to the range of the log (rule 8)."""
        super().__init__(config, hard_state, log, committed_index, random_ms)
        self._election_timeout_ms = self.timing.election_max_ms
        self.term_allowance = TermAllowance()
        self._leaderless_terms = 0  # terms since this node last knew a leader
        self.leadership: Leadership | None = None
        self.following = Follower(self)
        self.rejoining = RejoinProcess(self)
        self._announced: tuple[Role, int, str | None] | None = None
        self._known_members = self.membership  # as of the last step
        self._announced_peers = self.peers  # the shell starts with these

    # -- queries ------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.leadership is not None

    def acknowledge(self) -> None:
        self.following.acknowledge(even_if_known=True)

    @property
    def peers(self) -> tuple[str, ...]:
        """Nodes that this node must be connected to. A rejoining node needs reports of the members of every
        configuration that may be in force; a leader also tells removed members so."""
        if self.leadership:
            return tuple(self.leadership.progress)
        known = self.log.memberships_from(min(self.committed_index, self.log.end_index))
        return tuple(dict.fromkeys(p for at in known for p in at.membership.others(self.node_id)))

    @property
    def transferring_to(self) -> str | None:
        return self.leadership.transferring_to if self.leadership else None

    @property
    def successor_prompted(self) -> bool:
        """Return True once TakeLeadership is sent. Appending more would leave the successor behind."""
        handover = self.leadership.handing_over.running if self.leadership else None
        return handover is not None and handover.prompted

    @property
    def barrier_index(self) -> int | None:
        """Index of the no-op with which this leader started its term; None if the node does not lead or has
        not appended it yet."""
        return self.leadership.noop_index if self.leadership else None

    # -- input --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Start the timers. Call once, before the first step.

        The first election timeout is short. This is harmless, because a pre-vote does not disturb a working
        leader.
        """
        self.now_ms = now_ms
        self.note_memberships()
        lowest = max(1, self.timing.election_min_ms // 10)
        self.election_deadline_ms = now_ms + self.random_ms(lowest, self.timing.election_min_ms // 2)
        self._announce("start")
        return self.take_effects()

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Process one event and return its effects. After a Fatal effect, every further step does nothing."""
        if self.stopped is not None:
            return []
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        match event:  # frequent events first
            case MessageReceived():
                self._receive(event)
            case EntriesStored():
                self._stored(event)
            case EntriesAppended() | EntriesPushed() | StreamUp() | StreamDown():
                # Late reports to a node that no longer leads belong to an earlier leadership.
                if self.leadership:
                    self.leadership.on_event(event)
            case CommitSettled():
                if self.leadership:
                    self.leadership.announce_commit()
            case Tick(fsync_began_ms):
                self.fsync_began_ms = fsync_began_ms
                self.rejoining.tick()
                self._tick()
            case FitnessChanged(may_lead, has_room, owner):
                self.may_lead, self.has_room, self.owner = may_lead, has_room, owner
            case LogPurged(base):
                self.log.purge(base)
                if self.leadership:
                    self.leadership.purged()
            case LeaderStreamLost():
                self._leader_stream_lost(event)
            case DirectorySeen(peer, number):
                self.rejoining.learn({self.key_of(peer): number})
            case UidAssigned(uid):
                self.rejoining.uid_assigned(uid)
            case ReadIndexRequest():
                if self.leadership:
                    self.leadership.read_index(event.request_id)
                else:
                    self.emit(ReadRefused(event.request_id, Code.NOT_LEADER))
            case TransferRequest():
                if self.leadership:
                    self.leadership.handing_over.transfer(event.request_id, event.to)
                else:
                    self.emit(TransferEnded(event.request_id, Code.NOT_LEADER, "this node does not lead"))
            case ChangeRequest():
                if self.leadership:
                    self.leadership.changes.request(event.request_id, event.change)
                else:
                    self.emit(ChangeEnded(event.request_id, Code.NOT_LEADER, "this node does not lead"))
        if self.membership is not self._known_members:
            self._members_changed()
        check_core(self)
        return self.take_effects()

    # -- messages -----------------------------------------------------------------------------------------

    def _receive(self, event: MessageReceived) -> None:
        peer, message = event.peer, event.message
        if peer == self.node_id:  # a peer that this node does not know may lead by a newer configuration
            return
        if (reason := self.term_allowance.why_refused(message, self.term, self.now_ms)) is not None:
            self.emit(MessageRefused(peer, message, reason))
            return
        if isinstance(message, CLOCKED):
            self.member_clocks.hear(peer, message, self.now_ms)
        match message:  # frequent messages first
            case PushResponse() | HeartbeatResponse():
                if isinstance(message, HeartbeatResponse):
                    self.features[peer] = message.features
                if not self._higher_term(message.term) and self.leadership:
                    self.leadership.on_response(peer, message)
            case Append() | Commit() | Compare() | Truncate() | Goodbye() | InstallBase():
                if message.leader_id == peer:
                    self.following.on_push(peer, message, event.chain_matches, event.memberships)
            case Heartbeat():
                self._heartbeat(peer, message)
            case VoteRequest():
                self._vote_request(peer, message)
            case VoteResponse():
                self._vote_response(peer, message)
            case PositionRequest():
                self.features[peer] = message.features
                self.rejoining.on_request(peer, message)
            case PositionResponse():
                if message.memberships:  # release 0.2 sends none
                    self.features.setdefault(peer, 1)
                self._higher_term(message.term)
                self.rejoining.on_response(peer, message)
            case TakeLeadership():
                self._on_take_leadership(peer, message)
            case TakeLeadershipResponse():
                if not self._higher_term(message.term) and self.leadership:
                    self.leadership.handing_over.on_response(peer, message)

    def _higher_term(self, term: int) -> bool:
        """Adopt a higher term found in any response (rule 5)."""
        if term <= self.term:
            return False
        self.adopt_term(term, None, "higher-term")
        return True

    def _heartbeat(self, peer: str, message: Heartbeat) -> None:
        accepted = message.leader_id == peer and self.on_leader_contact(peer, message.term)
        if self.stopped is None:
            self.send(
                peer,
                HeartbeatResponse(
                    self.term,
                    self.node_id,
                    message.round,
                    accepted,
                    counts=not self.hard_state.is_barred,
                    has_room=self.has_room,
                    owner=self.owner,
                    stored_all=self.log.durable_index == self.log.end_index,
                    image_index=self.image_index,
                ),
            )
            if accepted:
                self.announced_image = message.image_index
                self.following.learn_committed(message.committed_index)

    def on_leader_contact(self, leader_id: str, term: int) -> bool:
        """Process contact from a leader of `term`; return True if it is now the current leader."""
        if term < self.term:
            self.silence.returned(leader_id, self.now_ms)
            return False
        if term == self.term and self.role is Role.LEADER:
            self.fatal(
                Code.INCONSISTENT_LEADER, f"{leader_id} also leads term {term}: two leaders in one term"
            )
            return False
        if term == self.term and self.leader_id not in (None, leader_id):
            self.fatal(
                Code.INCONSISTENT_LEADER,
                f"{leader_id} and {self.leader_id} both claim to lead term {term}",
            )
            return False
        self._leaderless_terms = 0
        if term > self.term:
            self.adopt_term(term, leader_id, "leader-seen")
        elif self.leader_id is None or self.role is not Role.FOLLOWER:
            self._become_follower(leader_id, "leader-seen")
            # Writes may have stopped while no leader was known, and the stream may stay idle from here on.
            self.following.acknowledge()
        else:
            self.silence.note_pause(self.now_ms - self.last_leader_contact_ms, self.now_ms)
        self.last_leader_contact_ms = self.now_ms
        self.stickiness_dropped = False
        self.shortcut = None
        self.candidacy = None
        self.election_deadline_ms = self.now_ms + self._election_timeout_ms
        return True

    # -- votes --------------------------------------------------------------------------------------------

    def _has_live_leader(self) -> bool:
        """Leader stickiness: return True if the leader's silence is not suspicious yet."""
        if self.role is Role.LEADER:
            return True
        if self.leader_id is None or self.stickiness_dropped:
            return False
        return self.now_ms - self.last_leader_contact_ms < self.silence.bound_ms

    def _vote_request(self, peer: str, request: VoteRequest) -> None:
        if request.candidate_id != peer:
            return
        result = self._judge_vote(request)
        self.send(peer, VoteResponse(self.term, self.node_id, result, request.pre_vote, request.round))

    def _judge_vote(self, request: VoteRequest) -> VoteResult:
        """Decide a vote or pre-vote request (rules 3, 5 and 11). The logs are compared last."""
        if self._has_live_leader() and not request.transfer:
            # Rule 5: a vote request refused by stickiness leaves no trace, not even its term.
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if request.pre_vote:
            if request.term <= self.term:
                return VoteResult.REJECT_EXPIRED_VOTE_TERM
            if self.hard_state.rejoining or request.term <= self.hard_state.barred_term:
                return VoteResult.REJECT_NOT_READY
            result = compare_logs(request, self.log)
            if result is VoteResult.ACCEPT and self.shortcut:
                # Let the earlier candidate finish: two at the same time would split the vote.
                wait = self.random_ms(self.timing.shortcut_retry_min_ms, self.timing.shortcut_retry_max_ms)
                self.shortcut.next_ms = max(self.shortcut.next_ms, self.now_ms + wait)
            return result
        if request.term > self.term:
            self.adopt_term(request.term, None, "higher-term")
        if request.term < self.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if self.leader_id is not None:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if self.hard_state.is_barred:
            return VoteResult.REJECT_NOT_READY
        if self.hard_state.voted_for not in (None, request.candidate_id):
            return VoteResult.REJECT_ALREADY_VOTED
        result = compare_logs(request, self.log)
        if result is VoteResult.ACCEPT:
            self._persist(replace(self.hard_state, voted_for=request.candidate_id))
            self._reset_election_deadline()
            self.shortcut = None
        return result

    def _vote_response(self, peer: str, response: VoteResponse) -> None:
        if self._higher_term(response.term):
            return
        candidacy = self.standing if not response.pre_vote else self.candidacy
        if (
            candidacy is None
            or response.voter_id != peer
            or response.round != candidacy.round
            or response.pre_vote != candidacy.pre_vote
        ):
            return  # a response to an older round, or not to a round at all
        if response.result is VoteResult.ACCEPT and not response.pre_vote and response.term != self.term:
            return  # a vote counts in its own term only
        candidacy.count(peer, response.result)
        if candidacy.won:
            self._won(candidacy)
        elif candidacy.lost and candidacy is self.candidacy:
            self._lost(candidacy)

    def _won(self, candidacy: Candidacy) -> None:
        self.candidacy = None
        if candidacy.pre_vote:
            self.campaign(candidacy.cause, transfer=False)
        else:
            assert candidacy.term == self.term and self.hard_state.voted_for == self.node_id
            self._become_leader()

    def _lost(self, candidacy: Candidacy) -> None:
        """Retry after a pause.

        A majority has refused, so waiting for unreachable voters is pointless (rule 5), but an immediate
        retry would only be refused again.
        """
        self.candidacy = None
        if self.shortcut:
            low, high = self.timing.shortcut_retry_min_ms, self.timing.shortcut_retry_max_ms
            self.shortcut.next_ms = self.now_ms + self.random_ms(low, high)
        else:
            self.election_deadline_ms = self.now_ms + self._round_ms()

    def _round_ms(self) -> int:
        """Return how long a candidate waits for the responses of a round, and before it starts the next
        one."""
        least = self.timing.election_min_ms * self._patience
        return self.random_ms(max(1, least // 8), max(2, least // 2))

    @property
    def _patience(self) -> int:
        """Multiplier for election time-outs.

        Otherwise elections would interrupt each other forever if making a term or vote durable took as long
        as the election timeout of the other members.
        """
        return 1 << min(max(0, self._leaderless_terms - _USUAL_TERMS), _MOST_DOUBLINGS)

    def _start_pre_vote(self, cause: str) -> None:
        """Start a pre-vote, which changes no term. A follower on the shortcut stays FOLLOWER meanwhile."""
        self.vote_round += 1
        due_ms = self.now_ms + self._round_ms()
        self.candidacy = Candidacy(
            self.membership, True, False, self.next_term, self.vote_round, cause, due_ms
        )
        self._request_votes()

    def campaign(self, cause: str, *, transfer: bool) -> None:
        """Stand for election in a term higher than any this node has stored (rule 3)."""
        assert not self.hard_state.rejoining
        new = replace(self.hard_state, term=self.next_term, voted_for=self.node_id)
        assert new.term > self.hard_state.term and not new.is_barred
        self.shortcut = None
        self.campaigned_ms = self.now_ms
        self._leaderless_terms += 1
        self._leave_leadership(f"campaigning in term {new.term}")
        self._persist(new)
        self.log.verified_index = self.committed_index
        self.following.forget_stream()
        self._set_role(Role.CANDIDATE, None, cause)
        self.vote_round += 1
        self.candidacy = Candidacy(
            self.membership, False, transfer, new.term, self.vote_round, cause, self.now_ms + self._round_ms()
        )
        self.standing = self.candidacy
        self._request_votes()

    def _request_votes(self) -> None:
        candidacy = self.candidacy
        assert candidacy is not None
        candidacy.count(self.node_id, VoteResult.ACCEPT)
        request = VoteRequest(
            candidacy.term,
            self.node_id,
            self.log.end_index,
            self.log.end_term,
            candidacy.pre_vote,
            candidacy.transfer,
            candidacy.round,
        )
        for peer in self.membership.electors:
            if peer != self.node_id:
                self.send(peer, request)
        if candidacy.won:  # a cluster of one
            self._won(candidacy)

    def _on_take_leadership(self, peer: str, message: TakeLeadership) -> None:
        if self._higher_term(message.term):
            pass  # The leader of a newer term pushes first and then repeats the request.
        code = Code.SUCCESS
        if message.term < self.term:
            code = Code.EXPIRED_TERM
        elif self.role is not Role.FOLLOWER or self.leader_id != peer:
            code = Code.NOT_FOLLOWER
        elif self.log.end_index < message.take_leadership_index:
            code = Code.FALL_BEHIND_TOO_MUCH
        elif not self.may_campaign or not self.stall_guard.may_succeed(self.now_ms):
            code = Code.ILLEGAL_MEMBER_STATE
        self.send(peer, TakeLeadershipResponse(self.term, self.node_id, code))
        if code is Code.SUCCESS:
            self.campaign("transfer", transfer=True)

    # -- time ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.successor_awaited and self.now_ms >= self.successor_awaited.due_ms:
            self.emit(self.successor_awaited.overdue())
            self.successor_awaited = None
        if self.leadership:
            self.leadership.tick()
        elif not self.may_campaign:
            self.shortcut = None
            self.candidacy = self.standing = None
            if self.leader_id is not None and self.now_ms >= self.election_deadline_ms:
                # A member that was removed while it was away would otherwise refer to this leader forever.
                self._set_role(self.role, None, "timeout")
        elif self.shortcut:
            self._tick_shortcut(self.shortcut)
        elif self.candidacy:
            if self.now_ms >= self.candidacy.deadline_ms:
                self._start_pre_vote(self.candidacy.cause)
        elif self.now_ms >= self.election_deadline_ms and self.stall_guard.may_stand(self.now_ms):
            self._set_role(Role.CANDIDATE, None, "timeout")
            self._start_pre_vote("timeout")
        elif (due_ms := self.silence_due_ms) is not None and self.now_ms >= due_ms:
            # If this node stood still, the leader's messages may be waiting: process them first.
            longest = self.timing.shortcut_max_wait_ms
            self._start_shortcut("leader-silent", self.random_ms(longest // 2, longest))

    def _start_shortcut(self, cause: str, wait_ms: int) -> None:
        assert self.leader_id is not None
        self.stickiness_dropped = True
        self.shortcut = Shortcut(self.leader_id, self.now_ms + wait_ms, cause)

    def _leader_stream_lost(self, event: LeaderStreamLost) -> None:
        """Start an early pre-vote: the leader process has probably died (rule 5). Stay FOLLOWER until
        elected.
        """
        if self.role is not Role.FOLLOWER or event.leader_id != self.leader_id or self.shortcut:
            return
        if not self.following.is_current_stream(event.stream_id):
            return  # an older stream, or one that ended with GOODBYE
        self._start_shortcut("stream-lost", self.random_ms(0, self.timing.shortcut_max_wait_ms))

    def _tick_shortcut(self, shortcut: Shortcut) -> None:
        if self.now_ms < shortcut.next_ms:
            return
        if shortcut.attempts > self.timing.shortcut_retries:
            self.shortcut = None  # fall back to the normal time-out, which kept running
            self.candidacy = None
            return
        shortcut.attempts += 1
        high = self.timing.shortcut_retry_max_ms
        shortcut.next_ms = self.now_ms + high  # also limits the wait for unreachable voters
        self._start_pre_vote(shortcut.cause)

    def _reset_election_deadline(self) -> None:
        """Choose a new random timeout. Each contact from the current leader restarts the same timeout."""
        low, high = self.timing.election_min_ms, self.timing.election_max_ms
        self._election_timeout_ms = self.random_ms(low, high) * self._patience
        self.election_deadline_ms = self.now_ms + self._election_timeout_ms

    # -- roles --------------------------------------------------------------------------------------------

    def adopt_term(self, term: int, leader_id: str | None, cause: str) -> None:
        """Follow in a higher term. Drop the vote and the verified prefix of the old leader's log."""
        assert term > self.term
        self.term_allowance.spend(term - self.term, self.now_ms)
        self._leave_leadership(f"term {term} has started")
        self._persist(replace(self.hard_state, term=term, voted_for=None))
        self.candidacy = None
        self.shortcut = None
        self._leaderless_terms += leader_id is None
        self.log.verified_index = self.committed_index
        self.following.forget_stream()
        self._become_follower(leader_id, cause)

    def _become_follower(self, leader_id: str | None, cause: str, detail: str = "") -> None:
        self._leave_leadership("no longer leader")
        self._reset_election_deadline()
        self._set_role(Role.FOLLOWER, leader_id, cause, detail)

    def step_down(self, cause: str, detail: str = "") -> None:
        """Give up leadership in the current term. Only a higher term can regain it."""
        assert self.role is Role.LEADER
        self._become_follower(None, cause, detail)

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE and self.leadership is None
        self.log.verified_index = self.log.end_index
        self._leaderless_terms = 0
        self.leadership = Leadership(self)
        if {*self.peers} != {*self._announced_peers}:
            # A follower keeps its links to members that have left. Such a link would open its push stream
            # now, and not once more if the member is added again.
            self.announce_peers()
        self._set_role(Role.LEADER, self.node_id, "won")
        self.leadership.start_leading()

    def _leave_leadership(self, reason: str) -> None:
        if self.leadership:
            self.leadership.resign(reason)
            self.leadership = None
            self.log.verified_index = min(self.committed_index, self.log.end_index)

    def _set_role(self, role: Role, leader_id: str | None, cause: str, detail: str = "") -> None:
        if role is not self.role:
            self.role = role
            self.role_epoch += 1
        if role is not Role.CANDIDATE:
            self.standing = None
        if self.leader_id not in (None, leader_id, self.node_id):
            self.silence.deposed(self.leader_id, self.last_leader_contact_ms)
        self.leader_id = leader_id
        self.stickiness_dropped = False
        if leader_id is None:
            self.last_leader_contact_ms = LONG_AGO_MS
        self._announce(cause, detail)

    def _announce(self, cause: str, detail: str = "") -> None:
        state = (self.role, self.term, self.leader_id)
        if state != self._announced:
            self._announced = state
            self.emit(RoleChanged(self.role, self.term, self.role_epoch, self.leader_id, cause, detail))
        if self.leader_id is not None and self.successor_awaited:
            self.emit(self.successor_awaited.elected(self.leader_id, self.term))
            self.successor_awaited = None

    def change_hard_state(self, hard_state: HardState) -> None:
        """Persist the state after `RejoinProcess` has changed it. Keeps the vote."""
        assert (hard_state.term, hard_state.voted_for) == (self.term, self.hard_state.voted_for)
        self._persist(hard_state)

    def _persist(self, hard_state: HardState) -> None:
        old = self.hard_state
        assert hard_state.term >= old.term and hard_state.incarnation == old.incarnation
        if hard_state.term == old.term:
            assert old.voted_for in (None, hard_state.voted_for), "a vote is never changed within a term"
        if hard_state != old:
            self.hard_state = hard_state
            self._effects = without_overtaken_state(self._effects)
            self.emit(PersistHardState(hard_state))

    # -- log ----------------------------------------------------------------------------------------------

    def _members_changed(self) -> None:
        """Process another configuration in force, after an append or a truncation."""
        self._known_members = self.membership
        if self.leadership:
            self.leadership.members_changed()
        self.announce_peers()

    def announce_peers(self) -> None:
        """Tell the shell which members this node must be connected to."""
        self._announced_peers = self.peers
        self.emit(MembershipChanged(self.log.memberships[-1], self._announced_peers))

    def note_memberships(self, new: MembershipAt | None = None) -> None:
        """Record the configurations of the log, and `new` if the log is about to be reset."""
        known = self.log.memberships
        if new is not None and known[-1] != new:
            known = (*(at for at in known if at.index < new.index), new)
        if not self.hard_state.memberships and known[-1].index == -1:
            return  # still the founders, who are in the configuration of the node
        self._persist(replace(self.hard_state, memberships=known))

    def _stored(self, event: EntriesStored) -> None:
        if not self.log.stored(event.last_index, event.term, event.generation):
            return
        if self.leadership:
            self.leadership.advance_commit()
        else:
            self.following.acknowledge()
