"""A leader that should not lead finds one that can, and a follower without room is not pestered (rule 9)."""

from __future__ import annotations

from dataclasses import replace

from dledger.core.events import FitnessChanged, Tick, TransferRequest
from dledger.core.messages import Compare, HeartbeatResponse, PushResponse, PushType, TakeLeadership
from dledger.core.progress import PushState
from dledger.core.values import OwnerFitness, Role
from dledger.errors import Code
from tests.core.driver import Node, heartbeat


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
    leader.step(FitnessChanged(may_lead=True, has_room=False))
    leader.pass_time(999)
    beat(leader, without_room=("c",))
    leader.pass_time(1)
    assert [to for to, m in leader.sent if isinstance(m, TakeLeadership)] == ["b"]


def test_rule_9_a_full_leader_stays_if_nobody_has_room() -> None:
    leader = committing_leader()
    leader.step(FitnessChanged(may_lead=True, has_room=False))
    for _ in range(8):
        beat(leader, without_room=("b", "c"))
        leader.pass_time(500)
    assert leader.core.role is Role.LEADER
    assert not leader.all_sent(TakeLeadership)


def test_rule_10_a_damaged_leader_hands_over() -> None:
    leader = committing_leader()
    leader.step(FitnessChanged(may_lead=False, has_room=True))
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
    end = leader.core.log.end_index
    leader.append()
    leader.append()
    leader.receive("b", no_room_at(leader, "b", end))
    leader.receive("b", no_room_at(leader, "b", end + 1))  # the second push was under way
    leader.forget()
    assert not progress.has_room
    assert progress.state is PushState.COMPARE
    leader.pass_time(leader.core.timing.heartbeat_ms)
    assert not leader.all_sent(Compare, "b")

    for _ in range(5):
        leader.receive("c", leader.beat_back("c"))
        leader.pass_time(200)
    assert leader.all_sent(Compare, "b")[-1].index == end
    leader.receive("b", leader.match("b", end))
    leader.receive("b", leader.ack("b", leader.core.log.end_index))
    assert progress.match_index == leader.core.log.end_index


# -- the programs that own the nodes


def owners_say(node: Node, **owners: OwnerFitness | None) -> None:
    for peer in ("b", "c"):
        node.receive(peer, replace(node.beat_back(peer, 1), owner=owners.get(peer)))


def fittest(node: Node, own: OwnerFitness | None = None) -> str | None:
    assert node.core.leadership is not None
    return node.core.leadership.handing_over.peer_with_least_backlog(own)


def test_the_fittest_is_who_lags_least_and_less_than_we_do() -> None:
    leader = committing_leader()
    owners_say(leader, b=OwnerFitness(50, True), c=OwnerFitness(20, True))
    assert fittest(leader, OwnerFitness(100, True)) == "c"
    assert fittest(leader, OwnerFitness(21, True)) == "c"
    assert fittest(leader, OwnerFitness(20, True)) is None
    assert fittest(leader) is None, "we have said nothing, so there is nothing to be better than"


def test_who_is_unfit_or_has_said_nothing_is_not_the_fittest() -> None:
    leader = committing_leader()
    owners_say(leader, b=OwnerFitness(0, False))
    assert fittest(leader, OwnerFitness(100, True)) is None
    owners_say(leader, b=OwnerFitness(99, True))
    assert fittest(leader, OwnerFitness(100, True)) == "b"


def test_an_unfit_leader_leaves_to_anybody_fit() -> None:
    leader = committing_leader()
    owners_say(leader, b=OwnerFitness(50, True), c=OwnerFitness(20, False))
    assert fittest(leader, OwnerFitness(0, False)) == "b"


def test_the_fittest_must_be_able_to_lead() -> None:
    leader = committing_leader()
    owners_say(leader, b=OwnerFitness(1, True), c=OwnerFitness(2, True))
    leader.receive("b", replace(leader.beat_back("b", 1), owner=OwnerFitness(1, True), has_room=False))
    assert fittest(leader, OwnerFitness(9, True)) == "c"


def test_what_an_owner_says_travels_with_every_answer() -> None:
    leader = committing_leader()
    owner = OwnerFitness(7, False)
    leader.receive("b", replace(leader.ack("b", leader.core.log.end_index), owner=owner))
    assert leader.core.leadership is not None and leader.core.leadership.progress["b"].owner == owner
    follower = Node("b")
    follower.step(FitnessChanged(may_lead=True, has_room=True, owner=owner))
    follower.receive("a", heartbeat(1, "a"))
    follower.receive("a", Compare(1, "a", 1, -1, -1, -1), True)
    assert follower.last_sent(HeartbeatResponse).owner == owner
    assert follower.last_sent(PushResponse).owner == owner


def test_a_stopping_leader_prefers_a_fit_successor_to_an_unfit_one_with_more_of_the_log() -> None:
    leader = committing_leader()
    leader.append()
    leader.receive("c", leader.ack("c", leader.core.log.end_index))
    owners_say(leader, b=OwnerFitness(0, True), c=OwnerFitness(0, False))
    leader.step(TransferRequest(1, None))
    assert leader.core.transferring_to == "b"
