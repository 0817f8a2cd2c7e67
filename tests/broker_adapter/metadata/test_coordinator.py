"""Members, leases and the generations that the coordinator wants, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker_adapter.api import Assignment
from broker_adapter.errors import BrokerError, Status
from broker_adapter.metadata.commands import MAX_MEMBERS_PER_GROUP, DeleteGroup, DeleteTopic, NewGeneration
from broker_adapter.metadata.coordinator import CoordinatorConfig, GroupCoordinator, Pending
from tests.broker_adapter.metadata.samples import Replica, commit, put_group, put_topic, reset

CONFIG = CoordinatorConfig(collect_ms=1_000, orphan_ms=30_000, rejoin_ms=100)
LEASE = 9_000


class World:
    """One coordinator on one replica; what is proposed is applied at once, unless it is held back."""

    def __init__(self, replica: Replica | None = None, now_ms: int = 0) -> None:
        self.replica = replica or Replica()
        if replica is None:
            self.replica.do(put_topic("t"), put_topic("u", 2), put_group("g"))
        self.coordinator = GroupCoordinator(self.replica, CONFIG)
        self.now_ms = now_ms

    def join(
        self, member_id: str, *topics: str, group: str = "g", lease_ms: int = LEASE
    ) -> Assignment | Pending:
        return self.coordinator.join(group, member_id, topics or ("t",), lease_ms, self.now_ms)

    def tick(self) -> list[NewGeneration]:
        """What was proposed, applied."""
        commands = self.coordinator.tick(self.now_ms)
        for command in commands:
            self.finish(command)
        return commands

    def finish(self, command: NewGeneration) -> None:
        outcome = self.replica.do(command)
        self.coordinator.settled(command.group, applied=outcome.status is None)

    def assigned(self, member_id: str, *topics: str) -> Assignment:
        answer = self.join(member_id, *topics)
        assert isinstance(answer, Assignment)
        return answer

    def settle(self, *member_ids: str) -> None:
        for member_id in member_ids:
            self.join(member_id)
        assert len(self.tick()) == 1

    def successor(self) -> World:
        """A new master with the same log."""
        return World(self.replica, self.now_ms)


@contextmanager
def refused(status: Status) -> Iterator[None]:
    with pytest.raises(BrokerError) as caught:
        yield
    assert caught.value.status is status


QUEUES = [("t", 0), ("t", 1), ("t", 2), ("t", 3)]


def test_the_first_member_gets_everything_once_the_log_says_so() -> None:
    world = World()
    assert world.join("a") == Pending(100)
    assert world.tick() == [NewGeneration("g", {"a": tuple(QUEUES)})]
    answer = world.assigned("a")
    assert answer == Assignment(world.replica.generation("g"), tuple(QUEUES), 1, LEASE // 3)
    assert world.tick() == []


def test_members_that_join_together_share_one_generation() -> None:
    world = World()
    world.settle("a", "b", "c")
    assert [len(world.assigned(m).queues) for m in "abc"] == [2, 1, 1]
    assert world.assigned("a").members == 3


def test_until_the_log_has_the_new_generation_the_old_one_is_in_force() -> None:
    world = World()
    world.settle("a")
    old = world.assigned("a")
    assert world.join("b") == Pending(100)
    [command] = world.coordinator.tick(0)
    assert world.assigned("a") == old._replace(heartbeat_ms=100)
    assert world.replica.do(commit("g", old.generation, ("t", 3, 5))).status is None
    world.finish(command)
    new = world.assigned("a")
    assert new.generation > old.generation and new.queues == (("t", 0), ("t", 1))
    assert world.replica.do(commit("g", old.generation, ("t", 3, 6))).status is Status.GENERATION_STALE
    assert world.assigned("b").queues == (("t", 2), ("t", 3))


def test_one_proposal_of_a_group_is_on_its_way_at_a_time() -> None:
    world = World()
    world.join("a")
    [first] = world.coordinator.tick(0)
    world.join("b")
    assert world.coordinator.tick(0) == [] and world.coordinator.proposal("g", 0) is None
    world.finish(first)
    assert [set(command.members) for command in world.tick()] == [{"a", "b"}]


def test_what_failed_or_may_have_failed_is_proposed_again() -> None:
    world = World()
    world.join("a")
    [first] = world.coordinator.tick(0)
    world.coordinator.settled("g", applied=False)
    assert world.coordinator.tick(0) == [first]


def test_a_proposal_that_came_through_unnoticed_is_not_made_again() -> None:
    world = World()
    world.join("a")
    [command] = world.coordinator.tick(0)
    world.replica.do(command)
    world.coordinator.settled("g", applied=False)
    assert world.coordinator.tick(0) == []


def test_queues_of_a_member_that_leaves_go_to_the_others() -> None:
    world = World()
    world.settle("a", "b")
    world.coordinator.leave("g", "a", 0)
    assert world.tick() == [NewGeneration("g", {"b": tuple(QUEUES)})]
    with refused(Status.NOT_A_MEMBER):
        world.coordinator.leave("g", "a", 0)
    with refused(Status.NOT_A_MEMBER):
        world.coordinator.answer("g", "a")


def test_the_last_member_that_leaves_makes_the_group_free_for_consumers_without_generation() -> None:
    world = World()
    world.settle("a")
    assert world.replica.do(commit("g", -1, ("t", 0, 1))).status is Status.GROUP_HAS_MEMBERS
    world.coordinator.leave("g", "a", 0)
    assert world.tick() == [NewGeneration("g", {})]
    assert world.tick() == []
    assert world.replica.do(commit("g", -1, ("t", 0, 1))).status is None


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    world = World()
    world.settle("a", "b")
    world.now_ms = LEASE - 1
    world.join("b")
    assert world.tick() == []
    world.now_ms = LEASE
    assert [set(command.members) for command in world.tick()] == [{"b"}]
    world.now_ms = 2 * LEASE - 1
    assert [set(command.members) for command in world.tick()] == [set()]


def test_a_changed_subscription_is_a_new_generation() -> None:
    world = World()
    world.settle("a")
    assert world.join("a", "t", "u") == world.assigned("a", "t", "u")
    world.tick()
    assert world.assigned("a", "t", "u").queues == (*QUEUES, ("u", 0), ("u", 1))
    assert world.join("a", "u") == Pending(100), "what it has not subscribed to is not handed to it"
    world.tick()
    assert world.assigned("a", "u").queues == (("u", 0), ("u", 1))


def test_changes_of_topics_are_new_generations() -> None:
    world = World()
    world.join("a", "t", "later")
    world.tick()
    for change, expected in [
        (put_topic("t", 1), [("t", 0)]),
        (put_topic("later", 1), [("later", 0), ("t", 0)]),
        (DeleteTopic("t"), [("later", 0)]),
    ]:
        world.replica.do(change)
        assert [list(command.members["a"]) for command in world.tick()] == [expected]
    world.replica.do(put_topic("other"))
    assert world.tick() == []


def test_after_a_reset_members_keep_their_queues_under_its_generation() -> None:
    world = World()
    world.settle("a")
    world.replica.do(reset("g", ("t", 0, 0)))
    assert world.tick() == []
    assert world.assigned("a").generation == world.replica.generation("g") == world.replica.applied_index


def test_a_deleted_group_has_no_members() -> None:
    world = World()
    world.settle("a")
    world.replica.do(DeleteGroup("g"))
    with refused(Status.GROUP_UNKNOWN):
        world.join("a")
    assert world.tick() == []
    world.replica.do(put_group("g"))
    assert world.join("a") == Pending(100)
    assert len(world.tick()) == 1


def test_a_group_deleted_and_created_between_two_ticks_gets_a_generation() -> None:
    world = World()
    world.settle("a")
    world.replica.do(DeleteGroup("g"), put_group("g"))
    assert world.tick() == [NewGeneration("g", {"a": tuple(QUEUES)})]


# -- a new master ----------------------------------------------------------------------------------------


def test_all_members_come_back_to_a_new_master_under_one_new_generation() -> None:
    world = World()
    world.settle("a", "b")
    old = world.assigned("a")
    after = world.successor()
    assert after.assigned("a") == old._replace(heartbeat_ms=100)
    assert after.tick() == [], "b is waited for"
    assert after.replica.do(commit("g", old.generation, ("t", 0, 5))).status is None
    after.join("b")
    assert len(after.tick()) == 1
    assert after.assigned("a") == old._replace(generation=after.replica.generation("g"))
    assert after.replica.do(commit("g", old.generation, ("t", 0, 6))).status is Status.GENERATION_STALE
    assert after.tick() == []


def test_a_new_master_waits_for_the_others_only_so_long() -> None:
    world = World()
    world.settle("a", "b")
    after = world.successor()
    after.tick()
    after.now_ms = 5_000
    after.join("b")
    after.now_ms = 5_999
    assert after.tick() == []
    after.now_ms = 6_000
    assert [set(command.members) for command in after.tick()] == [{"b"}]
    after.join("a")
    assert [set(command.members) for command in after.tick()] == [{"a", "b"}]


def test_a_new_master_does_not_wait_for_a_member_that_says_it_leaves() -> None:
    world = World()
    world.settle("a", "b")
    after = world.successor()
    after.join("b")
    after.coordinator.leave("g", "a", 0)
    assert [set(command.members) for command in after.tick()] == [{"b"}]


def test_a_member_that_leaves_first_does_not_end_the_wait_for_the_others() -> None:
    world = World()
    world.settle("a", "b")
    after = World(world.replica, now_ms=1_000_000)
    after.coordinator.leave("g", "a", after.now_ms)
    assert after.tick() == []
    after.join("b")
    assert [set(command.members) for command in after.tick()] == [{"b"}]


def test_a_group_to_which_nobody_comes_back_has_no_members_in_the_end() -> None:
    world = World()
    world.settle("a")
    after = world.successor()
    assert after.tick() == []
    after.now_ms = 29_999
    assert after.tick() == []
    after.now_ms = 30_000
    assert after.tick() == [NewGeneration("g", {})]
    assert after.tick() == []


def test_the_first_member_ends_the_long_wait_even_if_it_comes_late() -> None:
    world = World()
    world.settle("a", "b")
    after = world.successor()
    after.tick()
    after.now_ms = 29_500
    after.join("a")
    after.now_ms = 30_000
    assert len(after.tick()) == 1


# -- bad input and limits --------------------------------------------------------------------------------


def test_bad_input_is_refused_and_changes_nothing() -> None:
    world = World()
    for arguments, status in [
        (("x", "a", ["t"], LEASE), Status.GROUP_UNKNOWN),
        (("g h", "a", ["t"], LEASE), Status.GROUP_NAME_INVALID),
        (("g", "", ["t"], LEASE), Status.MEMBER_ID_INVALID),
        (("g", "a", [], LEASE), Status.FIELD_OUT_OF_RANGE),
        (("g", "a", ["t t"], LEASE), Status.TOPIC_NAME_INVALID),
        (("g", "a", ["DLEDGER_SYS_METADATA"], LEASE), Status.TOPIC_RESERVED),
        (("g", "a", [f"t{n}" for n in range(65)], LEASE), Status.TOO_MANY_SUBSCRIPTIONS),
        (("g", "a", ["t"], 999), Status.FIELD_OUT_OF_RANGE),
        (("g", "a", ["t"], 300_001), Status.FIELD_OUT_OF_RANGE),
    ]:
        with refused(status):
            world.coordinator.join(*arguments, now_ms=0)  # type: ignore[arg-type]
    for group, status in [("x", Status.GROUP_UNKNOWN), ("g", Status.NOT_A_MEMBER)]:
        with refused(status):
            world.coordinator.leave(group, "a", 0)
    assert world.tick() == []


def test_the_topics_of_a_group_are_counted_together() -> None:
    world = World()
    world.join("a", *[f"t{n}" for n in range(40)])
    with refused(Status.TOO_MANY_SUBSCRIPTIONS):
        world.join("b", *[f"t{n}" for n in range(30, 70)])
    world.join("b", *[f"t{n}" for n in range(30, 64)])
    with refused(Status.TOO_MANY_SUBSCRIPTIONS):
        world.join("a", *[f"u{n}" for n in range(64)])
    [command] = world.tick()
    assert set(command.members) == {"a", "b"}


def test_a_group_and_a_broker_have_so_many_members() -> None:
    world = World()
    for n in range(MAX_MEMBERS_PER_GROUP):
        world.join(f"m{n}")
    with refused(Status.TOO_MANY_MEMBERS):
        world.join("one-more")
    assert isinstance(world.join("m0"), Pending)
    few = World()
    few.coordinator = GroupCoordinator(few.replica, CONFIG._replace(max_members=2))
    few.replica.do(put_group("h"))
    few.join("a")
    few.join("a", group="h")
    with refused(Status.TOO_MANY_MEMBERS):
        few.join("b")
    few.coordinator.leave("h", "a", 0)
    few.join("b")
