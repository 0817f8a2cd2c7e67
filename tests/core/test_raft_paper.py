"""One test per statement of section 5 of the Raft paper (extended version); names carry the section."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.core.effects import CommitAdvanced, StoreEntries, TruncateLog
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
from tests.core.driver import Node, compare, heartbeat, push, vote_request

MESSAGES_OF_TERM: dict[str, Callable[[int], Message]] = {
    "VoteRequest": lambda term: vote_request(term, 100, term - 1),
    "VoteResponse": lambda term: VoteResponse(term, "b", VoteResult.REJECT_EXPIRED_VOTE_TERM, False, 77),
    "pre-vote response": lambda term: VoteResponse(term, "b", VoteResult.REJECT_EXPIRED_VOTE_TERM, True, 1),
    "Heartbeat": heartbeat,
    "HeartbeatResponse": lambda term: HeartbeatResponse(term, "b", 1, False),
    "Compare": lambda term: compare(term, 100, term),
    "Truncate": lambda term: Truncate(term, "b", 1, -1, 100, term),
    "Append": lambda term: push(term, 100, term, [term]),
    "Commit": lambda term: Commit(term, "b", 1, -1),
    "Goodbye": lambda term: Goodbye(term, "b", 1, -1, "stop"),
    "PushResponse": lambda term: PushResponse(term, "b", 1, Code.EXPIRED_TERM, PushType.APPEND, -1, 0, -1),
    "TakeLeadership": lambda term: TakeLeadership(term, "b", 100),
    "TakeLeadershipResponse": lambda term: TakeLeadershipResponse(term, "b", Code.EXPIRED_TERM),
}
# What a live leader, or a follower of one, ignores for its term (docs/guarantees.md rule 5).
STICKY = {"VoteRequest"}


def in_role(role: Role) -> Node:
    node = Node(terms=[1, 1], term=4)
    if role is Role.CANDIDATE:
        node.win_pre_vote()
    elif role is Role.LEADER:
        node.become_leader()
        node.connect("b")
    node.forget()
    assert node.core.role is role
    return node


# -- 5.1


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
@pytest.mark.parametrize("kind", MESSAGES_OF_TERM)
def test_5_1_a_higher_term_in_any_message_is_adopted_and_makes_a_follower(kind: str, role: Role) -> None:
    node = in_role(role)
    message = MESSAGES_OF_TERM[kind](9)
    node.receive("b", message)
    if kind in STICKY and role is Role.LEADER:
        assert (node.core.term, node.core.role) == (5, Role.LEADER)
        return
    assert node.core.role is Role.FOLLOWER
    assert node.core.term == 9
    # A vote in the new term is written with it.
    assert node.persisted[0] == HardState(9, "b" if kind == "VoteRequest" else None, 1)
    leads = isinstance(message, Heartbeat | Compare | Truncate | Append | Commit | Goodbye)
    assert node.core.leader_id == ("b" if leads else None)


@pytest.mark.parametrize("kind", ["Heartbeat", "Compare", "Truncate", "Append", "Commit", "Goodbye"])
def test_5_1_a_set_term_is_refused_and_told_the_higher_one(kind: str) -> None:
    node = Node(terms=[1, 1], term=4)
    [answer] = node.ask("b", MESSAGES_OF_TERM[kind](3))
    assert isinstance(answer, HeartbeatResponse | PushResponse)
    assert answer.term == 4
    if isinstance(answer, PushResponse):
        assert answer.code is Code.EXPIRED_TERM
    else:
        assert not answer.success
    assert node.core.leader_id is None and not node.all_effects(StoreEntries)


@pytest.mark.parametrize("kind", MESSAGES_OF_TERM)
def test_5_1_answers_of_a_set_term_change_nothing(kind: str) -> None:
    node = in_role(Role.LEADER)
    node.receive("b", MESSAGES_OF_TERM[kind](3))
    assert (node.core.role, node.core.term, node.persisted) == (Role.LEADER, 5, [])


# -- 5.2


def test_5_2_a_node_starts_as_follower() -> None:
    assert Node().roles == [Role.FOLLOWER]


def test_5_2_a_follower_that_hears_its_leader_stays_follower() -> None:
    node = Node()
    for round_ in range(50):
        node.receive("b", heartbeat(1, round_=round_))
        node.pass_time(node.core.timing.election_min_ms - 1)
        assert node.core.role is Role.FOLLOWER


def test_5_2_a_follower_that_hears_nothing_stands_for_election() -> None:
    node = Node(random_ms=lambda low, high: high)
    node.receive("b", heartbeat(1))
    node.pass_time(node.core.timing.election_max_ms - 1)
    assert node.core.role is Role.FOLLOWER
    node.pass_time(1)
    assert node.core.role is Role.CANDIDATE


def test_5_2_a_candidate_raises_its_term_votes_for_itself_and_asks_everybody() -> None:
    node = Node(terms=[1, 2], term=2)
    node.win_pre_vote()
    assert node.core.hard_state == HardState(3, "a", 1)
    requests = [(peer, m) for peer, m in node.sent if isinstance(m, VoteRequest) and not m.pre_vote]
    assert [peer for peer, _ in requests] == ["b", "c"]
    assert all((m.term, m.ledger_end_index, m.ledger_end_term) == (3, 1, 2) for _, m in requests)


@pytest.mark.parametrize(("voters", "needed"), [("ab", 1), ("abc", 1), ("abcd", 2), ("abcde", 2)])
def test_5_2_a_majority_elects(voters: str, needed: int) -> None:
    node = Node(voters=voters)
    request = node.win_pre_vote()
    for count, peer in enumerate(voters[1:], 1):
        node.receive(peer, VoteResponse(1, peer, VoteResult.ACCEPT, False, request.round))
        assert (node.core.role is Role.LEADER) == (count >= needed)


def test_5_2_votes_are_given_once_in_a_term_first_come_first_served() -> None:
    node = Node()
    [granted] = node.ask("b", vote_request(1, candidate="b"))
    [refused] = node.ask("c", vote_request(1, candidate="c"))
    [again] = node.ask("b", vote_request(1, candidate="b"))
    results = [m.result for m in (granted, refused, again) if isinstance(m, VoteResponse)]
    assert results == [VoteResult.ACCEPT, VoteResult.REJECT_ALREADY_VOTED, VoteResult.ACCEPT]


def test_5_2_a_new_leader_makes_itself_known_at_once() -> None:
    node = Node().become_leader()
    assert {peer for peer, m in node.sent if isinstance(m, Heartbeat)} == {"b", "c"}


@pytest.mark.parametrize("term", [5, 6])
def test_5_2_a_candidate_follows_a_leader_of_its_term_or_a_newer_one(term: int) -> None:
    node = in_role(Role.CANDIDATE)
    node.receive("b", heartbeat(term))
    assert (node.core.role, node.core.leader_id, node.core.term) == (Role.FOLLOWER, "b", term)


def test_5_2_a_candidate_does_not_follow_a_leader_of_an_older_term() -> None:
    node = in_role(Role.CANDIDATE)
    node.receive("b", heartbeat(4))
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 5)


def test_5_2_a_split_vote_ends_with_a_new_round_in_a_new_term() -> None:
    node = Node()
    node.answer_votes(node.win_pre_vote(), VoteResult.REJECT_ALREADY_VOTED)
    assert node.core.role is Role.CANDIDATE
    node.answer_votes(node.become_candidate(), VoteResult.ACCEPT)
    assert node.last_sent(VoteRequest).term == 2


def test_5_2_time_outs_are_drawn_from_the_whole_range() -> None:
    asked: set[tuple[int, int]] = set()

    def draw(low: int, high: int) -> int:
        asked.add((low, high))
        return high

    node = Node(random_ms=draw)
    node.receive("b", heartbeat(1))
    timing = node.core.timing
    assert (timing.election_min_ms, timing.election_max_ms) in asked


# -- 5.3


def test_5_3_a_leader_pushes_what_it_appends_to_everybody() -> None:
    node = Node().become_leader()
    for peer in "bc":
        node.connect_equal(peer)
    node.forget()
    node.append(3)
    assert [
        (p, m.prev_index, m.first_index, m.last_index) for p, m in node.sent if isinstance(m, Append)
    ] == [
        ("b", 0, 1, 3),
        ("c", 0, 1, 3),
    ]


def test_5_3_an_entry_is_committed_once_a_majority_has_it_and_all_before_it_too() -> None:
    node = Node(terms=[1, 1]).become_leader()
    node.connect_equal("b")
    assert node.core.committed_index == 2
    node.append(2)
    node.store()
    assert node.core.committed_index == 2
    node.receive("b", node.ack("b", 4))
    assert node.core.committed_index == 4


def test_5_3_followers_learn_what_is_committed_up_to_what_they_share_with_the_leader() -> None:
    node = Node(terms=[1, 1, 1])
    node.receive("b", heartbeat(2, committed=2))
    assert node.core.committed_index == -1
    node.receive("b", compare(2, 1, 1, committed=2))
    assert node.core.committed_index == 1
    node.receive("b", push(2, 1, 1, [2, 2], committed=2))
    assert node.core.committed_index == 2


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "holds"),
    [(-1, -1, True), (0, 1, True), (1, 2, True), (1, 1, False), (2, 2, False), (5, 2, False)],
)
def test_5_3_entries_are_taken_only_after_an_equal_predecessor(
    prev_index: int, prev_term: int, holds: bool
) -> None:
    node = Node(terms=[1, 2], term=3)
    answers = node.ask("b", push(3, prev_index, prev_term, [3]))
    codes = [m.code for m in answers if isinstance(m, PushResponse)]
    assert codes[-1] is (Code.SUCCESS if holds else Code.INCONSISTENT_STATE)
    assert bool(node.all_effects(StoreEntries)) == holds


@pytest.mark.parametrize(
    "follower",
    [
        pytest.param([1, 1, 1, 4, 4, 5, 5, 6, 6], id="a: entries missing"),
        pytest.param([1, 1, 1, 4], id="b: many missing"),
        pytest.param([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6], id="c: one more"),
        pytest.param([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7], id="d: a newer term"),
        pytest.param([1, 1, 1, 4, 4, 4, 4], id="e: other and missing"),
        pytest.param([1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], id="f: two other terms"),
    ],
)
def test_5_3_figure_7_a_leader_makes_each_follower_equal_to_itself(follower: list[int]) -> None:
    leader = Node("a", terms=[1, 1, 1, 4, 4, 5, 5, 6, 6, 6], term=7).become_leader()
    node = Node("b", terms=follower, term=7)
    leader.connect("b")
    talk(leader, node)
    assert node.terms == leader.terms
    assert leader.core.committed_index == leader.core.log.end_index == 10
    assert node.core.committed_index == 10


def talk(leader: Node, follower: Node) -> None:
    """Carry messages both ways until there are none."""
    done_leader = done_follower = 0
    while done_leader < len(leader.sent) or done_follower < len(follower.sent):
        for peer, message in leader.sent[done_leader:]:
            if peer == follower.id:
                follower.receive(leader.id, message)
        done_leader = len(leader.sent)
        for peer, message in follower.sent[done_follower:]:
            if peer == leader.id:
                leader.receive(follower.id, message)
        done_follower = len(follower.sent)


def test_5_3_a_leader_never_changes_its_own_log_but_at_the_end() -> None:
    leader = Node("a", terms=[1, 1, 2], term=3).become_leader()
    before = leader.terms
    leader.connect("b")
    for conflict in range(2, -1, -1):
        leader.receive(
            "b",
            PushResponse(
                4, "b", 1, Code.INCONSISTENT_STATE, PushType.COMPARE, conflict + 1, 0, 9, 3, conflict
            ),
        )
    assert leader.terms == before
    assert not leader.all_effects(TruncateLog)


# -- 5.4


@pytest.mark.parametrize(
    ("mine", "end_index", "end_term", "granted"),
    [([1, 2], 1, 2, True), ([1, 2], 0, 2, False), ([1, 2], 5, 1, False), ([1, 2], 0, 3, True)],
)
def test_5_4_1_a_voter_refuses_whose_log_is_older_than_its_own(
    mine: list[int], end_index: int, end_term: int, granted: bool
) -> None:
    node = Node(terms=mine, term=3)
    [answer] = node.ask("b", vote_request(4, end_index, end_term))
    assert isinstance(answer, VoteResponse)
    assert (answer.result is VoteResult.ACCEPT) == granted
    assert (node.core.hard_state.voted_for == "b") == granted


def test_5_4_2_figure_8_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    leader = Node(terms=[1, 2], term=3, fast_disk=False).become_leader()
    leader.connect("b")
    leader.receive("b", leader.match("b", 1))
    leader.receive("b", leader.ack("b", 1))
    assert leader.core.log.durable_index == 1
    assert leader.core.committed_index == -1, "on a majority, but of term 2"
    leader.store()
    leader.receive("b", leader.ack("b", 2))
    assert leader.core.committed_index == 2, "committed together with the entry of the own term"


def test_5_4_3_a_committed_entry_is_never_deleted() -> None:
    node = Node(terms=[1, 1], term=1, committed=1)
    node.receive("b", push(2, 0, 1, [2]))
    assert node.fatal is not None and node.fatal.code is Code.INCONSISTENT_INDEX
    assert node.terms == [1, 1]


# -- 5.5


def test_5_5_repeated_pushes_change_nothing() -> None:
    node = Node()
    for _ in range(3):
        node.receive("b", push(1, -1, -1, [1, 1]))
    assert len(node.all_effects(StoreEntries)) == 1
    assert [a.index for a in node.all_sent(PushResponse)] == [1, 1, 1]


def test_5_5_a_restarted_node_keeps_its_term_and_vote() -> None:
    node = Node(term=4, voted_for="c", incarnation=2)
    [answer] = node.ask("b", vote_request(4))
    assert isinstance(answer, VoteResponse) and answer.result is VoteResult.REJECT_ALREADY_VOTED


# -- 5.6


def test_5_6_a_leader_beats_well_within_the_election_time_out() -> None:
    node = Node().become_leader()
    node.forget()
    beats = 0
    for _ in range(node.core.timing.election_min_ms // 10):
        node.pass_time(10)
        node.receive("b", HeartbeatResponse(1, "b", 1, True))
        beats = len(node.all_sent(Heartbeat, "b"))
    assert beats >= 4


def test_commits_are_reported_once_and_in_order() -> None:
    node = Node().become_leader()
    node.connect_equal("b")
    for index in range(1, 5):
        node.append()
        node.store()
        node.receive("b", node.ack("b", index))
        node.receive("b", node.ack("b", index))
    assert [e.committed_index for e in node.all_effects(CommitAdvanced)] == [0, 1, 2, 3, 4]
