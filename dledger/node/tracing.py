"""A trace of a node's steps, from which the safety rules can be checked later.

Tracing is off unless a NodeServer gets a `NodeTrace`. Then the shell is a `TracingShell`, and the Applier
traces its own events. Programs on the node can add events to the same trace: a broker traces its role
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dledger.core.messages import Message, VoteRequest, VoteResponse
from dledger.core.values import HardState, MembershipAt, Role, VoteResult
from dledger.errors import DLedgerError
from dledger.node.async_shell import AsyncShell
from dledger.node.disk.disk_worker import HardStateReport, Report, StoredReport
from dledger.node.setup.trace import NodeTrace
from dledger.replica.owned_append import Fill
from dledger.replica.shell import (
    AppendHandle,
    AppendOutcome,
    DiskJob,
    HardStateJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    TruncateJob,
    WriteJob,
)
from dledger.store.format.batch import Batch

T = TypeVar("T")

#: Number of votes for which the end of the log is kept. Only the newest may still need a trace event.
_VOTES_KEPT = 16


class TracingShell(AsyncShell):
    """An AsyncShell that traces its inputs and outputs. Call `trace_to` before `start`."""

    def trace_to(self, trace: NodeTrace, node_id: str) -> None:
        self._trace = trace
        self._node_id = node_id
        self._hard_states: dict[int, HardState] = {}  # submitted, not yet durable
        #: (candidate, term) -> index and term of the end of the log when the vote was given.
        self._vote_ends: dict[tuple[str, int], tuple[int, int]] = {}
        #: When a vote is traced, its candidate may have requested one in a later term already.
        self._vote_requests: dict[tuple[str, int], VoteRequest] = {}  # (candidate, term) -> its request
        self._own_vote = -1  # term of this node's last vote for itself
        self._traced_commit = -1
        self._traced_role: tuple[Role, int] | None = None
        self._traced_members: MembershipAt | None = None

    def start(self) -> None:
        replica, store = self._replica, self._store
        state = store.hard_state
        self._traced_commit = replica.core.committed_index
        self._trace.begin(self._node_id, state.incarnation)
        fields = {
            "term": state.term,
            "ended": store.end_index,
            "committed": replica.core.committed_index,
            "chain": _hex(store.tail.chain_crc),
            "wiped": state.rejoining,
            "uid": state.uid,
        }
        if state.voted_for is not None:
            fields["vote"] = state.voted_for
        if state.voted_for == self._node_id:
            self._own_vote = state.term
        self._trace.event("store", "recover", fields)
        for known in replica.core.log.memberships:
            self._configuration(known)
        super().start()

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        if isinstance(message, VoteResponse) and message.result is VoteResult.ACCEPT and not message.pre_vote:
            self._vote(message.term, peer)
        super().send(peer, message, payload)

    def receive(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        if isinstance(message, VoteRequest) and not message.pre_vote:
            _keep(self._vote_requests, (message.candidate_id, message.term), message)
        super().receive(peer, message, payload)

    def append_batch(
        self,
        token: AppendHandle,
        sizes: Sequence[int],
        fill: Fill,
        expected: tuple[int, int],
        timeout_ms: int,
    ) -> None:
        super().append_batch(token, sizes, fill, expected, timeout_ms)
        self._trace.event("raft", "accept", {"term": expected[0]})

    def submit(self, job: DiskJob) -> None:
        match job:
            case WriteJob():
                self._appended(list(job.batches))
            case HardStateJob(number, hard_state):
                self._hard_states[number] = hard_state
                self._note_end(hard_state)
            case TruncateJob():
                self._trace.event("store", "truncate", {"lidx": job.last_index + 1})
            case ResetJob(base=base):
                self._trace.event("store", "install", {"lidx": base.index, "chain": _hex(base.chain_crc)})
            case PurgeJob(base=base):
                self._trace.event("store", "purge", {"lidx": base.index})
        super().submit(job)

    def answer_append(self, token: AppendHandle, outcome: AppendOutcome | DLedgerError) -> None:
        if isinstance(outcome, AppendOutcome) and outcome.index >= 0:
            self._note_commit()  # callers get answers before readers see the commit
            # The id of a new session, which is not the index of its entry after a forced recovery.
            offset = self._replica.core.membership.recovery.session_offset
            first = outcome.index - offset if 0 < offset <= outcome.index else outcome.index
            last = first + outcome.count - 1
            self._trace.event("raft", "ack", {"term": self._replica.core.term, "lidx": last})
        super().answer_append(token, outcome)

    def role_changed(self, notice: RoleNotice) -> None:
        if (notice.role, notice.term) != self._traced_role:
            self._traced_role = (notice.role, notice.term)
            self._role(notice)
        super().role_changed(notice)

    def members_changed(self, in_force: MembershipAt, peers: Sequence[str]) -> None:
        if in_force != self._traced_members:
            # A leader ends a change in the step in which it commits the joint configuration.
            self._note_commit()
            self._configuration(in_force)
        super().members_changed(in_force, peers)

    def committed(self, committed_index: int) -> None:
        self._note_commit()
        super().committed(committed_index)

    def _on_report(self, report: Report) -> None:
        match report:
            case StoredReport(generation, last_index):
                if generation == self._replica.core.log.generation:
                    self._trace.event("store", "flush", {"lidx": last_index})
            case HardStateReport(number):
                self._durable(number)
        super()._on_report(report)

    def _note_commit(self) -> None:
        core = self._replica.core
        index = core.committed_index
        if index > self._traced_commit:
            before, self._traced_commit = self._traced_commit, index
            fields = {"term": core.term, "lidx": index, "eterm": core.log.term_at(index)}
            self._trace.event("raft", "commit", fields)
            for known in core.log.memberships:
                if before < known.index <= index:
                    place = {"term": core.term, "lidx": known.index, "eterm": known.term}
                    self._trace.event("raft", "configuration_committed", place)

    def _configuration(self, in_force: MembershipAt) -> None:
        before, self._traced_members = self._traced_members, in_force
        if before is not None and before.index >= in_force.index:
            self._trace.event("raft", "configuration_undone", {"lidx": before.index, "eterm": before.term})
        membership = in_force.membership
        fields = {
            "lidx": in_force.index,
            "eterm": in_force.term,
            "voters": ",".join(membership.voters),
            "outgoing": ",".join(membership.outgoing),
            "learners": ",".join(membership.learners),
            "uids": ",".join(f"{member.node_id}:{member.uid}" for member in membership.identities),
        }
        self._trace.event("raft", "configuration", fields)

    def _role(self, notice: RoleNotice) -> None:
        tail, term, uid = self._replica.log_tail, notice.term, self._replica.core.hard_state.uid
        match notice.role:
            case Role.LEADER:
                fields: dict[str, Any] = {"term": term, "ended": tail.index, "chain": _hex(tail.chain_crc)}
                fields |= {"role_epoch": notice.role_epoch, "uid": uid}
                self._trace.event("raft", "leader", fields)
            case Role.CANDIDATE:
                fields = {"term": term, "last_index": tail.index, "last_term": tail.term}
                self._trace.event("raft", "candidate", fields)
            case Role.FOLLOWER:
                fields = {"term": term, "role_epoch": notice.role_epoch}
                self._trace.event("raft", "follower", fields)

    def _durable(self, number: int) -> None:
        """Trace a durable hard state. Earlier ones were superseded on disk."""
        state = self._hard_states[number]
        for older in [n for n in self._hard_states if n <= number]:
            del self._hard_states[older]
        vote = {} if state.voted_for is None else {"vote": state.voted_for}
        self._trace.event("raft", "term_vote", {"term": state.term, "uid": state.uid, **vote})
        # A term and vote become durable again with other parts of the state.
        if state.voted_for == self._node_id and state.term > self._own_vote:
            self._own_vote = state.term
            self._vote(state.term, self._node_id)

    def _note_end(self, state: HardState) -> None:
        """Record the end of the log at the time of the vote. Until the vote is durable and traced, the log
        may grow and the term may increase."""
        vote, log = (state.voted_for or "", state.term), self._replica.core.log
        if vote[0] and vote not in self._vote_ends:
            _keep(self._vote_ends, vote, (log.end_index, log.end_term))

    def _vote(self, term: int, candidate: str) -> None:
        uid = self._replica.core.hard_state.uid
        fields: dict[str, Any] = {"term": term, "candidate": candidate, "uid": uid}
        if end := self._vote_ends.get((candidate, term)):
            fields |= {"last_index": end[0], "last_term": end[1]}
            if candidate == self._node_id:
                fields |= {"cand_last_index": end[0], "cand_last_term": end[1]}
        if (request := self._vote_requests.get((candidate, term))) is not None:
            fields |= {"cand_last_index": request.ledger_end_index, "cand_last_term": request.ledger_end_term}
        self._trace.event("raft", "vote", fields)

    def _appended(self, batches: list[Batch]) -> None:
        """Trace consecutive batches of one term as one range."""
        first = batches[0]
        for batch, after in zip(batches, [*batches[1:], None], strict=True):
            if after is None or after.term != batch.term:
                self._trace.event(
                    "store",
                    "append",
                    {
                        "lidx": first.first_index,
                        "last": batch.last_index,
                        "eterm": batch.term,
                        "chain": _hex(batch.chain_crc),
                    },
                )
                first = after or batch


def _keep(newest: dict[tuple[str, int], T], vote: tuple[str, int], value: T) -> None:
    newest[vote] = value
    if len(newest) > _VOTES_KEPT:
        del newest[next(iter(newest))]


def _hex(chain_crc: int) -> str:
    return f"{chain_crc:08x}"
