"""Rules 1 to 8 of docs/guarantees.md, as far as the core keeps them; names carry the rule."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.effects import (
    AppendNoop,
    CommitAdvanced,
    PersistHardState,
    PushRange,
    ReadReady,
    ReadRefused,
    RoleChanged,
    SendMessage,
    StoreEntries,
    TransferEnded,
    TruncateLog,
)
from dledger.core.events import (
    EntriesStored,
    LeaderStreamLost,
    ReadIndexRequest,
    StreamDown,
    TransferRequest,
)
from dledger.core.log_view import LogView
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    PushResponse,
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.core.progress import PushState
from dledger.core.raft import RaftCore
from dledger.core.values import (
    Base,
    CoreConfig,
    HardState,
    Role,
    TermRun,
    VoteResult,
)
from dledger.errors import Code
from tests.core.driver import Node, compare, founded_by, heartbeat, lowest, push, vote_request
from tests.core.test_raft_paper import talk

# -- rule 1


def test_rule_1_a_follower_acknowledges_only_what_is_durable() -> None:
    node = Node(fast_disk=False)
    node.receive("b", compare(1, -1, -1))
    node.forget()
    node.receive("b", push(1, -1, -1, [1, 1]))
    assert node.all_sent(PushResponse) == []
    node.store()
    assert [m.index for m in node.all_sent(PushResponse)] == [1]


def test_rule_1_a_leader_counts_itself_only_once_durable() -> None:
    leader = Node(voters="ab", fast_disk=False).become_leader()
    leader.connect("b")
    leader.receive("b", leader.match("b", 0))
    leader.receive("b", leader.ack("b", 0))
    assert leader.core.committed_index == -1
    leader.store()
    assert leader.core.committed_index == 0


def test_rule_1_a_write_that_a_truncation_overtook_acknowledges_nothing() -> None:
    node = Node(fast_disk=False)
    node.receive("b", push(1, -1, -1, [1, 1, 1]))
    node.receive("b", push(2, 0, 1, [2, 2]))
    node.forget()
    node.step(EntriesStored(2, 1, 0))
    assert node.core.log.durable_index == -1
    node.step(EntriesStored(0, 1, 1))
    node.step(EntriesStored(2, 2, 1))
    assert [m.index for m in node.all_sent(PushResponse)] == [0, 2]


# -- rule 2


@pytest.mark.parametrize("role", ["voter", "candidate"])
def test_rule_2_term_and_vote_are_persisted_before_what_depends_on_them(role: str) -> None:
    node = Node()
    if role == "voter":
        node.receive("b", vote_request(7))
        first_send = next(i for i, e in enumerate(node.effects) if isinstance(e, SendMessage))
    else:
        node.win_pre_vote()
        first_send = next(
            i
            for i, e in enumerate(node.effects)
            if isinstance(e, SendMessage) and isinstance(e.message, VoteRequest) and not e.message.pre_vote
        )
    persists = [i for i, e in enumerate(node.effects) if isinstance(e, PersistHardState)]
    assert persists and max(persists) < first_send
    assert node.persisted[-1] == node.core.hard_state


def test_rule_2_a_higher_term_and_the_vote_in_it_are_one_write() -> None:
    node = Node()
    node.receive("b", vote_request(7))
    assert [(state.term, state.voted_for) for state in node.persisted] == [(7, "b")]
    assert [e.term for e in node.all_effects(RoleChanged)][-1] == 7
    node.forget()
    # Not so if an answer left in between: it depends on the first.
    node.receive("c", vote_request(8, pre_vote=True))
    node.receive("c", HeartbeatResponse(8, "c", 1, False))
    node.receive("c", vote_request(8, candidate="c"))
    assert [(state.term, state.voted_for) for state in node.persisted] == [(8, None), (8, "c")]


# -- rule 3


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(vote_request(3, 9, 9), VoteResult.REJECT_EXPIRED_VOTE_TERM, id="lower term"),
        pytest.param(vote_request(4, 9, 9), VoteResult.REJECT_ALREADY_VOTED, id="voted for another"),
        pytest.param(vote_request(4, 9, 9, "c"), VoteResult.ACCEPT, id="voted for this one"),
        pytest.param(vote_request(5, 1, 2), VoteResult.ACCEPT, id="equal log"),
        pytest.param(vote_request(5, 0, 2), VoteResult.REJECT_SMALL_LEDGER_END_INDEX, id="shorter log"),
        pytest.param(vote_request(5, 9, 1), VoteResult.REJECT_EXPIRED_LEDGER_TERM, id="older log"),
        pytest.param(
            vote_request(4, 1, 2, pre_vote=True), VoteResult.REJECT_EXPIRED_VOTE_TERM, id="pre-vote, no newer"
        ),
        pytest.param(vote_request(5, 1, 2, pre_vote=True), VoteResult.ACCEPT, id="pre-vote"),
        pytest.param(
            vote_request(5, 0, 2, pre_vote=True),
            VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
            id="pre-vote, shorter log",
        ),
    ],
)
def test_rule_3_how_a_vote_request_is_judged(request_: VoteRequest, expected: VoteResult) -> None:
    node = Node(terms=[1, 2], term=4, voted_for="c")
    [answer] = node.ask(request_.candidate_id, request_)
    assert isinstance(answer, VoteResponse)
    assert (answer.result, answer.round, answer.pre_vote) == (expected, request_.round, request_.pre_vote)
    if request_.pre_vote:
        assert node.persisted == []


@given(
    term=st.integers(0, 5),
    events=st.lists(st.sampled_from(["timeout", "grant", "refuse", "restart", "lose quorum"]), max_size=25),
)
@settings(max_examples=100, deadline=None)
def test_rule_3_every_candidacy_is_in_a_term_above_all_stored_ones(term: int, events: list[str]) -> None:
    node = Node(term=term)
    campaigned: list[int] = []
    led: list[int] = []
    for event in events:
        stored = max([term, *(state.term for state in node.persisted)])
        seen = len(node.all_sent(VoteRequest))
        match event:
            case "timeout":
                node.pass_time(2000)
            case "grant" | "refuse":
                asked = node.all_sent(VoteRequest)
                if asked:
                    result = VoteResult.ACCEPT if event == "grant" else VoteResult.REJECT_ALREADY_VOTED
                    node.answer_votes(asked[-1], result)
            case "restart":
                state = node.core.hard_state
                term = state.term
                node = Node(
                    term=state.term,
                    voted_for=state.voted_for,
                    incarnation=state.incarnation + 1,
                    terms=node.terms,
                )
                seen = 0
            case _:
                node.pass_time(5000)
        new = {m.term for m in node.all_sent(VoteRequest)[seen:] if not m.pre_vote}
        assert len(new) <= 1
        assert all(t > stored for t in new)
        campaigned += new
        if node.core.role is Role.LEADER and (not led or led[-1] != node.core.term):
            led.append(node.core.term)
    assert campaigned == sorted(set(campaigned))
    assert led == sorted(set(led))


def test_rule_3_a_leader_that_stepped_down_is_never_leader_of_that_term_again() -> None:
    node = Node().become_leader()
    node.pass_time(5000)
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 1)
    node.become_leader()
    assert node.core.term == 2


# -- rule 4


def test_rule_4_a_new_leader_appends_a_no_op_at_once() -> None:
    node = Node(terms=[1, 1]).become_leader()
    assert [e.term for e in node.all_effects(AppendNoop)] == [2]
    assert node.terms == [1, 1, 2]
    assert node.core.barrier_index == 2


def test_rule_4_a_read_waits_for_the_no_op_and_then_for_a_later_round() -> None:
    leader = Node(terms=[1]).become_leader()
    leader.connect("b")
    leader.receive("b", leader.match("b", 1))
    leader.step(ReadIndexRequest(1))
    leader.receive("b", leader.beat_back("b"))
    assert leader.all_effects(ReadReady) == []
    leader.receive("b", leader.ack("b", 1))
    assert leader.all_effects(ReadReady) == [], "a round that began before it was committed"
    leader.receive("b", leader.beat_back("b"))
    assert leader.all_effects(ReadReady) == [ReadReady(1, 1)]


def test_rule_4_an_answer_to_an_older_round_confirms_no_read() -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    before = leader.last_sent(Heartbeat).round
    leader.step(ReadIndexRequest(1))
    assert leader.last_sent(Heartbeat).round == before + 1
    for peer in "bc":
        leader.receive(peer, leader.beat_back(peer, before))
    assert leader.all_effects(ReadReady) == []
    leader.receive("c", leader.beat_back("c", before + 1))
    assert leader.all_effects(ReadReady) == [ReadReady(1, 0)]


def test_rule_4_a_read_is_of_what_was_committed_when_it_was_asked_for() -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    leader.step(ReadIndexRequest(1))
    leader.append()
    leader.store()
    leader.receive("b", leader.ack("b", 1))
    assert leader.core.committed_index == 1
    leader.receive("b", leader.beat_back("b"))
    assert leader.all_effects(ReadReady) == [ReadReady(1, 0)]


def test_rule_4_a_lost_round_is_made_good_by_the_next_heartbeat() -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    leader.step(ReadIndexRequest(1))
    leader.pass_time(leader.core.timing.heartbeat_ms)
    leader.receive("c", leader.beat_back("c"))
    assert leader.all_effects(ReadReady) == [ReadReady(1, 0)]


def test_rule_4_reads_are_refused_by_followers_and_when_leadership_ends() -> None:
    leader = Node().become_leader()
    leader.step(ReadIndexRequest(1))
    leader.pass_time(5000)
    leader.step(ReadIndexRequest(2))
    assert [(e.request_id, e.code) for e in leader.all_effects(ReadRefused)] == [
        (1, Code.NOT_LEADER),
        (2, Code.NOT_LEADER),
    ]


def test_rule_4_a_cluster_of_one_reads_without_asking_anybody() -> None:
    node = Node(voters="a").become_leader()
    node.step(ReadIndexRequest(1))
    assert node.all_effects(ReadReady) == [ReadReady(1, 0)]


# -- rule 5


def test_rule_5_a_pre_vote_changes_no_term_anywhere() -> None:
    asker, voter = Node("a"), Node("b")
    request = asker.become_candidate()
    assert request.pre_vote and request.term == 1
    [answer] = voter.ask("a", request)
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.ACCEPT
    assert asker.persisted == voter.persisted == []
    assert (asker.core.term, voter.core.term) == (0, 0)


def test_rule_5_an_isolated_node_asks_for_ever_without_raising_its_term() -> None:
    node = Node()
    for _ in range(100):
        node.pass_time(500)
    assert node.core.term == 0
    assert len(node.all_sent(VoteRequest)) > 50


@pytest.mark.parametrize("pre_vote", [True, False])
def test_rule_5_who_hears_a_leader_refuses_and_takes_no_term_unless_it_is_a_transfer(pre_vote: bool) -> None:
    node = Node()
    node.receive("c", heartbeat(1, "c"))
    [answer] = node.ask("b", vote_request(5, pre_vote=pre_vote))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert (answer.term, node.core.term) == (1, 1)
    [answer] = node.ask("b", vote_request(5, transfer=True))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.ACCEPT
    assert node.core.term == 5


def test_rule_5_stickiness_lasts_for_the_least_election_time_out() -> None:
    node = Node(random_ms=lambda low, high: high)
    node.receive("c", heartbeat(1, "c"))
    node.pass_time(node.core.timing.election_min_ms - 1)
    [answer] = node.ask("b", vote_request(2, pre_vote=True))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER
    node.pass_time(1)
    [answer] = node.ask("b", vote_request(2, pre_vote=True))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.ACCEPT


def test_rule_5_a_leader_without_a_majority_steps_down() -> None:
    leader = Node(voters="abcde").become_leader()
    least = leader.core.timing.election_min_ms
    leader.receive("b", leader.beat_back("b"))
    leader.pass_time(least - 1)
    assert leader.core.role is Role.LEADER
    leader.receive("c", leader.beat_back("c"))
    leader.pass_time(1)
    assert leader.core.role is Role.FOLLOWER
    assert leader.all_effects(RoleChanged)[-1].cause == "quorum-lost"


def test_rule_5_the_first_real_round_is_in_the_next_term_and_the_dead_are_not_waited_for() -> None:
    node = Node(term=6)
    request = node.become_candidate()
    before = node.now
    node.receive("b", VoteResponse(6, "b", VoteResult.ACCEPT, True, request.round))
    real = node.last_sent(VoteRequest)
    assert (real.pre_vote, real.term, node.now) == (False, 7, before)
    node.receive("b", VoteResponse(7, "b", VoteResult.ACCEPT, False, real.round))
    assert node.core.role is Role.LEADER


def test_rule_5_a_vote_that_comes_after_its_round_is_good_as_long_as_its_term() -> None:
    """Where terms and votes take long to become durable, all votes come late: nobody was ever elected."""
    node = Node(term=6)
    real = node.win_pre_vote()
    node.pass_time(node.core.timing.election_max_ms)
    asked = node.last_sent(VoteRequest)
    assert asked.pre_vote and asked.round > real.round
    node.receive("b", VoteResponse(7, "b", VoteResult.ACCEPT, False, real.round))
    assert (node.core.role, node.core.term) == (Role.LEADER, 7)
    # The answer to what was asked meanwhile changes nothing any more.
    node.receive("c", VoteResponse(7, "c", VoteResult.ACCEPT, True, asked.round))
    assert (node.core.role, node.core.term) == (Role.LEADER, 7)


def test_rule_5_a_vote_of_a_term_that_is_over_elects_nobody() -> None:
    node = Node(term=6)
    first = node.win_pre_vote()
    node.pass_time(node.core.timing.election_max_ms)
    second = node.win_pre_vote()
    assert (first.term, second.term) == (7, 8)
    node.receive("b", VoteResponse(7, "b", VoteResult.ACCEPT, False, first.round))
    node.receive("b", VoteResponse(8, "b", VoteResult.ACCEPT, False, first.round))
    assert node.core.role is Role.CANDIDATE
    node.receive("c", vote_request(9, 9, 9, candidate="c"))
    node.receive("b", VoteResponse(8, "b", VoteResult.ACCEPT, False, second.round))
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 9)


def test_rule_5_terms_without_a_leader_make_everybody_wait_longer_until_there_is_one() -> None:
    node = Node()

    def timeout_after(term: int) -> int:
        node.receive("b", vote_request(term))
        return node.core.election_deadline_ms - node.now

    least = node.core.timing.election_min_ms
    assert [timeout_after(term) for term in range(1, 9)] == [least * n for n in (1, 1, 1, 2, 4, 8, 8, 8)]
    node.receive("b", heartbeat(8, leader="b"))
    assert node.core.election_deadline_ms - node.now == least
    assert timeout_after(9) == least


def following(random_ms: object = lowest) -> Node:
    node = Node(random_ms=random_ms)  # type: ignore[arg-type]
    node.receive("b", compare(1, -1, -1, stream=4))
    node.forget()
    return node


def test_rule_5_shortcut_waits_up_to_100_ms_and_asks_while_still_follower() -> None:
    node = following(lambda low, high: high)
    node.step(LeaderStreamLost("b", 4))
    node.pass_time(99)
    assert not node.all_sent(VoteRequest)
    node.pass_time(1)
    assert [m.pre_vote for m in node.all_sent(VoteRequest)] == [True, True]
    assert node.core.role is Role.FOLLOWER and node.core.leader_id == "b"
    node.answer_votes(node.last_sent(VoteRequest), VoteResult.ACCEPT)
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 2)
    assert node.all_effects(RoleChanged)[-1].cause == "stream-lost"


@pytest.mark.parametrize("draw", [min, max])
def test_rule_5_shortcut_retries_three_times_after_20_to_60_ms_and_then_falls_back(draw: object) -> None:
    node = following(lambda low, high: draw((low, high)))  # type: ignore[operator]
    node.step(LeaderStreamLost("b", 4))
    asked: list[int] = []
    rounds = 0
    for _ in range(1000):
        node.pass_time(1)
        requests = node.all_sent(VoteRequest, "c")
        if node.core.role is not Role.FOLLOWER:
            break
        if len(requests) > rounds:
            rounds = len(requests)
            asked.append(node.now)
            node.answer_votes(requests[-1], VoteResult.REJECT_ALREADY_HAS_LEADER)
    assert len(asked) == 4
    gaps = {later - earlier for earlier, later in pairwise(asked)}
    assert gaps == {draw((20, 60))}  # type: ignore[operator]
    assert node.core.shortcut is None
    assert node.core.term == 1


def test_rule_5_shortcut_drops_stickiness_for_that_leader() -> None:
    node = following()
    node.step(LeaderStreamLost("b", 4))
    [answer] = node.ask("c", vote_request(2, candidate="c", pre_vote=True))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.ACCEPT


@pytest.mark.parametrize(
    "message",
    [
        heartbeat(1),
        compare(1, -1, -1, stream=5),
        push(1, -1, -1, [1], stream=5),
        Commit(1, "b", 5, -1),
        Goodbye(1, "b", 5, -1, "stop"),
        Truncate(1, "b", 5, -1, 0, 1),
    ],
    ids=lambda m: type(m).__name__,
)
def test_rule_5_shortcut_any_message_of_the_leader_cancels_it(message: Heartbeat | Append) -> None:
    node = following()
    node.step(LeaderStreamLost("b", 4))
    node.pass_time(1)
    request = node.last_sent(VoteRequest)
    node.receive("b", message)
    assert node.core.shortcut is None and node.core.candidacy is None
    node.answer_votes(request, VoteResult.ACCEPT)
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 1)
    [answer] = node.ask("c", vote_request(2, candidate="c", pre_vote=True))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (LeaderStreamLost("b", 3), "an older stream"),
        (LeaderStreamLost("c", 4), "not the leader"),
    ],
)
def test_rule_5_shortcut_only_for_the_leaders_newest_stream(event: LeaderStreamLost, why: str) -> None:
    node = following()
    node.step(event)
    assert node.core.shortcut is None, why


def test_rule_5_shortcut_is_not_taken_after_goodbye() -> None:
    node = following()
    node.receive("b", Goodbye(1, "b", 4, -1, "stop"))
    node.step(LeaderStreamLost("b", 4))
    assert node.core.shortcut is None
    node.receive("b", compare(1, -1, -1, stream=5))
    node.step(LeaderStreamLost("b", 5))
    assert node.core.shortcut is not None, "a newer stream said no goodbye"


def test_rule_5_a_leader_that_goes_says_goodbye_on_every_stream() -> None:
    leader = Node().become_leader()
    leader.connect("b", 1)
    leader.connect("c", 2)
    leader.step(StreamDown("c", 2))
    leader.receive("c", heartbeat(9, "c"))
    assert [(p, m.stream_id) for p, m in leader.sent if isinstance(m, Goodbye)] == [("b", 1)]


# -- rule 6


def test_rule_6_truncate_cuts_only_an_entry_of_another_term() -> None:
    node = Node(terms=[1, 1, 2, 2], term=3)
    node.receive("b", compare(3, 1, 1))
    node.receive("b", Truncate(3, "b", 1, -1, 2, 2))
    assert node.terms == [1, 1, 2, 2]
    assert node.last_sent(PushResponse).code is Code.SUCCESS
    node.receive("b", Truncate(3, "b", 1, -1, 4, 3))
    assert node.terms == [1, 1, 2, 2], "nothing is there"
    node.receive("b", Truncate(3, "b", 1, -1, 2, 3))
    assert node.terms == [1, 1]
    assert node.all_effects(TruncateLog) == [TruncateLog(1, 1)]


def test_rule_6_an_append_cuts_at_the_first_entry_of_another_term() -> None:
    node = Node(terms=[1, 1, 2, 2], term=4)
    node.receive("b", push(4, 0, 1, [1, 3, 3, 3]))
    assert node.terms == [1, 1, 3, 3, 3]
    assert node.all_effects(TruncateLog) == [TruncateLog(1, 1)]
    assert [e.first_index for e in node.all_effects(StoreEntries)] == [2]


@pytest.mark.parametrize(
    "message", [Truncate(3, "b", 1, -1, 1, 3), push(3, 0, 1, [3])], ids=["truncate", "append"]
)
def test_rule_6_truncation_of_what_is_committed_stops_the_node(message: Truncate | Append) -> None:
    node = Node(terms=[1, 1, 2], term=3, committed=1)
    node.receive("b", message)
    assert node.fatal is not None and node.fatal.code is Code.INCONSISTENT_INDEX
    assert node.terms == [1, 1, 2]
    assert node.pass_time(9999) == []


def test_rule_6_messages_of_an_older_leader_or_stream_change_nothing() -> None:
    node = Node(terms=[1, 1, 1], term=2)
    node.receive("b", heartbeat(2))
    for late in (Truncate(1, "c", 9, -1, 1, 9), push(1, 0, 1, [9], "c", stream=9)):
        [answer] = node.ask("c", late)
        assert isinstance(answer, PushResponse) and (answer.code, answer.term) == (Code.EXPIRED_TERM, 2)
    node.receive("b", compare(2, 0, 1, stream=7))
    assert node.ask("b", push(2, 0, 1, [2], stream=6)) == []
    assert node.terms == [1, 1, 1]


def test_rule_6_answers_of_older_streams_are_dropped() -> None:
    leader = Node(voters="ab").become_leader()
    leader.connect("b", 1)
    leader.connect("b", 2)
    leader.receive("b", leader.match("b", 0, 1))
    leader.receive("b", leader.ack("b", 0, 1))
    assert leader.core.committed_index == -1
    leader.receive("b", leader.ack("b", 0, 2))
    assert leader.core.committed_index == 0


def test_rule_6_equal_index_and_term_with_another_chain_is_fatal() -> None:
    node = Node(terms=[1, 1], term=1)
    node.receive("b", compare(1, 1, 1), chain_matches=False)
    assert node.fatal is not None and node.fatal.code is Code.DATA_DAMAGED
    assert node.all_sent(PushResponse) == []


def test_two_leaders_of_one_term_stop_the_node() -> None:
    node = Node().become_leader()
    node.receive("b", heartbeat(1))
    assert node.fatal is not None and node.fatal.code is Code.INCONSISTENT_LEADER
    follower = Node()
    follower.receive("b", heartbeat(1, "b"))
    follower.receive("c", heartbeat(1, "c"))
    assert follower.fatal is not None and follower.fatal.code is Code.INCONSISTENT_LEADER


# -- rule 7


def test_rule_7_equal_entries_are_skipped_and_acknowledged() -> None:
    node = Node(terms=[1, 1, 1], term=1)
    node.receive("b", push(1, 0, 1, [1, 1, 1, 1]))
    assert [(e.first_index, e.message.last_index) for e in node.all_effects(StoreEntries)] == [(3, 4)]
    node.forget()
    node.receive("b", push(1, 0, 1, [1, 1]))
    assert node.all_effects(StoreEntries) == []
    assert node.last_sent(PushResponse).code is Code.SUCCESS


@pytest.mark.parametrize(
    ("index", "term", "conflict"),
    [(9, 4, (-1, 5)), (4, 4, (3, 3)), (2, 2, (1, 0))],
)
def test_rule_7_a_conflict_is_answered_with_its_term_and_first_index(
    index: int, term: int, conflict: tuple[int, int]
) -> None:
    node = Node(terms=[1, 1, 1, 3, 3], term=5)
    [answer] = node.ask("b", compare(5, index, term))
    assert isinstance(answer, PushResponse)
    assert answer.code is Code.INCONSISTENT_STATE and answer.index == index
    assert (answer.conflict_term, answer.conflict_index) == conflict


def histories(rng: Random, terms: int) -> tuple[list[int], list[int]]:
    """Two logs as Raft can leave them: each term has one leader, whose log others hold a prefix of."""
    logs: list[list[int]] = [[], []]
    for term in range(1, terms + 1):
        leader = rng.randrange(2)
        logs[leader] += [term] * rng.randint(1, 4)
        if rng.random() < 0.6:  # the other one gets some of it, and loses what differs
            keep = rng.randint(0, len(logs[leader]))
            shared = logs[leader][:keep]
            other = logs[1 - leader]
            if other[:keep] != shared:
                logs[1 - leader] = shared
    return logs[0], logs[1]


@given(seed=st.integers(0, 1 << 32), terms=st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_rule_7_a_leader_finds_the_last_common_entry_in_one_step_per_term(seed: int, terms: int) -> None:
    mine, theirs = histories(Random(seed), terms)
    leader = Node("a", "ab", terms=mine, term=terms).become_leader()
    follower = Node("b", "ab", terms=theirs, term=terms)
    leader.connect("b")
    talk(leader, follower)
    assert follower.terms == leader.terms
    assert leader.core.committed_index == leader.core.log.end_index
    distinct = len({*mine, *theirs})
    assert len(leader.all_sent(Compare)) <= distinct + 2


# -- rule 8


@pytest.mark.parametrize(("checkpoint", "committed"), [(-1, 4), (3, 4), (5, 5), (7, 7), (9, 7)])
def test_rule_8_on_start_committed_is_the_checkpoint_within_the_log(checkpoint: int, committed: int) -> None:
    log = LogView(Base(4, 1, 0, 0), [TermRun(2, 5)], 7, founded_by("a", "b"))
    config = CoreConfig("a")
    core = RaftCore(config, HardState(2, None, 1), log, checkpoint, lowest)
    assert core.committed_index == core.log.verified_index == committed


def test_rule_8_a_follower_commits_no_more_than_it_shares_with_the_leader() -> None:
    node = Node(terms=[1, 1, 1, 1], term=2)
    node.receive("b", compare(2, 1, 1, committed=99))
    assert node.core.committed_index == 1
    node.receive("c", heartbeat(3, "c", committed=99))
    assert node.core.committed_index == 1
    assert [e.committed_index for e in node.all_effects(CommitAdvanced)] == [1]


# -- transfer, flow control, and what a leader drops


def test_a_transfer_waits_until_the_peer_has_everything_and_ends_when_it_leads() -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    leader.append()
    leader.store()
    leader.step(TransferRequest(7, "b"))
    assert leader.core.transferring_to == "b" and not leader.all_sent(TakeLeadership)
    leader.receive("b", leader.ack("b", 1))
    assert [(m.term, m.take_leadership_index) for m in leader.all_sent(TakeLeadership, "b")] == [(1, 1)]
    leader.receive("b", vote_request(2, 1, 1, transfer=True))
    assert leader.core.role is Role.FOLLOWER and not leader.all_effects(TransferEnded)
    leader.receive("b", heartbeat(2))
    assert [(e.request_id, e.code) for e in leader.all_effects(TransferEnded)] == [(7, Code.SUCCESS)]


@pytest.mark.parametrize("how", ["silent", "refuses", "another", "nobody", "step down before asking"])
def test_a_transfer_that_fails_is_answered_once_and_leaves_no_trace(how: str) -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    if how == "step down before asking":
        leader.append()
    leader.step(TransferRequest(7, "b"))
    timing = leader.core.timing
    if how == "silent":
        for _ in range(11):
            leader.receive("c", leader.beat_back("c"))
            leader.pass_time(timing.transfer_timeout_ms // 10)
    elif how == "refuses":
        leader.receive("b", TakeLeadershipResponse(1, "b", Code.FALL_BEHIND_TOO_MUCH))
    elif how == "another":
        leader.receive("c", heartbeat(2, "c"))
    elif how == "nobody":
        leader.receive("b", vote_request(2, 0, 1, transfer=True))
        leader.pass_time(timing.transfer_timeout_ms + timing.election_max_ms)
    else:
        leader.pass_time(5000)
    [ended] = leader.all_effects(TransferEnded)
    assert (ended.request_id, ended.code) == (7, Code.TAKE_LEADERSHIP_FAILED)
    assert leader.core.transferring_to is None and leader.core.successor_awaited is None


@pytest.mark.parametrize(
    ("to", "code"),
    [("x", Code.UNKNOWN_MEMBER), ("c", Code.FALL_BEHIND_TOO_MUCH), ("a", Code.SUCCESS)],
)
def test_a_transfer_to_somebody_unfit_is_refused_at_once(to: str, code: Code) -> None:
    leader = Node().become_leader()
    leader.connect_equal("b")
    leader.step(TransferRequest(7, to))
    assert [e.code for e in leader.all_effects(TransferEnded)] == [code]
    assert leader.core.transferring_to is None


def test_a_peer_takes_leadership_only_with_the_whole_log_and_from_its_leader() -> None:
    node = Node(terms=[1, 1], term=1)
    [answer] = node.ask("b", TakeLeadership(1, "b", 1))
    assert isinstance(answer, TakeLeadershipResponse) and answer.code is Code.NOT_FOLLOWER
    node.receive("b", heartbeat(1))
    [answer] = node.ask("b", TakeLeadership(1, "b", 2))
    assert isinstance(answer, TakeLeadershipResponse) and answer.code is Code.FALL_BEHIND_TOO_MUCH
    answer, request = node.ask("b", TakeLeadership(1, "b", 1))
    assert isinstance(answer, TakeLeadershipResponse) and answer.code is Code.SUCCESS
    assert isinstance(request, VoteRequest) and (request.transfer, request.term) == (True, 2)


def test_a_preferred_leader_is_sought_and_left_alone_for_a_while_when_it_fails() -> None:
    leader = Node(preferred=("b",)).become_leader()
    leader.connect_equal("b")
    asked = 0
    for _ in range(80):
        leader.receive("c", leader.beat_back("c"))
        leader.receive("b", leader.beat_back("b"))
        leader.pass_time(100)
        asked = len(leader.all_sent(TakeLeadership))
    assert asked == 1
    assert leader.core.transferring_to is None
    assert not leader.all_effects(TransferEnded), "nobody asked for it"


def test_rule_13_pushes_stop_at_the_limit_of_bytes_in_flight_and_go_on_with_the_answers() -> None:
    leader = Node(max_inflight_bytes=300).become_leader()
    leader.connect_equal("b")
    leader.forget()
    for _ in range(10):
        leader.append()
    assert [m.last_index for m in leader.all_sent(Append, "b")] == [1, 2, 3]
    leader.receive("b", leader.ack("b", 1))
    assert leader.all_effects(PushRange)[-1].last_index == 10


def test_an_acknowledgement_of_more_than_the_leader_has_is_not_believed() -> None:
    leader = Node(voters="ab").become_leader()
    leader.connect("b")
    leader.receive("b", leader.ack("b", 50))
    assert leader.core.committed_index == -1


def test_a_new_life_of_a_follower_must_acknowledge_anew() -> None:
    leader = Node(voters="ab", fast_disk=False).become_leader()
    leader.connect_equal("b")
    leader.connect("b", 2, incarnation=2)
    leader.store()
    assert leader.core.committed_index == -1
    leader.receive("b", leader.ack("b", 0, 2))
    assert leader.core.committed_index == 0


def test_role_epochs_grow_with_every_change_of_role_and_every_life() -> None:
    node = Node(incarnation=3)
    for _ in range(3):
        node.become_leader()
        node.pass_time(9000)
    epochs = [e.role_epoch for e in node.all_effects(RoleChanged)]
    assert epochs == sorted(epochs) and epochs[0] == 3 << 32
    assert Node(incarnation=4).core.role_epoch > epochs[-1]


def test_a_stream_that_ends_is_forgotten_only_if_it_is_the_newest() -> None:
    leader = Node().become_leader()
    leader.connect("b", 1)
    leader.connect("b", 2)
    leader.step(StreamDown("b", 1))
    assert leader.core.leadership is not None
    assert leader.core.leadership.progress["b"].state is PushState.COMPARE
    leader.step(StreamDown("b", 2))
    assert leader.core.leadership.progress["b"].state is PushState.DISCONNECTED


def test_rule_3_answers_to_an_older_round_are_dropped() -> None:
    node = Node()
    older = node.become_candidate()
    newer = node.become_candidate()
    assert newer.pre_vote and newer.round > older.round
    node.receive("b", VoteResponse(0, "b", VoteResult.ACCEPT, True, older.round))
    assert node.core.term == 0
    node.receive("b", VoteResponse(0, "b", VoteResult.ACCEPT, True, newer.round))
    assert node.core.term == 1
