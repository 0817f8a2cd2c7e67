"""Classic mistakes of Raft implementations, one function each: it changes the classes of this process.

The product has no switches for them: they are planted from outside, and undone by the `monkeypatch` that they
are planted with. What each would do in production is in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dledger.core import deadlines
from dledger.core import leadership as leadership_module
from dledger.core import raft as raft_module
from dledger.core.cluster_clock import ClusterClock
from dledger.core.effects import PersistHardState, ReadReady, TruncateLog
from dledger.core.election import compare_logs
from dledger.core.following import Follower
from dledger.core.leadership import Leadership
from dledger.core.log_view import LogView
from dledger.core.member_clocks import ClockBounds, MemberClocks
from dledger.core.messages import (
    Append,
    HeartbeatResponse,
    PositionResponse,
    PushResponse,
    Truncate,
    VoteRequest,
)
from dledger.core.progress import FollowerProgress
from dledger.core.quorum import committed_by
from dledger.core.raft import RaftCore
from dledger.core.read_index import ReadIndexQueue, WaitingRead
from dledger.core.rejoining import RejoinProcess
from dledger.core.sessions import SessionTable
from dledger.core.values import HardState, Membership, Role, VoteResult
from dledger.errors import Code, DLedgerError, NotLeader, SessionExpired
from dledger.node import ticker
from dledger.node.disk.disk_worker import DiskJobs, OtherJob
from dledger.replica import clock_keeper
from dledger.replica.admission import AppendAdmission, ExpiryUnconfirmed
from dledger.replica.log_state import LogState
from dledger.replica.replica import Replica
from dledger.replica.retainer import Retainer
from dledger.replica.shell import AppendOutcome, TruncateJob
from dledger.store.format.batch import Batch
from dledger.store.format.internal import Internal, Purge

Plant = Callable[[pytest.MonkeyPatch], None]


def _drop_persist(patch: pytest.MonkeyPatch, is_dropped: Callable[[HardState, HardState], bool]) -> None:
    """Hard state changes in memory, but is not always sent to the disk."""
    original = RaftCore._persist

    def persist(core: RaftCore, hard_state: HardState) -> None:
        old = core.hard_state
        count = len(core._effects)
        original(core, hard_state)
        if is_dropped(old, hard_state):
            core._effects[count:] = [e for e in core._effects[count:] if not isinstance(e, PersistHardState)]

    patch.setattr(RaftCore, "_persist", persist)


def vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """A voter that restarts votes again in the same term: two leaders."""
    _drop_persist(patch, lambda old, new: old.term == new.term)


def term_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """A node that restarts comes back in an old term and accepts a deposed leader."""
    _drop_persist(patch, lambda old, new: new.voted_for is None)


def message_before_hard_state(patch: pytest.MonkeyPatch) -> None:
    """A vote leaves before it is durable."""

    def send(replica: Replica, peer: str, message: Any, payload: bytes | None) -> None:
        replica._outbox._saved = replica._outbox._submitted
        original(replica, peer, message, payload)

    original = Replica._send
    patch.setattr(Replica, "_send", send)


def old_term_committed_by_counting(patch: pytest.MonkeyPatch) -> None:
    """Figure 8 of the Raft paper: an entry of an older term is called committed, and then overwritten."""

    def advance_commit(leadership: Leadership) -> None:
        core = leadership.core
        match = {peer: p.match_index for peer, p in leadership.progress.items()}
        match[core.node_id] = core.log.durable_index
        index = committed_by(core.membership, match)
        if index > core.committed_index:
            core.commit_to(index)

    patch.setattr(Leadership, "advance_commit", advance_commit)


def leader_counts_itself_before_durable(patch: pytest.MonkeyPatch) -> None:
    """One durable copy less than promised: lost when that one machine loses power."""

    def advance_commit(leadership: Leadership) -> None:
        core = leadership.core
        match = {peer: p.match_index for peer, p in leadership.progress.items()}
        match[core.node_id] = core.log.end_index
        index = committed_by(core.membership, match)
        if index > core.committed_index and core.log.term_at(index) == leadership.term:
            core.commit_to(index)

    patch.setattr(Leadership, "advance_commit", advance_commit)


def follower_acknowledges_before_durable(patch: pytest.MonkeyPatch) -> None:
    """What DLedger does: an answer to a push before the disk has it."""
    original = Follower.acknowledge

    def acknowledge(following: Follower, **options: Any) -> None:
        log = following.core.log
        durable, log.durable_index = log.durable_index, log.end_index
        try:
            original(following, **options)
        finally:
            log.durable_index = durable

    patch.setattr(Follower, "acknowledge", acknowledge)


def blind_truncate(patch: pytest.MonkeyPatch) -> None:
    """TRUNCATE is carried out without looking whether the entry there is really another one."""

    def truncate(following: Follower, peer: str, message: Truncate) -> None:
        log = following.core.log
        present = log.begin_index <= message.index <= log.end_index
        if present and not following._cut(message.index, peer):
            return
        following._answer(peer, message, Code.SUCCESS, message.index - 1)

    patch.setattr(Follower, "_truncate", truncate)


def next_index_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """After a conflict the leader goes on one entry too far."""
    original = FollowerProgress.matched

    def matched(progress: FollowerProgress, index: int) -> None:
        original(progress, index)
        if index >= 0:
            progress.next_index = index + 2

    patch.setattr(FollowerProgress, "matched", matched)


def previous_term_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A follower appends after an entry with the right index, whatever its term is."""

    def holds(log: LogView, index: int, term: int) -> bool:
        return index <= log.end_index

    patch.setattr(LogView, "holds", holds)


def read_before_noop(patch: pytest.MonkeyPatch) -> None:
    """A new leader serves reads at a committed index that it has not brought up to date."""
    patch.setattr(Leadership, "noop_is_committed", True)


def read_without_round(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader serves reads: it never asks whether it still leads."""

    def read_index(leadership: Leadership, request_id: int) -> None:
        if leadership.noop_is_committed:
            leadership.core.emit(ReadReady(request_id, leadership.core.committed_index))
        else:
            original(leadership, request_id)

    original = Leadership.read_index
    patch.setattr(Leadership, "read_index", read_index)


def read_counts_older_round(patch: pytest.MonkeyPatch) -> None:
    """Answers to a heartbeat round from before the request confirm the read."""

    def add(queue: ReadIndexQueue, request_id: int, committed_index: int, last_round: int) -> None:
        queue.waiting.append(WaitingRead(request_id, committed_index, last_round))

    patch.setattr(ReadIndexQueue, "add", add)


def stale_push_answer(patch: pytest.MonkeyPatch) -> None:
    """Answers of older push streams, and of older terms of the same leader, are counted."""
    original = Leadership.on_response

    def on_response(leadership: Leadership, peer: str, response: HeartbeatResponse | PushResponse) -> None:
        if isinstance(response, PushResponse):
            stream_id = leadership.progress[peer].stream_id
            response = replace(response, stream_id=stream_id, term=leadership.term)
        original(leadership, peer, response)

    patch.setattr(Leadership, "on_response", on_response)


def stale_vote_answer(patch: pytest.MonkeyPatch) -> None:
    """Answers to older rounds and terms are counted, those to pre-votes among them."""
    original = RaftCore._vote_response

    def vote_response(core: RaftCore, peer: str, response: Any) -> None:
        if core.candidacy is not None:
            asked = core.candidacy
            term = max(response.term, core.term)
            response = replace(response, term=term, round=asked.round, pre_vote=asked.pre_vote)
        original(core, peer, response)

    patch.setattr(RaftCore, "_vote_response", vote_response)


def late_votes_dropped(patch: pytest.MonkeyPatch) -> None:
    """A vote that comes when the next pre-vote has begun is dropped, and nobody ever waits longer: with disks
    that take as long as that, there is never a leader."""
    original = RaftCore._vote_response

    def vote_response(core: RaftCore, peer: str, response: Any) -> None:
        if response.pre_vote or core.candidacy is core.standing:
            original(core, peer, response)

    patch.setattr(RaftCore, "_vote_response", vote_response)
    patch.setattr(RaftCore, "_patience", 1)


def shortcut_slept_over(patch: pytest.MonkeyPatch) -> None:
    """A follower that is idle sleeps until its election time-out, also when its leader's stream broke: each
    failover takes a second."""
    original = ticker.core_next_tick_ms

    def next_tick_ms(core: RaftCore) -> int:
        shortcut, core.shortcut = core.shortcut, None
        due = original(core)
        core.shortcut = shortcut
        return due

    patch.setattr(ticker, "core_next_tick_ms", next_tick_ms)


def quorum_slept_over(patch: pytest.MonkeyPatch) -> None:
    """A leader that is alone looks for its majority with the next heartbeat only."""
    patch.setattr(deadlines, "committed_by", lambda membership, contacts: 1 << 61)


def sessions_not_undone(patch: pytest.MonkeyPatch) -> None:
    """The session table remembers batches that were truncated: a retry is answered, but nothing is stored."""

    def nothing(table: SessionTable, last_index: int) -> None: ...

    patch.setattr(SessionTable, "truncate_after", nothing)


def expiry_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """What the log says to its end is believed: a deposed leader ends a session that lives on."""
    original = AppendAdmission.admit

    def answer_at_once(
        admission: AppendAdmission,
        last_index: int,
        token: object,
        outcome: AppendOutcome | DLedgerError,
        first_index: int,
        deadline_ms: int,
        committed_index: int,
    ) -> AppendOutcome | DLedgerError | None:
        if isinstance(outcome, DLedgerError):
            return outcome
        return original_answer_at(
            admission, last_index, token, outcome, first_index, deadline_ms, committed_index
        )

    def admit(admission: AppendAdmission, *args: Any, **options: Any) -> AppendOutcome | DLedgerError | None:
        answer = original(admission, *args, **options)
        return SessionExpired(answer.message) if isinstance(answer, ExpiryUnconfirmed) else answer

    original_answer_at = AppendAdmission._answer_at
    patch.setattr(AppendAdmission, "_answer_at", answer_at_once)
    patch.setattr(AppendAdmission, "admit", admit)


def sessions_without_tail(patch: pytest.MonkeyPatch) -> None:
    """A new leader knows nothing of session batches that are in its log but not committed: stored twice."""

    def follow(admission: AppendAdmission, batches: Iterable[Batch], now_ms: int) -> None:
        for batch in batches:
            late.setdefault(id(admission.state), []).append((batch, now_ms))
            admission.tail = batch.tail

    def truncated(state: LogState, last_index: int) -> None:
        late[id(state)] = [(b, ms) for b, ms in late.get(id(state), []) if b.last_index <= last_index]
        original_truncate(state, last_index)

    def committed(state: LogState, index: int) -> list[Internal]:
        waiting = late.get(id(state), [])
        while waiting and waiting[0][0].last_index <= index:
            batch, ms = waiting.pop(0)
            if batch.head is not None:
                state.note(batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, ms)
        return original_committed(state, index)

    late: dict[int, list[tuple[Batch, int]]] = {}
    original_truncate, original_committed = LogState.truncate_after, LogState.committed
    patch.setattr(AppendAdmission, "follow", follow)
    patch.setattr(LogState, "truncate_after", truncated)
    patch.setattr(LogState, "committed", committed)


def vote_by_current_term(patch: pytest.MonkeyPatch) -> None:
    """DLedger issues 52 and 53: the candidate's current term passes for the term of its last entry."""
    original = RaftCore.send

    def send(core: RaftCore, peer: str, message: Any) -> None:
        if isinstance(message, VoteRequest):
            message = replace(message, ledger_end_term=core.term)
        original(core, peer, message)

    patch.setattr(RaftCore, "send", send)


def repeated_push_written_again(patch: pytest.MonkeyPatch) -> None:
    """Entries that are here already are cut and written again when they are pushed again."""

    def first_difference(following: Follower, message: Append) -> int:
        return message.first_index

    patch.setattr(Follower, "_first_difference", first_difference)


def older_generation_counted(patch: pytest.MonkeyPatch) -> None:
    """A completion from before a truncation makes entries durable that were never written."""

    def stored(log: LogView, last_index: int, term: int, generation: int) -> bool:
        last_index = min(last_index, log.end_index)
        if last_index > log.durable_index:
            log.durable_index = last_index
            return True
        return False

    patch.setattr(LogView, "stored", stored)


def answered_past_the_core(patch: pytest.MonkeyPatch) -> None:
    """The report of the disk answers appends that a majority has by it, without a step of the core: a report
    of an older generation acknowledges entries that replaced truncated ones."""
    original = Replica.stored

    def stored(replica: Replica, now_ms: int, generation: int, last_index: int, term: int) -> None:
        core = replica.core
        if core.leadership is not None:
            match = {peer: one.match_index for peer, one in core.leadership.progress.items()}
            index = committed_by(core.membership, match | {core.node_id: last_index})
            for waiter in replica.admission._waiters:
                if waiter.token is not None and waiter.last_index <= index:
                    replica.shell.answer_append(waiter.token, waiter.outcome)
                    waiter.token = None
        original(replica, now_ms, generation, last_index, term)

    patch.setattr(Replica, "stored", stored)


def commit_not_clamped(patch: pytest.MonkeyPatch) -> None:
    """A follower believes the leader's committed index for entries it has not compared with the leader's."""

    def learn_committed(following: Follower, leader_committed: int) -> None:
        core = following.core
        core.commit_to(max(core.committed_index, min(leader_committed, core.log.end_index)))

    patch.setattr(Follower, "learn_committed", learn_committed)
    patch.setattr(raft_module, "check_core", lambda core: None)  # it would notice at once, in this process


def leader_again_in_its_own_term(patch: pytest.MonkeyPatch) -> None:
    """A node that voted for itself campaigns again in the same term after a restart."""
    original = RaftCore.campaign

    def campaign(core: RaftCore, cause: str, *, transfer: bool) -> None:
        state = core.hard_state
        if state.voted_for == core.node_id:
            core.hard_state = replace(state, term=state.term - 1, voted_for=None)
        original(core, cause, transfer=transfer)

    patch.setattr(RaftCore, "campaign", campaign)


def acknowledged_when_written(patch: pytest.MonkeyPatch) -> None:
    """The client is answered as soon as the leader has written the batch."""
    original = Replica._write_group

    def write_group(replica: Replica, batches: list[Batch], now_ms: int) -> None:
        original(replica, batches, now_ms)
        for waiter in replica.admission._waiters:
            if waiter.token is not None:
                replica.shell.answer_append(waiter.token, waiter.outcome)
                waiter.token = None

    patch.setattr(Replica, "_write_group", write_group)


def unknown_reported_as_failed(patch: pytest.MonkeyPatch) -> None:
    """A leader that is deposed tells its callers that nothing was stored, and some of it is."""
    original = AppendAdmission.abandon

    def abandon(
        admission: AppendAdmission, tail: Any, refused: NotLeader
    ) -> list[tuple[object, DLedgerError]]:
        return [(token, refused) for token, _ in original(admission, tail, refused)]

    patch.setattr(AppendAdmission, "abandon", abandon)


def higher_term_ignored(patch: pytest.MonkeyPatch) -> None:
    """DLedger issue 325: a leader ignores the higher term of an answer; that node is orphaned for ever."""
    patch.setattr(RaftCore, "_higher_term", lambda core, term: term > core.term)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Elections are won with one vote too few."""

    def is_majority(membership: Membership, nodes: Any) -> bool:
        return sum(voter in nodes for voter in membership.voters) >= membership.majority - 1

    patch.setattr("dledger.core.election.is_majority", is_majority)


def commit_by_minority(patch: pytest.MonkeyPatch) -> None:
    """The canary: whatever any one node holds is committed."""

    def highest(membership: Membership, match: Mapping[str, int]) -> int:
        return max(match.values())

    patch.setattr(leadership_module, "committed_by", highest)


def truncation_not_written(patch: pytest.MonkeyPatch) -> None:
    """A truncation happens in memory only; the disk still has the old entries, and goes on after them."""
    original = DiskJobs.do

    def do(jobs: DiskJobs, job: OtherJob) -> None:
        if not isinstance(job, TruncateJob):
            original(jobs, job)

    patch.setattr(DiskJobs, "do", do)


def leader_truncates_itself(patch: pytest.MonkeyPatch) -> None:
    """A leader cuts its own uncommitted tail when it is elected."""
    original = Leadership.start_leading

    def begin(leadership: Leadership) -> None:
        core = leadership.core
        if core.log.end_index > core.committed_index >= 0 and core.role is Role.LEADER:
            core.log.truncate_after(core.committed_index)
            core.emit(TruncateLog(core.committed_index, core.log.generation))
        original(leadership)

    patch.setattr(Leadership, "start_leading", begin)


def votes_for_several(patch: pytest.MonkeyPatch) -> None:
    """Votes are granted to several candidates of one term."""
    original = RaftCore._judge_vote

    def judge(core: RaftCore, request: VoteRequest) -> Any:
        if not request.pre_vote and request.term == core.term and core.leader_id is None:
            core.hard_state = replace(core.hard_state, voted_for=None)
        return original(core, request)

    patch.setattr(RaftCore, "_judge_vote", judge)


def rejoining_node_counted(patch: pytest.MonkeyPatch) -> None:
    """Answers of a node that lost its log count: entries are committed that a minority holds for certain."""
    original = Leadership.on_response

    def on_response(leadership: Leadership, peer: str, response: HeartbeatResponse | PushResponse) -> None:
        original(leadership, peer, replace(response, counts=True))

    patch.setattr(Leadership, "on_response", on_response)


def rejoining_node_votes(patch: pytest.MonkeyPatch) -> None:
    """A node that lost its vote with its log votes again."""
    original = RaftCore._judge_vote

    def judge(core: RaftCore, request: VoteRequest) -> VoteResult:
        result = original(core, request)
        if result is not VoteResult.REJECT_NOT_READY:
            return result
        result = compare_logs(request, core.log)
        free = core.hard_state.voted_for in (None, request.candidate_id)
        if result is VoteResult.ACCEPT and not request.pre_vote and free:
            core._persist(replace(core.hard_state, voted_for=request.candidate_id))
        return result if free else VoteResult.REJECT_ALREADY_VOTED

    patch.setattr(RaftCore, "_judge_vote", judge)


def rejoined_without_hearing_all(patch: pytest.MonkeyPatch) -> None:
    """One other member has said where its log ends, and that is taken for all that was ever acknowledged."""

    def missing(rejoining: RejoinProcess) -> tuple[str, ...]:
        others = rejoining.core.membership.others(rejoining.core.node_id)
        return () if rejoining._reports else others

    patch.setattr(RejoinProcess, "missing", property(missing))


def rejoined_by_old_answers(patch: pytest.MonkeyPatch) -> None:
    """What others said before a second node lost its log is taken to hold after that, too."""

    def on_response(rejoining: RejoinProcess, peer: str, response: PositionResponse) -> None:
        if rejoining.core.hard_state.rejoining and response.round == rejoining._round:
            if response.rejoining:
                rejoining._lost.add(peer)
            else:
                rejoining._reports.setdefault(peer, response)
            rejoining._finish_if_complete()

    patch.setattr(RejoinProcess, "on_response", on_response)


def purged_before_the_image(patch: pytest.MonkeyPatch) -> None:
    """The PURGE is written when an image begins, not when it is complete and committed."""
    original = Retainer._begin_image

    def begin_image(retainer: Retainer, now_ms: int) -> None:
        original(retainer, now_ms)
        retainer._append(Purge(retainer._borders()[-1].base), now_ms)

    patch.setattr(Retainer, "_begin_image", begin_image)


def image_ignored_at_start(patch: pytest.MonkeyPatch) -> None:
    """A node without a stored session table rebuilds it from what its log still holds."""
    patch.setattr(LogState, "_load_image", lambda state, store, *_: store.base.index)


def image_ignored_after_a_base(patch: pytest.MonkeyPatch) -> None:
    """A node that was given a base goes on without the sessions of the image."""
    original = LogState.reset

    def reset(state: LogState, base: Any) -> None:
        original(state, base)
        state.needs_image = False

    patch.setattr(LogState, "reset", reset)


def clock_jump_followed(patch: pytest.MonkeyPatch) -> None:
    """Cluster time is whatever the leader's wall clock says, as long as it does not fall."""

    def read(clock: ClusterClock, now_ms: int, wall_ms: int) -> int:
        return max(wall_ms, clock.last_stamp_ms or 0)

    patch.setattr(ClusterClock, "read", read)


def wall_clock_stamped(patch: pytest.MonkeyPatch) -> None:
    """Stamps are wall-clock time, and fall with it."""
    patch.setattr(ClusterClock, "read", lambda clock, now_ms, wall_ms: wall_ms)


def latest_clock_followed(patch: pytest.MonkeyPatch) -> None:
    """The latest of the members' clocks decides, and not that of a majority."""

    def latest(membership: Membership, walls: Mapping[str, int]) -> ClockBounds:
        return ClockBounds(max(walls.values()), min(walls.values()))

    patch.setattr(clock_keeper, "bounds", latest)


def stamps_not_undone(patch: pytest.MonkeyPatch) -> None:
    """A step stays though its entry was truncated."""
    patch.setattr(ClusterClock, "truncate_after", lambda *_: None)


def rejoining_clocks_counted(patch: pytest.MonkeyPatch) -> None:
    """The clock of a member that lost its log counts for a majority."""

    def hear(clocks: MemberClocks, peer: str, message: Any, now_ms: int) -> None:
        clocks.note(peer, message.wall_ms, now_ms)

    patch.setattr(MemberClocks, "hear", hear)


def room_not_reserved(patch: pytest.MonkeyPatch) -> None:
    """An index is assigned before there is space for the entry: a full disk stops the node."""
    patch.setattr(AppendAdmission, "has_room_for", lambda admission, batch: True)
