"""A Raft core with the least of a node around it: the log's ranges are put and pushed, nothing is written.

What is sent is kept in `sent`; disk writes are reported by the test (`store`), or at once with `fast_disk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dledger.core.effects import (
    AppendMembership,
    AppendNoop,
    CommitAdvanced,
    Effect,
    Fatal,
    PersistHardState,
    PushAppended,
    PushRange,
    RoleChanged,
    SendMessage,
    StoreEntries,
    TruncateLog,
)
from dledger.core.events import (
    CommitSettled,
    EntriesAppended,
    EntriesPushed,
    EntriesStored,
    Event,
    MessageReceived,
    StreamUp,
    Tick,
)
from dledger.core.log_view import LogView
from dledger.core.membership_change import first_members
from dledger.core.messages import (
    Append,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    PushType,
    VoteRequest,
    VoteResponse,
)
from dledger.core.raft import RaftCore
from dledger.core.values import (
    FEATURES,
    NO_BASE,
    CoreConfig,
    HardState,
    MembershipAt,
    Role,
    TermRun,
    Timing,
    VoteResult,
)
from dledger.errors import Code

T = TypeVar("T")
START_MS = 1000
ENTRY_BYTES = 100


def runs_of(terms: Sequence[int], first_index: int = 0) -> list[TermRun]:
    """The term runs of entries with these terms."""
    runs: list[TermRun] = []
    for offset, term in enumerate(terms):
        if not runs or runs[-1].term != term:
            runs.append(TermRun(term, first_index + offset))
    return runs


def founded_by(*voters: str) -> list[MembershipAt]:
    """These are the voters of a log from its beginning."""
    return [MembershipAt(-1, -1, first_members({voter: f"{voter}:1" for voter in voters}))]


def log_of(terms: Sequence[int], voters: Sequence[str] = ("a", "b", "c")) -> LogView:
    return LogView(NO_BASE, runs_of(terms), len(terms) - 1, founded_by(*voters))


def lowest(low: int, high: int) -> int:
    return low


def highest(low: int, high: int) -> int:
    return high


class Node:
    """One core. `terms` are those of its log; term and vote are its hard state."""

    def __init__(
        self,
        node_id: str = "a",
        voters: Sequence[str] = ("a", "b", "c"),
        *,
        terms: Sequence[int] = (),
        term: int | None = None,
        voted_for: str | None = None,
        incarnation: int = 1,
        committed: int = -1,
        random_ms: Callable[[int, int], int] = lowest,
        fast_disk: bool = True,
        preferred: tuple[str, ...] = (),
        max_inflight_bytes: int = 16 << 20,
        timing: Timing | None = None,
    ) -> None:
        if term is None:
            term = terms[-1] if terms else 0
        config = CoreConfig(
            node_id,
            timing or Timing(),
            preferred_leaders=preferred,
            max_inflight_bytes=max_inflight_bytes,
        )
        hard_state = HardState(term, voted_for, incarnation)
        self.core = RaftCore(config, hard_state, log_of(terms, voters), committed, random_ms)
        self.core.features = dict.fromkeys(voters, FEATURES)
        self.id = node_id
        self.now = START_MS
        self.fast_disk = fast_disk
        self.effects: list[Effect] = []
        self.sent: list[tuple[str, Message]] = []
        self._carry_out(self.core.start(self.now))

    # -- driving

    def step(self, event: Event) -> list[Effect]:
        """Let an event happen; returns all effects, those of the steps that it led to included."""
        before = len(self.effects)
        self._carry_out(self.core.step(event, self.now))
        return self.effects[before:]

    def receive(self, peer: str, message: Message, chain_matches: bool | None = None) -> list[Effect]:
        return self.step(MessageReceived(peer, message, chain_matches))

    def ask(self, peer: str, message: Message, chain_matches: bool | None = None) -> list[Message]:
        """What this node sends to `peer` because of the message."""
        before = len(self.sent)
        self.receive(peer, message, chain_matches)
        return [m for to, m in self.sent[before:] if to == peer]

    def pass_time(self, ms: int) -> list[Effect]:
        self.now += ms
        return self.step(Tick())

    def store(self) -> list[Effect]:
        """The disk reports all that was written so far."""
        log = self.core.log
        return self.step(EntriesStored(log.end_index, log.end_term, log.generation))

    def append(self, count: int = 1) -> list[Effect]:
        """The leader's own node puts a batch of `count` entries after the end of the log."""
        first = self.core.log.end_index + 1
        return self.step(EntriesAppended(first, first + count - 1, self.core.term, count * ENTRY_BYTES))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        queue = list(effects)
        while queue:
            effect = queue.pop(0)
            self.effects.append(effect)
            log = self.core.log
            match effect:
                case SendMessage(peer, message) | PushAppended(peer, message):
                    self.sent.append((peer, message))
                case AppendNoop(term):
                    end = log.end_index + 1
                    queue += self.core.step(EntriesAppended(end, end, term, ENTRY_BYTES), self.now)
                    if self.fast_disk:
                        queue += self.core.step(EntriesStored(end, term, log.generation), self.now)
                case AppendMembership(membership):
                    end = log.end_index + 1
                    known = (MembershipAt(end, self.core.term, membership),)
                    event = EntriesAppended(end, end, self.core.term, ENTRY_BYTES, known)
                    queue += self.core.step(event, self.now)
                    if self.fast_disk:
                        queue += self.core.step(EntriesStored(end, self.core.term, log.generation), self.now)
                case PushRange(peer, stream_id, first, last, _, prev_term):
                    runs = log.runs_between(first, last)
                    push = Append(
                        self.core.term, self.id, stream_id, self.core.committed_index,
                        first - 1, prev_term, first, last, runs,
                    )  # fmt: skip
                    self.sent.append((peer, push))
                    size = (last - first + 1) * ENTRY_BYTES
                    queue += self.core.step(EntriesPushed(peer, stream_id, first, last, size), self.now)
                case StoreEntries() | TruncateLog():
                    if self.fast_disk:
                        queue += self.core.step(
                            EntriesStored(log.end_index, log.end_term, log.generation), self.now
                        )
                case CommitAdvanced():
                    queue += self.core.step(CommitSettled(), self.now)
                case _:
                    pass

    # -- short cuts to a role

    def become_candidate(self) -> VoteRequest:
        """Time out: returns the pre-vote request."""
        self.pass_time(self.core.timing.election_max_ms)
        return self.last_sent(VoteRequest)

    def win_pre_vote(self) -> VoteRequest:
        """Time out and get all pre-votes: returns the request for a real vote."""
        self.answer_votes(self.become_candidate(), VoteResult.ACCEPT)
        return self.last_sent(VoteRequest)

    def answer_votes(self, request: VoteRequest, result: VoteResult) -> None:
        """Everybody answers, as long as it matters."""
        for peer in self.core.membership.others(self.id):
            term = request.term - 1 if request.pre_vote else request.term
            self.receive(peer, VoteResponse(term, peer, result, request.pre_vote, request.round))

    def become_leader(self) -> Node:
        """Be elected by all, in the next term."""
        if len(self.core.membership.voters) == 1:
            self.pass_time(self.core.timing.election_max_ms)
        else:
            self.answer_votes(self.win_pre_vote(), VoteResult.ACCEPT)
        assert self.core.role is Role.LEADER
        return self

    def connect(self, peer: str, stream_id: int = 1, incarnation: int = 1) -> Compare:
        """A push stream to `peer` comes up: returns the first probe."""
        self.step(StreamUp(peer, stream_id, incarnation))
        return self.last_sent(Compare)

    def connect_equal(self, peer: str, stream_id: int = 1) -> None:
        """A push stream to a peer that holds all of this leader's log, durably."""
        probe = self.connect(peer, stream_id)
        self.receive(peer, self.match(peer, probe.index, stream_id))
        self.receive(peer, self.ack(peer, probe.index, stream_id))

    # -- answers of followers to this leader

    def ack(self, peer: str, index: int, stream_id: int = 1) -> PushResponse:
        return PushResponse(
            self.core.term, peer, stream_id, Code.SUCCESS, PushType.APPEND, index, 0, max(index, 0)
        )

    def match(self, peer: str, index: int, stream_id: int = 1, end_index: int | None = None) -> PushResponse:
        end = index if end_index is None else end_index
        return PushResponse(self.core.term, peer, stream_id, Code.SUCCESS, PushType.COMPARE, index, 0, end)

    def beat_back(self, peer: str, round_: int | None = None) -> HeartbeatResponse:
        if round_ is None:
            round_ = self.last_sent(Heartbeat).round
        return HeartbeatResponse(self.core.term, peer, round_, True)

    # -- what happened

    def last_sent(self, kind: type[T]) -> T:
        return [m for _, m in self.sent if isinstance(m, kind)][-1]

    def all_sent(self, kind: type[T], to: str | None = None) -> list[T]:
        return [m for peer, m in self.sent if isinstance(m, kind) and to in (None, peer)]

    def all_effects(self, kind: type[T]) -> list[T]:
        return [e for e in self.effects if isinstance(e, kind)]

    def forget(self) -> None:
        """Look only at what comes from here on."""
        self.effects.clear()
        self.sent.clear()

    @property
    def fatal(self) -> Fatal | None:
        return self.core.stopped

    @property
    def persisted(self) -> list[HardState]:
        return [e.hard_state for e in self.all_effects(PersistHardState)]

    @property
    def roles(self) -> list[Role]:
        return [e.role for e in self.all_effects(RoleChanged)]

    @property
    def terms(self) -> list[int]:
        log = self.core.log
        return [log.term_at(index) for index in range(log.begin_index, log.end_index + 1)]


# -- messages of a leader "b" to the node under test


def heartbeat(term: int, leader: str = "b", *, round_: int = 1, committed: int = -1) -> Heartbeat:
    return Heartbeat(term, leader, round_, committed)


def compare(
    term: int, index: int, index_term: int, leader: str = "b", *, stream: int = 1, committed: int = -1
) -> Compare:
    return Compare(term, leader, stream, committed, index, index_term)


def push(
    term: int,
    prev_index: int,
    prev_term: int,
    terms: Sequence[int],
    leader: str = "b",
    *,
    stream: int = 1,
    committed: int = -1,
) -> Append:
    first = prev_index + 1
    return Append(
        term, leader, stream, committed, prev_index, prev_term, first, prev_index + len(terms),
        tuple(runs_of(terms, first)),
    )  # fmt: skip


def vote_request(
    term: int,
    end_index: int = -1,
    end_term: int = -1,
    candidate: str = "b",
    *,
    pre_vote: bool = False,
    transfer: bool = False,
    round_: int = 1,
) -> VoteRequest:
    return VoteRequest(term, candidate, end_index, end_term, pre_vote, transfer, round_)
