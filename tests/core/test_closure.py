"""Whatever comes, in whatever state: `step` raises nothing, keeps invariants, and stops only for cause."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from dledger.core.effects import Fatal, PersistHardState
from dledger.core.events import (
    CommitSettled,
    EntriesPushed,
    EntriesStored,
    Event,
    LeaderStreamLost,
    MessageReceived,
    ReadIndexRequest,
    StreamDown,
    StreamUp,
    Tick,
    TransferRequest,
)
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    PushType,
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import HardState, Role, VoteResult
from dledger.errors import Code
from tests.core.driver import Node, runs_of

PEERS = ("b", "c")
PUSH_CODES = (Code.SUCCESS, Code.INCONSISTENT_STATE, Code.INDEX_LESS_THAN_LOCAL_BEGIN, Code.EXPIRED_TERM)


class Chaos:
    """Draws events for a node: half of them fit its state, the others are anything well-formed."""

    def __init__(self, rng: Random, node: Node) -> None:
        self.rng = rng
        self.node = node
        self.stream = 0

    def small(self) -> int:
        end = self.node.core.log.end_index
        return self.rng.choice((-1, 0, 1, end - 1, end, end + 1, end + 3, self.rng.randint(-1, 12)))

    def index(self) -> int:
        return max(-1, self.small())

    def term(self) -> int:
        """Mostly the node's own."""
        return max(0, self.node.core.term + self.rng.choice((-1, 0, 0, 0, 0, 0, 0, 1)))

    def term_at(self, index: int, most: int) -> int:
        """Of an entry: mostly what is here."""
        log = self.node.core.log
        if index == -1:
            return -1
        if index <= log.end_index and self.rng.random() < 0.8:
            return min(log.term_at(index), most)
        return self.rng.randint(0, most)

    def stream_id(self) -> int:
        return max(0, self.rng.choice((self.stream, self.stream, self.stream - 1, self.stream + 1)))

    def round(self) -> int:
        leadership, candidacy = self.node.core.leadership, self.node.core.candidacy
        now = leadership.round if leadership else candidacy.round if candidacy else 0
        return max(0, now - self.rng.choice((0, 0, 0, 1)))

    def message(self, peer: str) -> Message:
        rng, term = self.rng, self.term()
        index, committed = self.index(), self.index()
        match rng.randrange(13):
            case 0:
                return VoteRequest(
                    term, peer, index, self.term_at(index, term), rng.random() < 0.5, rng.random() < 0.2, 1
                )
            case 1 | 2:
                result = rng.choice((VoteResult.ACCEPT, *VoteResult))
                return VoteResponse(term, peer, result, rng.random() < 0.5, self.round())
            case 3:
                return Heartbeat(term, peer, rng.randint(0, 9), committed)
            case 4:
                return HeartbeatResponse(term, peer, self.round(), rng.random() < 0.9)
            case 5:
                return Compare(term, peer, self.stream_id(), committed, index, self.term_at(index, term))
            case 6:
                first = max(0, index)
                return Truncate(
                    term, peer, self.stream_id(), committed, first, max(0, self.term_at(first, term))
                )
            case 7 | 8:
                return self.push(term, peer, index, committed)
            case 9:
                if rng.random() < 0.5:
                    return Commit(term, peer, self.stream_id(), committed)
                return Goodbye(term, peer, self.stream_id(), committed, "stop")
            case 10 | 11:
                conflict = rng.randint(0, index + 1) if index >= 0 else 0
                return PushResponse(
                    term, peer, self.stream_id(), rng.choice((Code.SUCCESS, *PUSH_CODES)),
                    rng.choice(list(PushType)), index, rng.choice((0, 0, 2)), self.index(),
                    rng.randint(-1, term), conflict,
                )  # fmt: skip
            case _:
                if rng.random() < 0.3:
                    return TakeLeadership(term, peer, index)
                return TakeLeadershipResponse(term, peer, rng.choice((Code.SUCCESS, Code.NOT_FOLLOWER)))

    def push(self, term: int, peer: str, prev: int, committed: int) -> Append:
        before = self.term_at(prev, term)
        terms, last = [], max(before, 0)
        for i in range(self.rng.randint(1, 4)):
            here = self.term_at(prev + 1 + i, term)
            last = max(last, here if self.rng.random() < 0.7 else self.rng.randint(last, max(last, term)))
            terms.append(last)
        first = prev + 1
        return Append(
            max(term, last), peer, self.stream_id(), committed, prev, before,
            first, prev + len(terms), tuple(runs_of(terms, first)),
        )  # fmt: skip

    def event(self) -> Event:
        rng, core = self.rng, self.node.core
        peer = rng.choice(PEERS)
        match rng.randrange(16):
            case 0 | 1:
                self.node.now += rng.choice((1, 20, 150, 1000, 3000))
                return Tick()
            case 2:
                index = rng.randint(-1, core.log.end_index + 1)
                return EntriesStored(index, self.term(), core.log.generation - rng.choice((0, 0, 1)))
            case 3:
                return EntriesStored(core.log.end_index, core.log.end_term, core.log.generation)
            case 4:
                self.stream += 1
                return StreamUp(peer, self.stream, rng.randint(1, 2))
            case 5:
                return rng.choice((StreamDown, LeaderStreamLost))(peer, self.stream_id())
            case 6:
                first = max(0, self.index())
                return EntriesPushed(peer, self.stream_id(), first, first - 1, 0)
            case 7:
                return rng.choice(
                    (CommitSettled(), ReadIndexRequest(1), TransferRequest(1, rng.choice((None, "b"))))
                )
            case _:
                return MessageReceived(peer, self.message(peer), rng.choice((None, True)))


@dataclass
class Before:
    hard_state: HardState
    committed: int
    role: Role
    role_epoch: int
    leader_id: str | None
    terms: list[int]


def snapshot(node: Node) -> Before:
    core = node.core
    return Before(
        core.hard_state, core.committed_index, core.role, core.role_epoch, core.leader_id, node.terms
    )


def claims(message: Message) -> dict[int, int]:
    """The terms that a push says certain entries have at the leader."""
    match message:
        case Compare(index=index, index_term=term) | Truncate(index=index, index_term=term):
            return {index: term}
        case Append():
            said = {message.prev_index: message.prev_term}
            ends = [run.first_index - 1 for run in message.runs[1:]] + [message.last_index]
            for run, end in zip(message.runs, ends, strict=True):
                said |= dict.fromkeys(range(run.first_index, end + 1), run.term)
            return said
        case _:
            return {}


def justified(fatal: Fatal, event: Event, before: Before) -> bool:
    """Did the world really contradict what this node knows to be safe?"""
    if not isinstance(event, MessageReceived):
        return False
    if fatal.code is Code.INCONSISTENT_LEADER:
        another = before.role is Role.LEADER or before.leader_id not in (None, event.peer)
        return another and event.message.term == before.hard_state.term
    assert fatal.code is Code.INCONSISTENT_INDEX
    return any(
        0 <= index <= before.committed and before.terms[index] != term
        for index, term in claims(event.message).items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400))
def test_no_event_in_any_reachable_state_breaks_the_core(seed: int) -> None:
    rng = Random(seed)
    terms = sorted(rng.randint(1, 3) for _ in range(rng.randint(0, 6)))
    voters = rng.choice(("a", "ab", "abc", "abc", "abc"))
    node = Node(
        voters=(*voters,) if len(voters) > 1 else ("a",),
        terms=terms,
        term=3,
        committed=rng.randint(-1, len(terms) - 1),
        random_ms=rng.randint,
        fast_disk=rng.random() < 0.5,
        preferred=rng.choice(((), ("b",))),
        max_inflight_bytes=rng.choice((150, 1 << 20)),
    )
    chaos = Chaos(rng, node)
    peers_known = set(voters) - {"a"}
    if rng.random() < 0.5:
        node.become_leader()
    for _ in range(150):
        before = snapshot(node)
        if node.core.leadership and rng.random() < 0.15:
            event: Event = Tick()
            effects = node.append(rng.randint(1, 3))
        else:
            event = chaos.event()
            if isinstance(event, StreamUp | StreamDown | EntriesPushed) and event.peer not in peers_known:
                continue
            effects = node.step(event)
        core = node.core
        if node.fatal is not None:
            assert justified(node.fatal, event, before), (node.fatal, event, before)
            assert [e for e in effects if isinstance(e, Fatal)] == [node.fatal]
            assert node.pass_time(5000) == []
            return
        after = snapshot(node)
        assert (after.hard_state.term, after.committed) >= (before.hard_state.term, -1)
        assert after.committed >= before.committed
        assert after.terms[: before.committed + 1] == before.terms[: before.committed + 1]
        if after.hard_state.term == before.hard_state.term:
            assert before.hard_state.voted_for in (None, after.hard_state.voted_for)
        if after.hard_state != before.hard_state:
            persisted = [e.hard_state for e in effects if isinstance(e, PersistHardState)]
            assert persisted[-1] == after.hard_state
        assert (after.role_epoch > before.role_epoch) or after.role is before.role
        if before.role is Role.LEADER and after.role is Role.LEADER:
            assert after.terms[: len(before.terms)] == before.terms, "a leader only appends"
            assert after.hard_state == before.hard_state or after.hard_state.term > before.hard_state.term
        assert after.terms == sorted(after.terms)
        assert core.leadership is None or core.leadership.term == core.term
