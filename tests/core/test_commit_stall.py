"""A leader that has something to commit and commits nothing steps down (rule 14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.effects import Effect, RoleChanged
from dledger.core.events import StreamDown, Tick
from dledger.core.messages import (
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    PushType,
    TakeLeadership,
    TakeLeadershipResponse,
)
from dledger.core.messages import VoteRequest as Vote
from dledger.core.values import Role, Timing, VoteResult
from dledger.errors import Code
from tests.core.driver import Node, compare, heartbeat, push

TIMING = Timing()
STALL = TIMING.commit_stall_ms
STEP = TIMING.heartbeat_ms


class Leading(Node):
    """Its peers answer heartbeats: `busy` ones have something to store. Pushes are answered by the tests."""

    busy: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    without_room: tuple[str, ...] = ()
    not_counting: tuple[str, ...] = ()

    def run(self, ms: int, *, fsync_began_ms: int | None = None) -> None:
        """Time passes, with a heartbeat round in each step, for as long as this node leads."""
        end = self.now + ms
        while self.now < end and self.core.role is Role.LEADER:
            self.now = min(end, self.now + STEP)
            self.step(Tick(fsync_began_ms))
            if self.core.role is Role.LEADER:
                self.beat()

    def beat(self) -> None:
        assert self.core.leadership is not None
        for peer in self.core.membership.others(self.id):
            if peer not in self.silent:
                answer = replace(
                    self.beat_back(peer, self.core.leadership.round),
                    stored_all=peer not in self.busy,
                    has_room=peer not in self.without_room,
                    counts=peer not in self.not_counting,
                )
                self.receive(peer, answer)

    def append(self, count: int = 1) -> list[Effect]:
        effects = super().append(count)
        return effects + (self.store() if self.fast_disk else [])

    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADER

    def acknowledge(self, peer: str, index: int) -> None:
        self.receive(peer, self.ack(peer, index))


def leading(*voters: str, fast_disk: bool = True) -> Leading:
    """Leads, and nothing that it pushes arrives: its no-op is not committed."""
    node = Leading("a", voters or ("a", "b", "c"), fast_disk=fast_disk)
    node.become_leader()
    node.beat()
    return node


def committing(*voters: str) -> Leading:
    node = leading(*voters)
    for peer in node.core.membership.others("a"):
        node.connect_equal(peer)
        node.acknowledge(peer, node.core.log.end_index)
    assert node.core.committed_index == node.core.log.end_index
    node.forget()
    return node


def step_down_of(node: Leading) -> RoleChanged:
    return next(e for e in node.all_effects(RoleChanged) if e.cause == "commit-stalled")


@pytest.mark.parametrize("voters", [("a", "b", "c"), ("a", "b", "c", "d", "e")], ids=len)
def test_rule_14_a_leader_whose_no_op_is_never_committed_steps_down(voters: tuple[str, ...]) -> None:
    node = leading(*voters)
    node.run(STALL - 1)
    assert node.leads
    node.run(2)
    assert not node.leads and node.core.leader_id is None
    assert step_down_of(node).role is Role.FOLLOWER
    assert "b" in step_down_of(node).detail and str(STALL) in step_down_of(node).detail


def test_rule_14_a_leader_whose_pushes_are_lost_on_a_stream_that_is_up_steps_down() -> None:
    node = committing()
    node.append()
    node.run(STALL)
    assert not node.leads
    assert node.last_sent(Goodbye).reason, "followers are told that the end of the stream is meant"
    assert node.last_sent(TakeLeadership).take_leadership_index == node.core.committed_index


def test_rule_14_streams_that_end_and_open_again_are_no_progress() -> None:
    node = committing()
    node.append()
    for stream in range(2, 200):
        node.run(STALL // 100)
        if not node.leads:
            break
        for peer in ("b", "c"):
            node.step(StreamDown(peer, stream - 1))
            probe = node.connect(peer, stream)
            node.receive(peer, node.match(peer, probe.index - 1, stream))
    assert not node.leads


def test_rule_14_an_idle_leader_stays() -> None:
    node = committing()
    node.run(3 * STALL)
    assert node.leads
    node.append()
    node.run(STALL - 1)
    assert node.leads, "the time counts from the append on"
    node.run(2)
    assert not node.leads


def test_rule_14_a_leader_that_commits_slowly_stays() -> None:
    node = committing()
    for _ in range(5):
        node.append(3)
        node.run(STALL - STEP)
        node.acknowledge("b", node.core.log.end_index - 1)
        node.store()
    assert node.leads and node.core.committed_index < node.core.log.end_index


def test_rule_14_followers_that_are_storing_keep_their_leader() -> None:
    """Their disks are slow, or stuck: no leader would do better."""
    node = committing()
    node.append()
    node.busy = ("b", "c")
    node.run(5 * STALL)
    assert node.leads
    node.busy = ("b",)
    node.run(STALL + STEP)
    assert not node.leads, "c and this node could commit what b cannot"


def test_rule_14_a_stuck_disk_of_the_leader_is_a_matter_of_rule_9() -> None:
    node = committing()
    node.fast_disk = False
    began = node.now
    node.append()
    node.silent = ("c",)
    node.run(5 * STALL, fsync_began_ms=began)
    assert node.leads, "b alone could not do better"
    node.silent = ()
    node.run(STALL + STEP, fsync_began_ms=began)
    assert not node.leads, "b and c could"


def test_rule_14_a_follower_that_catches_up_keeps_its_leader() -> None:
    """The third one is down: nothing can be committed before the other has all that it lacks."""
    node = committing()
    node.silent = ("c",)
    node.append(1000)
    matched = node.core.committed_index
    for _ in range(20):
        matched += 1
        node.run(STALL // 2)
        assert node.leads
        node.acknowledge("b", matched)
    node.append()
    node.run(2 * STALL)
    assert not node.leads


def test_rule_14_a_follower_that_comes_back_is_given_time() -> None:
    node = committing()
    node.busy, node.silent = ("b",), ("c",)
    node.append()
    node.run(2 * STALL)
    node.silent = ()
    node.run(STALL - 2 * STEP)
    assert node.leads
    node.run(3 * STEP)
    assert not node.leads


@pytest.mark.parametrize("why", ["without_room", "not_counting"])
def test_rule_14_followers_that_can_take_nothing_are_no_reason_to_leave(why: str) -> None:
    node = committing("a", "b", "c", "d", "e")
    setattr(node, why, ("b", "c"))
    node.busy = ("d",)
    node.append()
    node.run(3 * STALL)
    assert node.leads, "e and this node are no majority"
    setattr(node, why, ("b",))
    node.run(STALL + STEP)
    assert not node.leads


def test_rule_14_a_follower_that_refuses_for_want_of_room_is_no_reason_to_leave() -> None:
    """What is pushed may need more room than its heartbeats speak of."""
    node = committing()
    node.append()
    matched = node.core.log.end_index - 1
    for _ in range(30):
        for peer in ("b", "c"):
            node.receive(peer, replace(node.ack(peer, matched), code=Code.DISK_FULL, type=PushType.APPEND))
        node.run(STALL // 10)
        for peer in ("b", "c"):
            node.receive(peer, node.match(peer, matched))
    assert node.leads


def test_rule_14_members_of_an_older_version_are_not_judged() -> None:
    node = leading()
    for _ in range(3 * STALL // STEP):
        node.pass_time(STEP)
        for peer in ("b", "c"):
            node.receive(peer, node.beat_back(peer))
    assert node.leads


def test_rule_14_a_follower_says_whether_it_has_stored_what_it_was_sent() -> None:
    node = Node(fast_disk=False)

    def stored_all() -> bool:
        node.receive("b", heartbeat(1))
        return node.last_sent(HeartbeatResponse).stored_all

    assert stored_all()
    node.receive("b", push(1, -1, -1, (1, 1)))
    assert not stored_all()
    node.store()
    assert stored_all()


# -- afterwards


def stepped_down(node: Leading) -> Leading:
    node.append()
    while node.leads:
        node.run(STALL)
    node.forget()
    return node


def test_rule_14_a_stalled_leader_leaves_the_election_to_the_others_for_a_while_only() -> None:
    node = stepped_down(committing())
    began = node.now
    while not node.all_sent(Vote):
        node.pass_time(STEP)
        assert node.now - began < 10 * TIMING.election_max_ms
    assert node.now - began >= 3 * TIMING.election_max_ms, "the others had time"


def test_rule_14_a_higher_term_of_another_candidate_does_not_shorten_that_while() -> None:
    """Its log is longer than those of the others: it refuses them its vote, and must not compete either."""
    node = stepped_down(committing())
    began = node.now
    node.pass_time(TIMING.election_min_ms)
    request = Vote(node.core.term + 1, "b", -1, -1, pre_vote=False, transfer=False, round=1)
    node.receive("b", request)
    while not node.all_sent(Vote):
        node.pass_time(STEP)
    assert node.now - began >= 3 * TIMING.election_max_ms


def test_rule_14_a_stalled_leader_votes_for_another_at_once() -> None:
    node = stepped_down(committing())
    end, term = node.core.log.end_index, node.core.log.end_term
    request = Vote(node.core.term + 1, "b", end, term, pre_vote=True, transfer=False, round=1)
    (answer,) = node.ask("b", request)
    assert answer.result is VoteResult.ACCEPT  # type: ignore[union-attr]


def lead_again(node: Leading) -> None:
    node.answer_votes(node.win_pre_vote(), VoteResult.ACCEPT)
    assert node.leads
    node.beat()


def test_rule_14_the_bound_doubles_while_nobody_commits_and_falls_back_with_a_commit() -> None:
    node = stepped_down(committing())
    for doubled in (2 * STALL, 4 * STALL):
        node.pass_time(3 * TIMING.election_max_ms)
        lead_again(node)
        node.run(doubled - 2 * STEP)
        assert node.leads
        node.run(3 * STEP)
        assert not node.leads
    # Another leader commits something: stepping down was of use.
    term = node.core.term + 1
    end, committed = node.core.log.end_index, node.core.committed_index
    node.receive("b", compare(term, end, node.core.log.end_term))
    node.receive("b", heartbeat(term, committed=end))
    assert node.core.committed_index == end > committed
    node.pass_time(3 * TIMING.election_max_ms)
    lead_again(node)
    node.run(STALL + STEP)
    assert not node.leads


def test_rule_14_the_bound_has_an_end() -> None:
    node = stepped_down(committing())
    for _ in range(12):
        node.pass_time(3 * TIMING.election_max_ms)
        lead_again(node)
        began = node.now
        node.run(100 * STALL)
        assert not node.leads
    assert 32 * STALL <= node.now - began <= 32 * STALL + 2 * STEP


@pytest.mark.parametrize("others_commit", [False, True])
def test_rule_14_leadership_is_not_handed_back_at_once_to_one_that_led_in_vain(others_commit: bool) -> None:
    """A leader that prefers it would do so again and again; each time costs the cluster one more stall."""
    node = stepped_down(committing())
    refused_for = []
    for _ in range(3):
        term = node.core.term + 1
        node.receive("b", heartbeat(term))
        if others_commit:
            end = node.core.log.end_index
            node.receive("b", compare(term, end, node.core.log.end_term))
            node.receive("b", heartbeat(term, committed=end))
            assert node.core.committed_index == end
        began = node.now
        while node.core.role is Role.FOLLOWER:
            node.pass_time(STEP)
            node.receive("b", heartbeat(node.core.term))
            (answer,) = [
                m
                for m in node.ask("b", TakeLeadership(node.core.term, "b", -1))
                if isinstance(m, TakeLeadershipResponse)
            ]
            assert answer.code in (Code.SUCCESS, Code.ILLEGAL_MEMBER_STATE)
        refused_for.append(node.now - began)
        node.answer_votes(node.last_sent(Vote), VoteResult.ACCEPT)
        assert node.leads
        node.beat()
        while node.leads:
            node.run(STALL)
    assert refused_for[0] >= STALL - STEP
    assert refused_for[0] * 1.5 < refused_for[1] < refused_for[2] / 1.5


def test_rule_14_what_a_stalled_leader_says_last_is_no_heartbeat() -> None:
    node = stepped_down(committing())
    node.pass_time(2 * TIMING.election_min_ms)
    assert not node.all_sent(Heartbeat)
