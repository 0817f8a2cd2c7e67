"""A node that sleeps until `next_tick_ms` does the same, at the same times, as one that is ticked every ms.

One test for each reason to wake: what is expected of that state happens, and no tick is in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from dledger.core.deadlines import next_tick_ms
from dledger.core.effects import Effect, RoleChanged, SendMessage, TransferEnded
from dledger.core.events import FitnessChanged, LeaderStreamLost, Tick, TransferRequest
from dledger.core.messages import (
    Compare,
    Heartbeat,
    Message,
    PositionRequest,
    PositionResponse,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import Role, Timing, VoteResult
from dledger.errors import Code
from tests.core.driver import Node, compare, highest, lowest, vote_request

Meanwhile = Callable[[Node, int], None]
Expected = Callable[[Effect], bool]
RandomMs = Callable[[int, int], int]


@dataclass
class Case:
    """What a node is brought into, what others do meanwhile, and what is to happen how many ms later."""

    begin: Callable[[], Node]
    happens: Expected
    at_ms: Sequence[int]
    meanwhile: Meanwhile = lambda node, ms: None
    as_often_as_ever: bool = False  # ticks in vain are meant
    for_ms: int = 5000


def observe(case: Case, *, sleeps: bool) -> tuple[list[tuple[int, Effect]], list[int], Node]:
    """What happens and when, and the ticks that were in vain."""
    node = case.begin()
    began, seen, in_vain = node.now, list[tuple[int, Effect]](), list[int]()
    node.forget()
    for ms in range(1, case.for_ms + 1):
        node.now = began + ms
        case.meanwhile(node, ms)
        due_ms = next_tick_ms(node.core)
        if not sleeps or due_ms <= node.now:
            effects = node.step(Tick())
            if not effects and next_tick_ms(node.core) == due_ms:
                in_vain.append(ms)
        seen += [(ms, effect) for effect in node.effects]
        node.forget()
    return seen, in_vain, node


def sends(kind: type[Message], to: str = "b") -> Expected:
    return lambda effect: (
        isinstance(effect, SendMessage) and effect.peer == to and isinstance(effect.message, kind)
    )


def becomes(role: Role, cause: str) -> Expected:
    return lambda effect: isinstance(effect, RoleChanged) and (effect.role, effect.cause) == (role, cause)


def is_more_than_a_report(effect: Effect) -> bool:
    """Reports of directories are requested by all nodes, whatever else they do."""
    return not isinstance(effect, SendMessage) or not isinstance(effect.message, PositionRequest)


def ends_transfer(effect: Effect) -> bool:
    return isinstance(effect, TransferEnded)


def beats(*peers: str) -> Meanwhile:
    """These answer each heartbeat at the next ms."""

    def answer(node: Node, ms: int) -> None:
        leadership = node.core.leadership
        if leadership is None or node.now != leadership.next_heartbeat_ms - node.core.timing.heartbeat_ms + 1:
            return
        for peer in peers:
            node.receive(peer, node.beat_back(peer, leadership.round))

    return answer


def leader(*preferred: str, random_ms: RandomMs = lowest) -> Node:
    """Leads for 70 ms, with its no-op committed: other deadlines are none of a heartbeat."""
    node = Node(preferred=preferred, random_ms=random_ms).become_leader()
    for peer in ("b", "c"):
        node.connect_equal(peer)
        node.receive(peer, node.ack(peer, node.core.log.end_index))
    node.pass_time(70)
    return node


def follower(random_ms: RandomMs = lowest, timing: Timing | None = None) -> Node:
    node = Node(random_ms=random_ms, timing=timing)
    node.receive("b", compare(1, -1, -1, stream=4))
    return node


def follower_of_a_lost_stream() -> Node:
    node = follower(highest)
    node.step(LeaderStreamLost("b", 4))
    return node


def candidate(*, pre_vote: bool) -> Node:
    node = Node()
    if pre_vote:
        node.become_candidate()
    else:
        node.win_pre_vote()
    return node


def leader_that_hands_over() -> Node:
    """b lacks an entry, so it is not asked."""
    node = leader()
    node.append()
    node.step(TransferRequest(7, "b"))
    return node


def leader_of_a_follower_with_damage() -> Node:
    node = leader()
    node.append()
    index = node.core.log.end_index
    node.receive("b", replace(node.ack("b", index), code=Code.DATA_DAMAGED))
    return node


def leader_with_a_rejoined_follower() -> Node:
    """b has all of the log and waits for a term that it counts in."""
    node = leader()
    index = node.core.log.end_index
    node.receive("b", replace(node.ack("b", index), counts=False, awaits_new_term=True))
    return node


def leader_that_one_answers() -> Node:
    node = leader()
    node.receive("b", node.beat_back("b"))
    return node


def predecessor(*, may_lead: bool = True, random_ms: RandomMs = lowest) -> Node:
    """b was asked to take over, and campaigns."""
    node = leader(random_ms=random_ms)
    node.step(TransferRequest(7, "b"))
    assert node.all_sent(TakeLeadership)
    node.pass_time(33)
    log = node.core.log
    node.receive("b", vote_request(2, log.end_index, log.end_term, transfer=True))
    assert node.core.role is Role.FOLLOWER and node.core.successor_awaited
    node.step(FitnessChanged(may_lead, has_room=True))
    return node


def without(node: Node) -> Node:
    """Its program or its disk keeps it from leading from now on."""
    node.step(FitnessChanged(may_lead=False, has_room=True))
    return node


def votes_late(*, pre_vote: bool) -> Meanwhile:
    """What a candidacy that is over is granted has no effect."""

    def vote(node: Node, ms: int) -> None:
        if ms == 5:
            term, round_ = node.core.term, node.core.vote_round
            node.receive("b", VoteResponse(term, "b", VoteResult.ACCEPT, pre_vote, round_))

    return vote


def c_campaigns(node: Node, ms: int) -> None:
    """It is given a vote, and so some time to win."""
    if ms == 1500:
        log = node.core.log
        node.receive("c", vote_request(node.core.term + 1, log.end_index, log.end_term, "c"))


def refused_candidate() -> Node:
    """By all who hear a leader. A copy of the request may reach them when they do not hear it any more."""
    node = candidate(pre_vote=False)
    node.answer_votes(node.last_sent(VoteRequest), VoteResult.REJECT_ALREADY_HAS_LEADER)
    assert node.core.candidacy is None
    return node


def may_lead_again(node: Node, ms: int) -> None:
    if ms == 5:
        node.step(FitnessChanged(may_lead=True, has_room=True))


def stalled() -> Node:
    """Committed nothing as a leader, and leaves elections to the others for a while."""
    node = Node().become_leader()
    for _ in range(0, node.core.timing.commit_stall_ms, node.core.timing.heartbeat_ms):
        for peer in ("b", "c"):
            node.receive(peer, replace(node.beat_back(peer), stored_all=True))
        node.pass_time(node.core.timing.heartbeat_ms)
    assert node.core.role is Role.FOLLOWER
    assert node.core.stall_guard.candidate_from_ms > node.core.election_deadline_ms
    return node


def unfit_leader() -> Node:
    return without(leader())


def one_report_missing() -> Node:
    node = Node()
    node.receive("b", PositionResponse(0, "b", node.core.vote_round, -1, -1))
    return node


def all_reported() -> Node:
    node = one_report_missing()
    node.receive("c", PositionResponse(0, "c", node.core.vote_round, -1, -1))
    return node


def rejoining() -> Node:
    node = Node(terms=[1, 1])
    node.core.hard_state = replace(node.core.hard_state, rejoining=True)
    return node


CASES = {
    "the first election": Case(Node, becomes(Role.CANDIDATE, "timeout"), [100]),
    "an election": Case(follower, becomes(Role.CANDIDATE, "timeout"), [1000]),
    "a round of pre-votes": Case(
        lambda: candidate(pre_vote=True), sends(VoteRequest), range(125, 1001, 125), for_ms=1000
    ),
    "a round of votes": Case(
        lambda: candidate(pre_vote=False), sends(VoteRequest), range(125, 1001, 125), for_ms=1000
    ),
    "the stream of the leader is lost": Case(
        follower_of_a_lost_stream, sends(VoteRequest), [100, 160, 220, 280], for_ms=1500
    ),
    "the leader is silent": Case(
        lambda: follower(timing=Timing(silence_ms=300)),
        sends(VoteRequest),
        [350, 410, 470, 530],
        for_ms=900,
    ),
    "elections are left to others after a stall": Case(
        stalled, becomes(Role.CANDIDATE, "timeout"), [6000], for_ms=6000
    ),
    "a candidate may not lead any more": Case(
        lambda: without(candidate(pre_vote=True)),
        is_more_than_a_report,
        [],
        votes_late(pre_vote=True),
    ),
    "a candidate that is elected may not lead any more": Case(
        lambda: without(candidate(pre_vote=False)),
        is_more_than_a_report,
        [],
        votes_late(pre_vote=False),
    ),
    "a candidate that was refused may not lead any more": Case(
        lambda: without(refused_candidate()), is_more_than_a_report, [], votes_late(pre_vote=False)
    ),
    "a node that lost its leader may not lead for a while": Case(
        lambda: without(follower_of_a_lost_stream()),
        becomes(Role.CANDIDATE, "timeout"),
        [2000],
        may_lead_again,
        for_ms=2500,
    ),
    "heartbeats": Case(leader, sends(Heartbeat), range(80, 5000, 150), beats("b", "c")),
    "check-quorum": Case(leader_that_one_answers, becomes(Role.FOLLOWER, "quorum-lost"), [1000]),
    "check-quorum of one that answers": Case(
        leader, lambda effect: isinstance(effect, RoleChanged), [], beats("b")
    ),
    "a probe": Case(leader_of_a_follower_with_damage, sends(Compare), [150], beats("b", "c")),
    "a handover": Case(
        leader_that_hands_over,
        ends_transfer,
        [1000],
        beats("b", "c"),
    ),
    "a preferred leader": Case(
        lambda: leader("b"), sends(TakeLeadership), [930], beats("b", "c"), for_ms=1500
    ),
    "a fitter leader": Case(unfit_leader, sends(TakeLeadership), [930], beats("b", "c"), for_ms=1500),
    "a rejoined follower": Case(
        leader_with_a_rejoined_follower, becomes(Role.CANDIDATE, "rejoined-peer"), [1], for_ms=100
    ),
    "a successor, of a candidate": Case(predecessor, ends_transfer, [2967]),
    "a successor, of a voter": Case(
        lambda: predecessor(random_ms=highest), ends_transfer, [2967], c_campaigns
    ),
    "a successor, of one that may not lead": Case(lambda: predecessor(may_lead=False), ends_transfer, [2967]),
    "a report of a member that is down": Case(Node, sends(PositionRequest), [1, 2001, 4001]),
    "the report of the last member": Case(one_report_missing, sends(PositionRequest, "c"), [1, 2001, 4001]),
    "all reports": Case(all_reported, sends(PositionRequest), []),
    "rejoining": Case(
        rejoining, sends(PositionRequest), range(1, 1000, 150), as_often_as_ever=True, for_ms=1000
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_that_sleeps_until_the_next_deadline_misses_nothing_and_wakes_for_nothing(name: str) -> None:
    case = CASES[name]
    awake, _, _ = observe(case, sleeps=False)
    asleep, in_vain, _ = observe(case, sleeps=True)
    assert [ms for ms, effect in awake if case.happens(effect)] == list(case.at_ms)
    assert asleep == awake
    assert case.as_often_as_ever or not in_vain
