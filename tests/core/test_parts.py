"""Progress, ReadIndexQueue, Candidacy and the comparison of logs, each alone."""

from __future__ import annotations

from random import Random

import pytest

from dledger.core.election import Candidacy, compare_logs
from dledger.core.progress import FollowerProgress, PushState
from dledger.core.read_index import ReadIndexQueue
from dledger.core.values import Membership, VoteResult
from tests.core.driver import log_of, vote_request

# -- Progress


def appending(match: int = -1) -> FollowerProgress:
    p = FollowerProgress("b", 0)
    p.stream_up(1, 7)
    p.probe_index = match
    p.matched(match)
    return p


def test_inflight_bytes_are_what_was_pushed_and_not_acknowledged() -> None:
    rng = Random(3)
    p, pushed, acked = appending(), [], -1
    for _ in range(300):
        if rng.random() < 0.5:
            last = p.next_index + rng.randint(0, 4)
            size = rng.randint(1, 500)
            p.pushed(last, size, 0)
            pushed.append((last, size))
        else:
            index = rng.randint(-1, p.next_index - 1)
            assert p.acknowledged(index, 0) == (index > acked)
            acked = max(acked, index)
            pushed = [one for one in pushed if one[0] > index]
        assert p.inflight_bytes == sum(size for _, size in pushed)
        assert p.match_index == acked


def test_a_new_stream_begins_with_a_probe_and_keeps_the_match_of_the_same_life() -> None:
    p = appending(4)
    p.pushed(9, 100, 0)
    p.acknowledged(9, 0)
    p.pushed(12, 100, 0)
    p.stream_up(2, 7)
    assert (p.state, p.match_index, p.inflight_bytes, p.loading) == (PushState.COMPARE, 9, 0, False)


def test_rule_11_a_new_incarnation_makes_the_leader_forget_what_was_acknowledged() -> None:
    p = appending(4)
    p.acknowledged(4, 0)
    p.stream_up(2, 8)
    assert p.match_index == -1


def test_a_stream_id_never_repeats() -> None:
    p = appending()
    with pytest.raises(AssertionError):
        p.stream_up(1, 7)


# -- ReadIndexQueue


def test_rule_4_a_round_that_began_before_the_request_confirms_nothing() -> None:
    queue = ReadIndexQueue()
    queue.add(1, 10, last_round=5)
    assert queue.needs_round(5)
    assert queue.confirmed(5) == []
    assert not queue.needs_round(6)
    assert [(r.request_id, r.read_index) for r in queue.confirmed(6)] == [(1, 10)]


def test_rule_4_reads_that_come_while_a_round_is_out_wait_for_the_next_and_share_it() -> None:
    queue = ReadIndexQueue()
    queue.add(1, 10, last_round=0)
    queue.add(2, 11, last_round=1)
    queue.add(3, 12, last_round=1)
    assert not queue.needs_round(1), "one round is out for reads at a time"
    assert [r.request_id for r in queue.confirmed(1)] == [1]
    assert queue.needs_round(1)
    assert [r.request_id for r in queue.confirmed(2)] == [2, 3]


def test_a_leadership_that_ends_gives_back_all_its_reads() -> None:
    queue = ReadIndexQueue()
    queue.before_noop += [1, 2]
    queue.add(3, 0, 0)
    assert queue.drain() == [1, 2, 3]
    assert queue.drain() == []


# -- Candidacy


def candidacy(*voters: str) -> Candidacy:
    return Candidacy(Membership(voters), False, False, 5, 1, "timeout", 100)


@pytest.mark.parametrize(
    ("size", "granted", "refused", "won", "lost"),
    [
        (1, 1, 0, True, False),
        (2, 1, 0, False, False),
        (2, 1, 1, False, True),
        (3, 2, 0, True, False),
        (3, 1, 1, False, False),
        (3, 1, 2, False, True),
        (4, 2, 1, False, False),
        (4, 2, 2, False, True),
        (5, 3, 2, True, False),
        (5, 2, 2, False, False),
        (5, 2, 3, False, True),
    ],
)
def test_a_round_is_decided_as_soon_as_it_can_be(
    size: int, granted: int, refused: int, won: bool, lost: bool
) -> None:
    voters = "abcde"[:size]
    round_ = candidacy(*voters)
    for voter in voters[:granted]:
        round_.count(voter, VoteResult.ACCEPT)
        round_.count(voter, VoteResult.ACCEPT)
    for voter in voters[granted : granted + refused]:
        round_.count(voter, VoteResult.REJECT_ALREADY_VOTED)
    assert (round_.won, round_.lost) == (won, lost)


def test_a_vote_of_a_stranger_does_not_count() -> None:
    round_ = candidacy("a", "b", "c")
    for voter in ("a", "x", "y"):
        round_.count(voter, VoteResult.ACCEPT)
    assert not round_.won


@pytest.mark.parametrize(
    ("candidate", "voter", "expected"),
    [
        ([], [], VoteResult.ACCEPT),
        ([1], [], VoteResult.ACCEPT),
        ([], [1], VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        ([1, 1], [1, 1], VoteResult.ACCEPT),
        ([1], [1, 1], VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        ([1, 1, 1], [1, 1], VoteResult.ACCEPT),
        ([2], [1, 1, 1], VoteResult.ACCEPT),
        ([1, 1, 1], [2], VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        ([1, 1, 1], [1, 2], VoteResult.REJECT_EXPIRED_LEDGER_TERM),
    ],
)
def test_rule_3_logs_compare_by_the_term_of_their_last_entry_then_by_its_index(
    candidate: list[int], voter: list[int], expected: VoteResult
) -> None:
    term = candidate[-1] if candidate else -1
    assert compare_logs(vote_request(9, len(candidate) - 1, term), log_of(voter)) is expected
