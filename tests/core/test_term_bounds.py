"""Terms from peers may not jump beyond reason, nor use up the range; no history of elections is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.effects import MessageRefused, PersistHardState
from dledger.core.messages import (
    Append,
    Commit,
    Heartbeat,
    Message,
    PositionRequest,
    PositionResponse,
    PushResponse,
    PushType,
    TakeLeadership,
    TakeLeadershipResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.core.term_allowance import MAX_TERM_ADVANCE, TERMS_PER_MS, TermAllowance
from dledger.core.values import MAX_TERM, Role, TermRun, VoteResult
from dledger.errors import Code
from tests.core.driver import Node, heartbeat

BOMB = 2**63 - 2
_YEAR_MS = 365 * 86_400_000


def naming(term: int) -> list[Message]:
    """One message of each kind that a node acts on the term of."""
    return [
        Heartbeat(term, "b", 1, -1),
        VoteRequest(term, "b", 5, 1, pre_vote=False, transfer=False, round=1),
        VoteRequest(term, "b", 5, 1, pre_vote=False, transfer=True, round=1),
        VoteRequest(term, "b", 5, 1, pre_vote=True, transfer=False, round=1),
        VoteResponse(term, "b", VoteResult.REJECT_EXPIRED_VOTE_TERM, False, 1),
        Commit(term, "b", 1, -1),
        Append(term, "b", 1, -1, -1, -1, 0, 0, (TermRun(term, 0),)),
        PushResponse(term, "b", 1, Code.EXPIRED_TERM, PushType.APPEND, -1, 0, -1),
        TakeLeadership(term, "b", -1),
        TakeLeadershipResponse(term, "b", Code.EXPIRED_TERM),
        PositionResponse(term, "b", 0, -1, -1, rejoining=False),
    ]


@pytest.mark.parametrize("which", range(len(naming(0))))
def test_a_term_that_jumps_beyond_reason_changes_nothing_and_is_told(which: int) -> None:
    node = Node(term=7)
    effects = node.receive("b", naming(BOMB)[which])
    assert node.core.term == 7 and not any(isinstance(e, PersistHardState) for e in effects)
    assert node.core.leader_id is None and node.core.log.end_index == -1
    (refused,) = [e for e in effects if isinstance(e, MessageRefused)]
    assert refused.peer == "b" and str(BOMB) in refused.reason and "7" in refused.reason


@pytest.mark.parametrize("which", range(len(naming(0))))
def test_the_largest_legitimate_gap_is_acted_on(which: int) -> None:
    node = Node(term=7)
    effects = node.receive("b", naming(7 + MAX_TERM_ADVANCE)[which])
    assert not [e for e in effects if isinstance(e, MessageRefused)]
    pre_vote = which == 3
    assert node.core.term == (7 if pre_vote else 7 + MAX_TERM_ADVANCE)


def test_a_node_that_refused_a_bomb_still_follows_and_leads() -> None:
    node = Node()
    node.receive("b", heartbeat(BOMB))
    node.receive("b", heartbeat(3))
    assert node.core.term == 3 and node.core.leader_id == "b"
    node.become_leader()
    assert node.core.role is Role.LEADER and node.core.term == 4


def test_an_absurd_end_of_a_log_is_no_goal_of_a_rejoining_node() -> None:
    node = Node(term=7)
    node.core.hard_state = replace(node.core.hard_state, rejoining=True)
    node.pass_time(1000)
    round_ = node.last_sent(PositionRequest).round
    effects = node.receive("b", PositionResponse(7, "b", round_, BOMB, 9, rejoining=False))
    assert [e for e in effects if isinstance(e, MessageRefused)]
    assert "b" in node.core.rejoining.missing


def test_repeated_maximal_jumps_do_not_exhaust_the_range() -> None:
    """An attacker who takes whatever is allowed, every millisecond, for a thousand years."""
    allowance, term = TermAllowance(), 0
    for now_ms in range(0, 1000 * _YEAR_MS, _YEAR_MS // 50):
        jump = MAX_TERM_ADVANCE
        while jump:  # the largest that is admitted now
            if allowance.admits(jump, now_ms):
                allowance.spend(jump, now_ms)
                term += jump
            jump //= 2
    assert term < MAX_TERM // 64


def test_what_was_spent_comes_back_with_time() -> None:
    allowance = TermAllowance()
    allowance.spend(MAX_TERM_ADVANCE, 0)
    assert not allowance.admits(1, 0)
    assert allowance.admits(TERMS_PER_MS, 1)
    assert not allowance.admits(TERMS_PER_MS + 1, 1)
    assert allowance.admits(MAX_TERM_ADVANCE, 10 * _YEAR_MS)
    assert not allowance.admits(MAX_TERM_ADVANCE + 1, 10 * _YEAR_MS)


def test_what_has_come_back_is_spent_once() -> None:
    allowance = TermAllowance()
    allowance.spend(MAX_TERM_ADVANCE, 1)
    allowance.spend(10 * TERMS_PER_MS, 11)
    assert not allowance.admits(1, 11)
    assert allowance.admits(TERMS_PER_MS, 12) and not allowance.admits(TERMS_PER_MS + 1, 12)


def test_a_second_jump_in_the_same_moment_is_refused() -> None:
    """However large the first one was: else a peer would climb to the end of the range in no time."""
    node = Node(term=7)
    node.receive("b", heartbeat(7 + MAX_TERM_ADVANCE))
    effects = node.receive("b", heartbeat(8 + MAX_TERM_ADVANCE))
    assert [e for e in effects if isinstance(e, MessageRefused)]
    assert node.core.term == 7 + MAX_TERM_ADVANCE


def test_the_last_term_can_be_reached_and_none_beyond_it() -> None:
    node = Node(term=MAX_TERM - 1)
    effects = node.receive("b", heartbeat(MAX_TERM + 1))
    assert [e for e in effects if isinstance(e, MessageRefused)] and node.core.term == MAX_TERM - 1
    node.receive("b", heartbeat(MAX_TERM))
    assert node.core.term == MAX_TERM and node.core.leader_id == "b"


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 40)), max_size=20))
def test_the_allowance_is_never_exceeded(steps: list[tuple[int, int]]) -> None:
    allowance, now_ms, taken = TermAllowance(), 0, 0
    for advance, wait_ms in steps:
        now_ms += wait_ms
        if allowance.admits(advance, now_ms):
            allowance.spend(advance, now_ms)
            taken += advance
    assert taken <= MAX_TERM_ADVANCE + now_ms * TERMS_PER_MS


def test_elections_of_every_millisecond_stay_within_the_allowance() -> None:
    """Terms that follow one another as fast as they can are no jump, however many there are."""
    node = Node()
    for term in range(1, 2000):
        node.now += 1
        node.receive("b", VoteRequest(term, "b", 5, 1, False, False, term))
        assert node.core.term == term


def test_a_node_at_the_end_of_the_range_campaigns_no_more_and_lives() -> None:
    node = Node(term=MAX_TERM)
    for _ in range(5):
        node.pass_time(10_000)
    assert node.core.term == MAX_TERM and node.core.role is Role.FOLLOWER and node.fatal is None
    assert node.core.term_is_exhausted
    node.receive("b", heartbeat(MAX_TERM))  # a leader elected in the last term still leads it
    assert node.core.leader_id == "b"
