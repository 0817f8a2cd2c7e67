"""Golden transcripts: what one node is told, and all that it asks for in return."""

from __future__ import annotations

from dledger.core.effects import (
    AppendNoop,
    CommitAdvanced,
    Effect,
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
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PositionRequest,
    PushResponse,
    PushType,
    VoteRequest,
    VoteResponse,
)
from dledger.core.raft import RaftCore
from dledger.core.values import NO_BASE, CoreConfig, HardState, TermRun, VoteResult
from dledger.errors import Code
from tests.core.driver import compare, founded_by, lowest, push


def message_text(message: Message) -> str:
    match message:
        case VoteRequest():
            kind = "pre-vote?" if message.pre_vote else "vote?"
            log = f"{message.ledger_end_term}/{message.ledger_end_index}"
            return f"{kind} term {message.term}, log ends {log}"
        case VoteResponse():
            return f"{'pre-vote' if message.pre_vote else 'vote'} {message.result.name}, term {message.term}"
        case Heartbeat():
            return f"heartbeat {message.round}, committed {message.committed_index}"
        case HeartbeatResponse():
            return f"heard {message.round}"
        case Compare():
            return f"compare {message.index_term}/{message.index}"
        case Append():
            return f"append {message.first_index}..{message.last_index}"
        case Commit():
            return f"commit {message.committed_index}"
        case PushResponse():
            return f"{message.type.name} {message.code.name} {message.index}"
        case PositionRequest():
            return "report?"
        case _:
            return type(message).__name__


def effect_text(effect: Effect) -> str:
    match effect:
        case PersistHardState(state):
            return f"persist term {state.term}, vote {state.voted_for}"
        case SendMessage(peer, message):
            return f"to {peer}: {message_text(message)}"
        case RoleChanged():
            return f"{effect.role.name} in term {effect.term} ({effect.cause})"
        case PushAppended(peer, message):
            return f"push what was appended, {message.first_index}..{message.last_index}, to {peer}"
        case PushRange():
            return f"push {effect.first_index}..{effect.last_index} to {effect.peer}"
        case AppendNoop():
            return "append the no-op"
        case CommitAdvanced(index):
            return f"committed {index}"
        case StoreEntries():
            return f"store {effect.first_index}..{effect.message.last_index}"
        case TruncateLog(index, generation):
            return f"truncate after {index}, generation {generation}"
        case _:
            return type(effect).__name__


def transcript(core: RaftCore, told: list[tuple[str, int, Event]]) -> list[str]:
    lines = ["start", *(f"  {effect_text(e)}" for e in core.start(0))]
    for words, now, event in told:
        lines.append(f"{now} ms: {words}")
        lines += [f"  {effect_text(e)}" for e in core.step(event, now)]
    return lines


def new_core(terms: list[TermRun], end: int) -> RaftCore:
    config = CoreConfig("a")
    state = HardState(terms[-1].term if terms else 0, None, 0)
    return RaftCore(config, state, LogView(NO_BASE, terms, end, founded_by("a", "b", "c")), -1, lowest)


def test_transcript_of_an_election_an_append_and_its_commit() -> None:
    def ack(index: int) -> MessageReceived:
        return MessageReceived("b", PushResponse(1, "b", 1, Code.SUCCESS, PushType.APPEND, index, 0, index))

    def matched(index: int) -> MessageReceived:
        return MessageReceived("b", PushResponse(1, "b", 1, Code.SUCCESS, PushType.COMPARE, index, 0, index))

    told: list[tuple[str, int, Event]] = [
        ("tick", 99, Tick()),
        ("tick", 100, Tick()),
        ("b grants pre-vote", 101, MessageReceived("b", VoteResponse(0, "b", VoteResult.ACCEPT, True, 1))),
        ("b grants the vote", 102, MessageReceived("b", VoteResponse(1, "b", VoteResult.ACCEPT, False, 2))),
        ("the no-op is appended", 102, EntriesAppended(0, 0, 1, 48)),
        ("the stream to b is up", 103, StreamUp("b", 1, 1)),
        ("b has nothing", 104, MessageReceived("b", PushResponse(
            1, "b", 1, Code.INCONSISTENT_STATE, PushType.COMPARE, 0, 0, -1, -1, 0))),
        ("b matches", 105, matched(-1)),
        ("the push has left", 105, EntriesPushed("b", 1, 0, 0, 48)),
        ("the no-op is durable here", 106, EntriesStored(0, 1, 0)),
        ("and at b", 107, ack(0)),
        ("settled", 107, CommitSettled()),
        ("a client's batch is appended", 108, EntriesAppended(1, 3, 1, 300)),
        ("b is faster", 109, ack(3)),
        ("durable here", 110, EntriesStored(3, 1, 0)),
        ("settled", 110, CommitSettled()),
    ]  # fmt: skip
    assert transcript(new_core([], -1), told) == [
        "start",
        "  FOLLOWER in term 0 (start)",
        "99 ms: tick",
        "  to b: report?",
        "  to c: report?",
        "100 ms: tick",
        "  CANDIDATE in term 0 (timeout)",
        "  to b: pre-vote? term 1, log ends -1/-1",
        "  to c: pre-vote? term 1, log ends -1/-1",
        "101 ms: b grants pre-vote",
        "  persist term 1, vote a",
        "  CANDIDATE in term 1 (timeout)",
        "  to b: vote? term 1, log ends -1/-1",
        "  to c: vote? term 1, log ends -1/-1",
        "102 ms: b grants the vote",
        "  LEADER in term 1 (won)",
        "  append the no-op",
        "  to b: heartbeat 1, committed -1",
        "  to c: heartbeat 1, committed -1",
        "102 ms: the no-op is appended",
        "103 ms: the stream to b is up",
        "  to b: compare 1/0",
        "104 ms: b has nothing",
        "  to b: compare -1/-1",
        "105 ms: b matches",
        "  push 0..0 to b",
        "105 ms: the push has left",
        "106 ms: the no-op is durable here",
        "107 ms: and at b",
        "  committed 0",
        "107 ms: settled",
        "  to b: commit 0",
        "108 ms: a client's batch is appended",
        "  push what was appended, 1..3, to b",
        "109 ms: b is faster",
        "110 ms: durable here",
        "  committed 3",
        "110 ms: settled",
        "  to b: commit 3",
    ]


def test_transcript_of_a_follower_whose_tail_is_replaced() -> None:
    told: list[tuple[str, int, Event]] = [
        ("b leads term 3 and compares", 10, MessageReceived("b", compare(3, 4, 3))),
        ("b steps back", 11, MessageReceived("b", compare(3, 1, 1))),
        ("b pushes", 12, MessageReceived("b", push(3, 1, 1, [3, 3], committed=1))),
        ("a write of before the cut ends", 13, EntriesStored(3, 2, 0)),
        ("the cut is done", 14, EntriesStored(1, 1, 1)),
        ("the new entries are durable", 15, EntriesStored(3, 3, 1)),
        ("b is told of the commit", 16, MessageReceived("b", Commit(3, "b", 1, 3))),
    ]
    core = new_core([TermRun(1, 0), TermRun(2, 2)], 3)
    assert transcript(core, told) == [
        "start",
        "  FOLLOWER in term 2 (start)",
        "10 ms: b leads term 3 and compares",
        "  persist term 3, vote None",
        "  FOLLOWER in term 3 (leader-seen)",
        "  to b: COMPARE INCONSISTENT_STATE 4",
        "11 ms: b steps back",
        "  to b: COMPARE SUCCESS 1",
        "  to b: APPEND SUCCESS 1",
        "12 ms: b pushes",
        "  truncate after 1, generation 1",
        "  store 2..3",
        "  committed 1",
        "13 ms: a write of before the cut ends",
        "14 ms: the cut is done",
        "15 ms: the new entries are durable",
        "  to b: APPEND SUCCESS 3",
        "16 ms: b is told of the commit",
        "  committed 3",
    ]
