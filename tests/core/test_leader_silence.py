"""Early pre-votes after a silence of the leader (docs/guarantees.md rule 5)."""

from __future__ import annotations

import pytest

from dledger.core.deadlines import next_tick_ms
from dledger.core.effects import RoleChanged
from dledger.core.messages import VoteRequest, VoteResponse
from dledger.core.values import Role, Timing, VoteResult
from tests.core.driver import Node, compare, heartbeat, highest, vote_request

TIMING = Timing(silence_ms=300)
#: The longest wait between the suspicion and the first pre-vote.
WAIT_MS = TIMING.shortcut_max_wait_ms


def following(timing: Timing = TIMING, pauses: int = 1, pause_ms: int = 150) -> Node:
    """A follower that has received messages from its leader `b` at these intervals."""
    node = Node(random_ms=highest, timing=timing)
    node.receive("b", compare(1, -1, -1, stream=4))
    for _ in range(pauses):
        node.pass_time(pause_ms)
        node.receive("b", heartbeat(1))
    node.forget()
    return node


def silence_until_pre_vote(node: Node) -> int:
    """Let the time pass until this node requests pre-votes; return the length of the leader's silence."""
    for silent_ms in range(1, TIMING.election_max_ms + 1):
        node.pass_time(1)
        if node.all_sent(VoteRequest):
            return silent_ms
    raise AssertionError("no pre-vote")


def pre_vote_of_c(node: Node) -> VoteResult:
    [answer] = node.ask("c", vote_request(2, candidate="c", pre_vote=True))
    assert isinstance(answer, VoteResponse)
    return answer.result


def test_a_silent_leader_is_replaced_before_the_normal_time_out() -> None:
    node = following()
    assert silence_until_pre_vote(node) == TIMING.silence_ms + WAIT_MS
    request = node.last_sent(VoteRequest)
    assert request.pre_vote and (node.core.role, node.core.term) == (Role.FOLLOWER, 1)
    node.answer_votes(request, VoteResult.ACCEPT)
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 2)
    assert node.all_effects(RoleChanged)[-1].cause == "leader-silent"


def test_a_voter_refuses_until_its_own_leader_has_been_silent_for_as_long() -> None:
    node = following()
    node.pass_time(TIMING.silence_ms - 1)
    assert pre_vote_of_c(node) is VoteResult.REJECT_ALREADY_HAS_LEADER
    node.pass_time(1)
    assert pre_vote_of_c(node) is VoteResult.ACCEPT


def test_a_node_that_stood_still_first_processes_the_messages_that_are_waiting() -> None:
    node = following()
    node.pass_time(5 * TIMING.silence_ms // 2)
    node.pass_time(WAIT_MS // 2 - 1)
    assert not node.all_sent(VoteRequest)
    node.receive("b", heartbeat(1))
    node.pass_time(TIMING.silence_ms - 1)
    assert not node.all_sent(VoteRequest) and node.core.shortcut is None
    assert pre_vote_of_c(node) is VoteResult.REJECT_ALREADY_HAS_LEADER


@pytest.mark.parametrize(("pause_ms", "bound_ms"), [(150, 300), (200, 400), (499, 998), (500, None)])
def test_the_bound_is_twice_the_longest_pause_and_ends_at_the_normal_time_out(
    pause_ms: int, bound_ms: int | None
) -> None:
    node = following(pause_ms=pause_ms)
    assert node.core.silence.is_bounded == (bound_ms is not None)
    expected = TIMING.election_max_ms if bound_ms is None else bound_ms + WAIT_MS
    assert silence_until_pre_vote(node) == expected


def test_a_long_pause_is_forgotten_after_one_to_two_minutes() -> None:
    node = following(pause_ms=450)
    bounds = []
    for _ in range(800):
        node.pass_time(150)
        node.receive("b", heartbeat(1))
        bounds.append(node.core.silence.bound_ms)
    assert bounds[60_000 // 150 - 10] == 900 and bounds[-1] == 300


@pytest.mark.parametrize(("silent_ms", "bound_ms"), [(450, 900), (1_000, 300)])
def test_a_leader_that_was_replaced_although_it_was_only_slow_raises_the_bound(
    silent_ms: int, bound_ms: int
) -> None:
    node = following()
    silence = silence_until_pre_vote(node)
    node.receive("c", heartbeat(2, "c"))
    node.pass_time(silent_ms - silence)
    node.receive("b", heartbeat(1))
    assert node.core.silence.bound_ms == bound_ms


def test_without_a_majority_the_follower_waits_for_the_normal_time_out() -> None:
    node = following()
    for _ in range(TIMING.election_max_ms - 1):
        node.pass_time(1)
    assert len(node.all_sent(VoteRequest, "c")) == 1 + TIMING.shortcut_retries
    assert node.core.role is Role.FOLLOWER
    node.pass_time(1)
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 1)


def test_without_a_limit_for_silence_only_the_normal_time_out_applies() -> None:
    assert silence_until_pre_vote(following(Timing(silence_ms=0))) == TIMING.election_max_ms


def test_the_next_tick_is_due_when_the_silence_becomes_suspicious() -> None:
    node = following()
    assert next_tick_ms(node.core) == node.now + TIMING.silence_ms
    node.pass_time(TIMING.silence_ms)
    assert next_tick_ms(node.core) == node.now + WAIT_MS
