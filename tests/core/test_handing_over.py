"""A leader that should not lead finds one that can, and a follower without room is not pestered (rule 9)."""

from __future__ import annotations

from dataclasses import replace

from dledger.core.events import Fitness, Tick
from dledger.core.messages import Compare, PushResponse, PushType, TakeLeadership
from dledger.core.progress import PushState
from dledger.core.values import Role
from dledger.errors import Code
from tests.core.driver import Node


def committing_leader() -> Node:
    """Leads three nodes that hold the same log, its no-op committed."""
    leader = Node().become_leader()
    for peer in ("b", "c"):
        leader.connect_equal(peer)
        leader.receive(peer, leader.ack(peer, leader.core.log.end_index))
    assert leader.core.leadership is not None and leader.core.leadership.noop_is_committed
    leader.forget()
    return leader


def beat(node: Node, *, without_room: tuple[str, ...] = ()) -> None:
    for peer in ("b", "c"):
        node.receive(peer, replace(node.beat_back(peer, 1), has_room=peer not in without_room))


def no_room_at(node: Node, peer: str, index: int) -> PushResponse:
    return replace(node.ack(peer, index), code=Code.DISK_FULL, type=PushType.APPEND, has_room=False)


def test_rule_9_a_leader_without_room_hands_over_to_a_peer_with_room() -> None:
    leader = committing_leader()
    beat(leader, without_room=("c",))
    leader.step(Fitness(may_lead=True, has_room=False))
    leader.pass_time(999)
    beat(leader, without_room=("c",))
    leader.pass_time(1)
    assert [to for to, m in leader.sent if isinstance(m, TakeLeadership)] == ["b"]


def test_rule_9_a_full_leader_stays_if_nobody_has_room() -> None:
    leader = committing_leader()
    leader.step(Fitness(may_lead=True, has_room=False))
    for _ in range(8):
        beat(leader, without_room=("b", "c"))
        leader.pass_time(500)
    assert leader.core.role is Role.LEADER
    assert not leader.all_sent(TakeLeadership)


def test_rule_10_a_damaged_leader_hands_over() -> None:
    leader = committing_leader()
    leader.step(Fitness(may_lead=False, has_room=True))
    leader.pass_time(999)
    beat(leader)
    leader.pass_time(1)
    assert leader.all_sent(TakeLeadership)


def test_rule_9_a_stalled_leader_names_its_successor_before_it_steps_down() -> None:
    leader = committing_leader()
    began = leader.now
    stall = leader.core.timing.fsync_stall_ms
    while leader.now - began < stall:
        leader.now += 500
        leader.append()
        for peer in ("b", "c"):
            leader.receive(peer, leader.ack(peer, leader.core.log.end_index))
        leader.step(Tick(fsync_began_ms=began))
    assert leader.core.role is Role.FOLLOWER
    assert leader.last_sent(TakeLeadership).take_leadership_index == leader.core.log.end_index


def test_rule_9_what_others_stored_just_after_a_stall_began_says_nothing_of_their_disks_now() -> None:
    """One disk under all: it took what was under way at the others, and then hung for them, too."""
    leader = committing_leader()
    began = leader.now
    stall = leader.core.timing.fsync_stall_ms
    leader.now += 1
    leader.append()
    for peer in ("b", "c"):
        leader.receive(peer, leader.ack(peer, leader.core.log.end_index))
    while leader.now - began < 2 * stall:
        leader.now += 500
        beat(leader)
        leader.step(Tick(fsync_began_ms=began))
    assert leader.core.role is Role.LEADER
    leader.append()
    for peer in ("b", "c"):
        leader.receive(peer, leader.ack(peer, leader.core.log.end_index))
    leader.step(Tick(fsync_began_ms=began))
    assert leader.core.role is Role.FOLLOWER, "now they have shown that they are faster"


def test_rule_9_a_follower_without_room_is_asked_again_after_a_while_and_catches_up() -> None:
    leader = committing_leader()
    assert leader.core.leadership is not None
    progress = leader.core.leadership.progress["b"]
    held = leader.core.log.end_index
    leader.append()
    leader.append()
    leader.receive("b", no_room_at(leader, "b", held))
    leader.receive("b", no_room_at(leader, "b", held + 1))  # the second push was under way
    leader.forget()
    assert not progress.has_room
    assert progress.state is PushState.COMPARE
    leader.pass_time(leader.core.timing.heartbeat_ms)
    assert not leader.all_sent(Compare, "b")

    for _ in range(5):
        leader.receive("c", leader.beat_back("c"))
        leader.pass_time(200)
    assert leader.all_sent(Compare, "b")[-1].index == held
    leader.receive("b", leader.match("b", held))
    leader.receive("b", leader.ack("b", leader.core.log.end_index))
    assert progress.match_index == leader.core.log.end_index
