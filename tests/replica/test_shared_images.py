"""Which images let a leader write a PURGE, and when it requests one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.core.values import Membership
from dledger.replica.retainer import Retainer
from dledger.replica.retention import RetentionLimits
from dledger.store.format.internal import ImageBegin, Purge
from dledger.store.identity import CHANGED_FORMAT, Identity
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.replica_world import Host, World
from tests.replica.test_retention_parts import FILE, LIMITS, POLICY, fill, internals, small_host


def small_world(*ids: str) -> tuple[World, Host]:
    """A cluster with small files, whose leader `a` has several of them and would purge the first ones."""
    world = World()
    world.hosts = {
        node_id: Host(
            node_id,
            ids,
            store=MemoryLogStore(Identity("cluster", "group", node_id, FILE)),
            limits=LIMITS,
        )
        for node_id in ids
    }
    leader = world.elect("a")
    for number in range(30):
        leader.append(number, bytes(500), timeout_ms=60_000)
        world.carry()
        for host in world.hosts.values():
            host.store.prepare(4 * FILE)
    leader.replica.retainer.policy = POLICY
    return world, leader


def live(world: World, ticks: int = 20) -> None:
    for _ in range(ticks):
        for host in world.hosts.values():
            host.pass_time(20)
        world.carry()
        for host in world.hosts.values():
            host.store.prepare(4 * FILE)


def purges(host: Host) -> int:
    return sum(isinstance(value, Purge) for value in internals(host))


def test_a_leader_writes_no_purge_before_a_majority_has_reported_its_image() -> None:
    world, leader = small_world("a", "b", "c")
    live(world)
    assert len(leader.shell.images) == 1 and purges(leader) == 0
    leader.save_image()
    live(world)
    assert purges(leader) == 0, "its own image alone would be lost with its disk"
    assert world["b"].replica.retainer.wanted_image() == leader.core.image_index
    world["b"].take_image(leader)
    live(world)
    assert purges(leader) == 1
    assert leader.store.begin_index > 0 and world["b"].store.begin_index > 0
    assert world["c"].store.begin_index == 0, "it has no image of its own"
    world["c"].take_image(world["b"])
    live(world)
    assert world["c"].store.begin_index == leader.store.begin_index
    assert purges(leader) == 1


@pytest.mark.parametrize(
    ("holders", "is_shared"),
    [
        ("a", False),
        ("ab", False),
        ("abc", False),
        ("ad", False),
        ("ade", False),
        ("abd", True),
        ("bcde", True),
    ],
)
def test_in_a_joint_configuration_a_majority_of_both_sets_has_the_image(
    holders: str, is_shared: bool
) -> None:
    """Either set may elect the next leader, which must not have to fetch the image from a lost node."""
    images = {node_id: 40 if node_id in holders else -1 for node_id in "abcdef"}
    progress = {node_id: SimpleNamespace(image_index=images[node_id]) for node_id in "bcdef"}
    core = SimpleNamespace(
        node_id="a",
        image_index=images["a"],
        membership=Membership(("a", "d", "e"), outgoing=("a", "b", "c"), learners=("f",)),
        leadership=SimpleNamespace(progress=progress),
    )
    retainer = Retainer(SimpleNamespace(core=core), POLICY)  # type: ignore[arg-type]
    assert retainer._shared_image() == (40 if is_shared else -1)


def test_a_purge_does_not_follow_a_configuration_whose_voters_have_no_image() -> None:
    """The configuration waits for a commit, so it is not in force yet, but it precedes the PURGE."""
    world, leader = small_world("a", "b", "c")
    live(world)
    leader.save_image()
    live(world)
    world["b"].take_image(leader)
    assert leader.core.leadership is not None
    leader.core.leadership.progress["b"].image_index = leader.core.image_index
    leader.append("in flight", bytes(500), timeout_ms=60_000)
    demotion = MembershipChange((MemberStep(ChangeKind.DEMOTE, "b"),))
    leader.replica.change_members(leader.now, "demoted", demotion)
    live(world, ticks=60)
    assert leader.shell.transfers["demoted"] is None and leader.core.membership.voters == ("a", "c")
    assert purges(leader) == 0, "of the voters, only one has an image"
    world["c"].take_image(leader)
    live(world)
    assert purges(leader) == 1


def test_an_image_in_files_excludes_release_0_2_on_every_member_that_has_it() -> None:
    """Such a node would find no image, and the log from before it is purged."""
    world, leader = small_world("a", "b", "c")
    live(world)
    assert not leader.core.excludes_release_0_2
    leader.save_image()
    live(world)
    world["b"].take_image(leader)
    live(world)
    assert leader.core.excludes_release_0_2 and world["b"].core.excludes_release_0_2
    assert not world["c"].core.excludes_release_0_2


def test_a_node_that_had_an_image_in_files_refuses_release_0_2_after_a_restart() -> None:
    for version, excludes in ((Identity("c", "g", "a").format_version, False), (CHANGED_FORMAT, True)):
        identity = Identity("cluster", "group", "a", FILE, format_version=version)
        host = Host("a", "abc", store=MemoryLogStore(identity), limits=LIMITS)
        assert host.core.excludes_release_0_2 is excludes


def test_a_leader_whose_purge_was_undone_purges_when_it_leads_again() -> None:
    world, leader = small_world("a", "b", "c")
    live(world)
    leader.save_image()
    world["b"].take_image(leader)
    assert leader.core.leadership is not None
    leader.core.leadership.progress["b"].image_index = leader.core.image_index
    world.cut.add("a")
    leader.pass_time(20)
    leader.disk()
    assert purges(leader) == 1 and leader.core.purged_index < 0, "it is in the log of the leader alone"
    for _ in range(200):
        leader.pass_time(20)
    assert leader.core.leadership is None
    other = world.elect("b")
    other.append("while a is away", bytes(500), timeout_ms=60_000)
    world.carry()
    world.cut.clear()
    world.connect(other, "a")
    live(world)
    assert purges(leader) == 0
    leader.now = max(host.now for host in world.hosts.values())
    world.elect("a")
    live(world, ticks=60)
    assert purges(leader) == 1 and leader.store.begin_index > 0


def test_the_sessions_of_an_image_are_those_at_its_mark() -> None:
    """Those that are not committed yet are, once the mark is."""
    world, leader = small_world("a", "b", "c")
    leader.append("session", open_session=True)
    expected = leader.replica.admission.sessions.encode_all()
    assert leader.replica.admission.sessions.encode_committed() != expected
    while not leader.shell.images:
        leader.pass_time(20)
    leader.append("later", open_session=True)
    world.carry()
    leader.save_image()
    stored = leader.store.images.stored()
    assert stored is not None and stored.sessions == expected


def test_a_failed_image_is_tried_again_after_growing_pauses() -> None:
    host = small_host()
    fill(host, 30)
    pauses = []
    began = host.now
    for _ in range(9):
        while not host.shell.images:
            host.pass_time(20)
            host.disk()
            host.store.prepare(4 * FILE)
        pauses.append(host.now - began)
        began = host.now
        host.replica.retainer.image_failed(host.now, host.shell.images.pop().index)
    assert all(1000 * 2**n <= pause <= 1000 * 2**n + 40 for n, pause in enumerate(pauses[1:7]))
    assert all(60_000 <= pause <= 60_040 for pause in pauses[7:])
    while not host.shell.images:
        host.pass_time(20)
        host.disk()
    host.save_image()
    host.pass_time(20)
    host.disk()
    assert purges(host) == 1 and host.store.begin_index > 0


def test_no_image_is_begun_while_a_member_may_run_a_release_that_finds_images_in_the_log_only() -> None:
    world, leader = small_world("a", "b", "c")
    for _ in range(20):
        leader.core.features["b"] = 0  # each heartbeat of this test announces more
        leader.pass_time(20)
        world.carry()
    assert not leader.shell.images
    assert not any(isinstance(value, ImageBegin) for value in internals(leader))
    leader.core.features["b"] = 1
    live(world)
    assert len(leader.shell.images) == 1


def test_an_image_that_the_log_has_outgrown_is_replaced_and_one_that_is_being_copied_is_not() -> None:
    world, leader = small_world("a", "b", "c")
    leader.replica.retainer.policy = RetentionLimits(max_bytes=FILE, hold_bytes=1 << 20, check_ms=20)
    live(world)
    leader.save_image()
    for number in range(30):
        leader.append(f"more {number}", bytes(500), timeout_ms=60_000)
        world.carry()
    live(world)
    assert not leader.shell.images, "members in contact are still to copy the newest one"
    for name in "bc":
        world[name].take_image(leader)
    live(world)
    assert len(leader.shell.images) == 1
