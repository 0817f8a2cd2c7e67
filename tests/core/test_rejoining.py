"""A node that lost its log says when it has all that it must have, also on an idle cluster (rule 11)."""

from __future__ import annotations

from dataclasses import replace

from dledger.core.messages import (
    PositionRequest,
    PositionResponse,
    PushResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import VoteResult
from tests.core.driver import Node, compare, heartbeat, push, vote_request


def rejoining_node() -> Node:
    """An empty node "a" that the leader "b" of term 3 pushes to."""
    node = Node(term=0)
    node.core.hard_state = replace(node.core.hard_state, rejoining=True)
    node.pass_time(node.core.timing.heartbeat_ms)
    assert {peer for peer, m in node.sent if isinstance(m, PositionRequest)} == {"b", "c"}
    node.receive("b", heartbeat(3))
    node.receive("b", compare(3, -1, -1))
    return node


def position(node: Node, peer: str, end_term: int, end_index: int) -> None:
    round_ = node.core.vote_round  # nothing was voted on since
    node.receive(peer, PositionResponse(3, peer, round_, end_term, end_index))


def test_rule_11_what_it_stores_does_not_count_before_every_member_has_answered() -> None:
    node = rejoining_node()
    node.receive("b", push(3, -1, -1, [3, 3, 3]))
    position(node, "b", 3, 2)
    assert all(not m.counts and not m.awaits_new_term for m in node.all_sent(PushResponse))
    assert node.core.rejoining.missing == ("c",)


def test_rule_11_the_last_answer_alone_tells_the_leader_that_a_new_term_is_awaited() -> None:
    node = rejoining_node()
    node.receive("b", push(3, -1, -1, [3, 3, 3]))
    position(node, "b", 3, 2)
    node.forget()
    position(node, "c", 3, 2)
    said = node.last_sent(PushResponse)
    assert (said.index, said.counts, said.awaits_new_term) == (2, False, True)
    assert node.core.hard_state.barred_term == 3


def test_rule_11_it_waits_for_the_greatest_end_that_it_heard_of() -> None:
    node = rejoining_node()
    position(node, "b", 3, 2)
    position(node, "c", 3, 1)
    assert node.core.hard_state.rejoining
    node.receive("b", push(3, -1, -1, [3, 3]))
    assert node.core.hard_state.rejoining
    node.receive("b", push(3, 1, 3, [3]))
    node.pass_time(1)
    assert not node.core.hard_state.rejoining
    assert node.last_sent(PushResponse).awaits_new_term


def test_rule_11_it_waits_for_an_image_of_what_is_before_its_log() -> None:
    node = rejoining_node()
    node.core.lacks_image = True
    node.receive("b", push(3, -1, -1, [3, 3, 3]))
    position(node, "b", 3, 2)
    position(node, "c", 3, 2)
    assert node.core.hard_state.rejoining
    node.core.lacks_image = False
    node.pass_time(1)
    assert not node.core.hard_state.rejoining


def test_rule_11_it_waits_for_the_end_that_its_own_log_is_known_to_have_had() -> None:
    node = rejoining_node()
    node.core.hard_state = replace(node.core.hard_state, floor_term=3, floor_index=2)
    node.receive("b", push(3, -1, -1, [3, 3]))
    position(node, "b", 3, 1)
    position(node, "c", 3, 1)
    assert node.core.hard_state.rejoining
    node.receive("b", push(3, 1, 3, [3]))
    node.pass_time(1)
    assert not node.core.hard_state.rejoining


def test_rule_11_what_a_member_acknowledged_before_it_lost_its_log_counts_no_more() -> None:
    leader = Node(voters=("a", "b", "c", "d", "e")).become_leader()
    for peer in "bcd":
        leader.connect_equal(peer)
    committed = leader.core.committed_index
    leader.append()
    leader.store()
    end = leader.core.log.end_index
    leader.receive("b", leader.ack("b", end))
    leader.receive("b", replace(leader.beat_back("b"), counts=False))
    leader.receive("c", leader.ack("c", end))
    assert leader.core.committed_index == committed
    leader.receive("d", leader.ack("d", end))
    assert leader.core.committed_index == end


def test_rule_11_it_does_not_vote_in_a_term_in_which_a_former_life_may_have() -> None:
    node = Node(term=7)
    node.core.hard_state = replace(node.core.hard_state, barred_term=9)
    for term, result in ((9, VoteResult.REJECT_NOT_READY), (10, VoteResult.ACCEPT)):
        node.receive("b", vote_request(term))
        assert node.last_sent(VoteResponse).result is result


def test_rule_11_it_grants_no_pre_vote_for_a_term_in_which_it_would_not_vote() -> None:
    """A candidate that counts on such votes stands in vain, and its term disturbs whoever leads."""
    node = Node(term=7)
    node.core.hard_state = replace(node.core.hard_state, barred_term=9)
    for term, result in ((9, VoteResult.REJECT_NOT_READY), (10, VoteResult.ACCEPT)):
        node.receive("b", vote_request(term, pre_vote=True))
        said = node.last_sent(VoteResponse)
        assert said.pre_vote and said.result is result
    assert node.core.term == 7 and node.core.hard_state.voted_for is None


def answer(node: Node, peer: str, end_term: int, end_index: int, *, rejoining: bool = False) -> None:
    """To what the node asked last."""
    round_ = node.last_sent(PositionRequest).round
    node.receive(peer, PositionResponse(3, peer, round_, end_term, end_index, rejoining))


def five() -> Node:
    """As `rejoining_node`, one of five."""
    node = Node(term=0, voters=("a", "b", "c", "d", "e"))
    node.core.hard_state = replace(node.core.hard_state, rejoining=True)
    node.pass_time(node.core.timing.heartbeat_ms)
    return node


def test_rule_11_a_member_that_lost_its_log_too_is_not_waited_for_while_a_majority_remembers() -> None:
    node = five()
    for peer in "bcd":
        answer(node, peer, -1, -1)
    assert node.core.rejoining.missing == ("e",)
    answer(node, "e", -1, -1, rejoining=True)
    # What was said before that loss may be older than what this node did for the lost one.
    assert node.core.rejoining.missing == ("b", "c", "d")
    node.pass_time(1)
    for peer in "bcd":
        answer(node, peer, -1, -1)
    assert not node.core.hard_state.rejoining


def test_rule_11_answers_of_the_round_before_are_not_counted() -> None:
    node = five()
    first = node.last_sent(PositionRequest).round
    answer(node, "e", -1, -1, rejoining=True)
    node.pass_time(1)
    for peer in "bcd":
        node.receive(peer, PositionResponse(3, peer, first, -1, -1))
    assert node.core.rejoining.missing == ("b", "c", "d")


def test_rule_11_when_a_majority_has_lost_its_logs_all_wait() -> None:
    node = five()
    for peer in "de":
        answer(node, peer, -1, -1, rejoining=True)
        node.pass_time(1)
    for peer in "bc":
        answer(node, peer, -1, -1)
    assert node.core.hard_state.rejoining and node.core.rejoining.missing == ("d", "e")
    answer(node, "d", -1, -1)  # it is back meanwhile
    assert not node.core.hard_state.rejoining


def test_rule_11_in_a_cluster_of_three_two_that_lost_their_logs_wait_for_each_other() -> None:
    node = rejoining_node()
    answer(node, "b", -1, -1, rejoining=True)
    node.pass_time(1)
    answer(node, "c", -1, -1)
    assert node.core.hard_state.rejoining and node.core.rejoining.missing == ("b",)


def test_rule_11_a_node_that_is_rejoining_says_so_when_it_is_asked() -> None:
    node = rejoining_node()
    node.receive("c", PositionRequest(3, "c", 9))
    said = node.last_sent(PositionResponse)
    assert said.rejoining and said.round == 9


def test_rule_11_a_node_stands_in_no_term_in_which_a_former_life_may_have_voted() -> None:
    node = Node(term=7)
    node.core.hard_state = replace(node.core.hard_state, barred_term=9)
    asked = node.become_candidate()
    for peer in ("b", "c"):
        node.receive(peer, VoteResponse(7, peer, VoteResult.ACCEPT, True, asked.round))
    stands = node.last_sent(VoteRequest)
    assert (asked.pre_vote, asked.term) == (True, 10) and (stands.pre_vote, stands.term) == (False, 10)
    assert node.core.term == 10 and not node.core.hard_state.is_barred
