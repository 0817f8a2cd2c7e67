"""Ways in which a node got stuck, or worse, that were found by reading; each was red before its fix."""

from __future__ import annotations

from dledger.core.events import EntriesPushed
from dledger.core.messages import Append, Compare, PushResponse, PushType, VoteResponse
from dledger.core.progress import PushState
from dledger.core.values import Role, VoteResult
from dledger.errors import Code
from tests.core.driver import Node, compare, heartbeat, push


def test_a_write_that_ends_while_a_follower_doubts_its_leader_is_acknowledged_later() -> None:
    # A paused follower wakes up: its time-out fires before the leader's messages are read, the stream lives.
    node = Node(fast_disk=False)
    node.receive("b", compare(1, -1, -1))
    node.receive("b", push(1, -1, -1, [1]))
    node.pass_time(5000)
    assert node.core.role is Role.CANDIDATE
    node.store()
    node.forget()
    node.receive("b", heartbeat(1))
    acks = node.all_sent(PushResponse, "b")
    assert [(a.type, a.code, a.index, a.stream_id) for a in acks] == [(PushType.APPEND, Code.SUCCESS, 0, 1)]


def test_rule_3_a_vote_of_a_former_life_is_not_counted_in_a_new_one() -> None:
    former = Node(term=3)
    old = former.win_pre_vote()
    assert (old.term, old.pre_vote) == (4, False)
    late = VoteResponse(4, "b", VoteResult.ACCEPT, False, old.round)
    node = Node(term=4, voted_for="a", incarnation=2)
    new = node.win_pre_vote()
    assert new.term == 5
    assert new.round != old.round
    node.receive("b", late)
    assert node.core.role is Role.CANDIDATE


def test_rule_3_a_granted_vote_counts_only_in_its_own_term() -> None:
    node = Node(term=4)
    request = node.win_pre_vote()
    node.receive("b", VoteResponse(request.term - 1, "b", VoteResult.ACCEPT, False, request.round))
    assert node.core.role is Role.CANDIDATE


def test_a_push_that_was_loaded_for_an_earlier_place_is_not_taken_for_the_one_under_way() -> None:
    leader = Node(terms=[1] * 10).become_leader()
    leader.connect("b")
    p = leader.core.leadership.progress["b"]  # type: ignore[union-attr]
    p.probe_again()
    p.probe_index = 4
    p.matched(4)
    p.loading = True  # a read from disk of 5.. is under way
    leader.step(EntriesPushed("b", 1, 8, 9, 200))  # of a pipeline that was given up
    assert (p.state, p.loading, p.next_index) == (PushState.APPEND, True, 5)
    leader.step(EntriesPushed("b", 1, 8, 7, 0))
    assert (p.state, p.loading, p.next_index) == (PushState.APPEND, True, 5)


def test_pushes_that_are_refused_again_and_again_are_not_repeated_without_delay() -> None:
    leader = Node(terms=[1]).become_leader()
    leader.connect_equal("b")
    leader.forget()
    leader.append()
    for _ in range(100):  # the follower finds every push damaged, and matches every probe
        last = leader.sent[-1][1] if leader.sent else None
        leader.sent.clear()
        if isinstance(last, Append):
            refusal = PushResponse(2, "b", 1, Code.DATA_DAMAGED, PushType.APPEND, last.prev_index, 0, 1)
            leader.receive("b", refusal)
        elif isinstance(last, Compare):
            leader.receive("b", leader.match("b", last.index, 1, end_index=1))
        else:
            break
    else:
        raise AssertionError("a busy loop")
    # ... but after a moment it is tried again.
    leader.receive("c", leader.beat_back("c", 1))
    leader.pass_time(leader.core.timing.heartbeat_ms)
    assert [m.index for m in leader.all_sent(Compare, "b")] == [2]
    shorter = PushResponse(2, "b", 1, Code.INCONSISTENT_STATE, PushType.COMPARE, 2, 0, 1, -1, 2)
    leader.receive("b", shorter)
    leader.receive("b", leader.match("b", 1))
    assert leader.last_sent(Append).first_index == 2


def test_probes_below_a_followers_first_entry_are_not_repeated_without_delay() -> None:
    leader = Node(terms=[1]).become_leader()
    probe = leader.connect("b")
    for _ in range(100):
        leader.sent.clear()
        answer = PushResponse(
            2, "b", 1, Code.INDEX_LESS_THAN_LOCAL_BEGIN, PushType.COMPARE, probe.index, 50, 60
        )
        leader.receive("b", answer)
        if not leader.all_sent(Compare, "b"):
            break
        probe = leader.last_sent(Compare)
    else:
        raise AssertionError("a busy loop")
    leader.receive("c", leader.beat_back("c", 1))
    leader.pass_time(leader.core.timing.heartbeat_ms)
    assert leader.all_sent(Compare, "b")
