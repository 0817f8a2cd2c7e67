"""The rules of topics, groups and offsets, one by one."""

from __future__ import annotations

from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata import state as state_module
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    DeleteGroup,
    DeleteTopic,
    GrantLocks,
    NewGeneration,
    PutGroup,
    PutTopic,
    ReleaseLocks,
)
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome
from tests.broker_adapter.metadata.samples import (
    ID,
    Replica,
    any_command,
    commit,
    put_group,
    put_topic,
    reset,
)

MEMBERS = NewGeneration("g", frozenset({"m"}))


def with_group(*commands: Command) -> Replica:
    """Topic t with 4 queues, group g, and what the commands make of it."""
    replica = Replica()
    replica.do(put_topic("t"), put_group("g"), *commands)
    return replica


def refusal(replica: Replica, command: Command) -> Status | None:
    """The status that a command is refused with, which changes nothing then."""
    before = replica.topics, replica.groups()
    outcome = replica.do(command)
    assert outcome.status is None or (replica.topics, replica.groups()) == before
    return outcome.status


# -- topics and groups -----------------------------------------------------------------------------------


def test_a_topic_is_created_changed_and_deleted() -> None:
    replica = with_group()
    assert replica.do(put_topic("t", 8)).status is None
    assert replica.topic("t") == TopicConfig("t", 8, 8)
    assert replica.do(DeleteTopic("t")).status is None
    assert replica.topic("t") is None and not replica.topics
    assert refusal(replica, DeleteTopic("t")) is Status.TOPIC_UNKNOWN


def test_creating_only_leaves_what_exists_as_it_is() -> None:
    """So that the automatic creation of a topic cannot undo the config that somebody has just given it."""
    replica = with_group(PutGroup(GroupConfig("g", retry_max_times=3)))
    replica.do(
        PutTopic(TopicConfig("t", 1, 1), create_only=True), PutGroup(GroupConfig("g"), create_only=True)
    )
    assert replica.topic("t") == TopicConfig("t")
    group = replica.group("g")
    assert group is not None and group.config.retry_max_times == 3
    replica.do(PutTopic(TopicConfig("u"), create_only=True))
    assert replica.topic("u") == TopicConfig("u")


def test_the_least_offsets_of_a_topic_move_when_it_comes_into_being_and_when_it_ends() -> None:
    replica = Replica()
    replica.do(put_topic("t"), put_topic("t", 8), DeleteTopic("t"), put_topic("u"), DeleteTopic("t"))
    replica.do(put_topic("t"))
    assert replica.cuts == [(0, "t"), (2, "t"), (3, "u"), (5, "t")]


def test_what_goes_wrong_where_queues_are_cut_is_no_refusal() -> None:
    def fail(topic: str) -> None:
        raise StoredDataDamaged(Status.UNIT_DAMAGED, topic)

    results: list[CommandOutcome] = []
    state = MetadataState(on_topic_cut=fail, on_result=lambda _, outcome: results.append(outcome))
    with pytest.raises(StoredDataDamaged):
        state.apply(0, encode(put_topic("t"), ID))
    assert not results


def test_deleting_a_topic_removes_its_offsets_and_no_others() -> None:
    replica = with_group(put_topic("u"))
    generation = replica.generation("g")
    replica.do(commit("g", generation, ("t", 0, 3), ("u", 0, 4)), DeleteTopic("t"), put_topic("t"))
    assert replica.offset("g", "t") is None and replica.offset("g", "u") == 4
    assert replica.generation("g") == generation


def test_a_group_keeps_everything_when_its_config_changes() -> None:
    replica = with_group(MEMBERS)
    generation = replica.generation("g")
    replica.do(commit("g", generation, ("t", 0, 3)), PutGroup(GroupConfig("g", retry_queues=2)))
    group = replica.group("g")
    assert group is not None and group.config.retry_queues == 2
    assert (group.generation, group.members, replica.offset("g")) == (generation, MEMBERS.members, 3)


@pytest.mark.parametrize(
    "command", [DeleteGroup("x"), NewGeneration("x", frozenset()), commit("x", -1), reset("x")]
)
def test_a_group_has_to_exist(command: Command) -> None:
    assert refusal(with_group(), command) is Status.GROUP_UNKNOWN


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in [("TOPICS", 2), ("GROUPS", 2), ("OFFSETS_PER_GROUP", 3), ("OFFSETS", 4)]:
        monkeypatch.setattr(state_module, f"MAX_{name}", limit)
    replica = with_group(put_topic("u"), put_group("h"))
    assert refusal(replica, put_topic("v")) is Status.TOO_MANY_TOPICS
    assert refusal(replica, put_group("i")) is Status.TOO_MANY_GROUPS
    assert refusal(replica, put_topic("t", 8)) is None
    replica.do(commit("g", NO_GENERATION, ("t", 0, 1), ("t", 1, 1), ("t", 2, 1)))
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 3, 1))) is Status.TOO_MANY_OFFSETS
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 2, 2))) is None
    replica.do(commit("h", NO_GENERATION, ("t", 0, 1)))
    assert refusal(replica, reset("h", ("t", 1, 1))) is Status.TOO_MANY_OFFSETS
    replica.do(DeleteGroup("g"))
    assert refusal(replica, reset("h", ("t", 1, 1))) is None


# -- generations, and the members that 0.1.0 recorded ----------------------------------------------------


def test_a_generation_is_the_index_of_the_entry_that_began_it() -> None:
    replica = Replica()
    replica.apply(40, encode(put_topic("t")))
    for index, command in [(41, put_group("g")), (50, MEMBERS), (57, reset("g")), (60, MEMBERS)]:
        replica.apply(index, encode(command, ID))
        assert replica.generation("g") == replica.results[-1].index == index


def test_a_generation_never_falls_over_deletion_and_creation_of_its_group() -> None:
    replica = with_group(MEMBERS, reset("g"))
    before = replica.generation("g")
    replica.do(DeleteGroup("g"), put_group("g"))
    assert replica.generation("g") > before
    assert refusal(replica, commit("g", before, ("t", 0, 9))) is Status.GENERATION_STALE
    assert replica.offset("g") is None


def test_offsets_that_a_deletion_keeps_are_those_of_the_next_group_of_the_name() -> None:
    """Also through an image; not those in a topic that was deleted meanwhile."""
    replica = with_group(put_topic("u"))
    replica.do(commit("g", NO_GENERATION, ("t", 0, 7), ("u", 0, 8)))
    replica.do(DeleteGroup("g", keeps_offsets=True))
    assert replica.group("g") is None and replica.groups() == []
    replica.do(DeleteTopic("u"))
    replica.load(replica.save())
    replica.do(put_topic("u"), put_group("g"))
    assert replica.group("g").offsets == {("t", 0): 7}
    assert replica.deleted_groups == {}


def test_a_deletion_that_cleans_also_cleans_what_an_earlier_one_kept() -> None:
    replica = with_group()
    replica.do(commit("g", NO_GENERATION, ("t", 0, 7)))
    replica.do(DeleteGroup("g", keeps_offsets=True), DeleteGroup("g"))
    assert refusal(replica, DeleteGroup("g")) is Status.GROUP_UNKNOWN
    replica.do(put_group("g"))
    assert replica.offset("g") is None


def test_of_too_many_kept_offsets_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MAX_DELETED_GROUPS", 2)
    monkeypatch.setattr(state_module, "MAX_DELETED_OFFSETS", 3)
    replica = with_group(put_group("h"), put_group("i"))
    for name, queues in (("g", (0,)), ("h", (0,)), ("i", (0,))):
        replica.do(commit(name, NO_GENERATION, *(("t", queue_id, 1) for queue_id in queues)))
        replica.do(DeleteGroup(name, keeps_offsets=True))
    assert list(replica.deleted_groups) == ["h", "i"]
    replica.do(put_group("j"), commit("j", NO_GENERATION, *(("t", queue_id, 1) for queue_id in range(3))))
    replica.do(DeleteGroup("j", keeps_offsets=True))
    assert list(replica.deleted_groups) == ["j"]


def test_only_the_newest_generation_commits() -> None:
    replica = with_group(MEMBERS)
    old = replica.generation("g")
    replica.do(MEMBERS)
    new = replica.generation("g")
    assert new > old
    assert refusal(replica, commit("g", old, ("t", 0, 9))) is Status.GENERATION_STALE
    assert refusal(replica, commit("g", new + 1, ("t", 0, 9))) is Status.GENERATION_STALE
    assert refusal(replica, commit("g", new, ("t", 0, 9))) is None


def test_without_a_generation_commits_count_while_the_group_has_no_members() -> None:
    replica = with_group()
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 0, 5))) is None
    replica.do(MEMBERS)
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 0, 6))) is Status.GENERATION_STALE
    replica.do(NewGeneration("g", frozenset()))
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 0, 7))) is None
    assert replica.offset("g") == 7


def test_a_consumer_without_members_that_states_the_generation_is_stopped_by_a_reset() -> None:
    replica = with_group()
    generation = replica.generation("g")
    replica.do(commit("g", generation, ("t", 0, 5)), reset("g", ("t", 0, 0)))
    assert refusal(replica, commit("g", generation, ("t", 0, 6))) is Status.GENERATION_STALE


# -- offsets ---------------------------------------------------------------------------------------------


def test_in_one_generation_the_greater_offset_wins() -> None:
    replica = with_group()
    replica.do(commit("g", NO_GENERATION, ("t", 0, 5)))
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 0, 3), ("t", 1, 1))) is None
    assert (replica.offset("g"), replica.offset("g", "t", 1)) == (5, 1)


def test_offsets_live_on_in_the_next_generation() -> None:
    replica = with_group(MEMBERS)
    replica.do(commit("g", replica.generation("g"), ("t", 0, 5)), MEMBERS)
    replica.do(commit("g", replica.generation("g"), ("t", 0, 4)))
    assert replica.offset("g") == 5


def test_a_reset_sets_offsets_backwards_and_keeps_the_members() -> None:
    replica = with_group(MEMBERS)
    replica.do(commit("g", replica.generation("g"), ("t", 0, 5), ("t", 1, 5)))
    outcome = replica.do(reset("g", ("t", 0, 2)))
    group = replica.group("g")
    assert group is not None and outcome.index == group.generation == replica.applied_index
    assert group.queue_offsets() == [QueueOffset("t", 0, 2), QueueOffset("t", 1, 5)]
    assert group.members == MEMBERS.members


@pytest.mark.parametrize("make", [lambda *o: commit("g", NO_GENERATION, *o), lambda *o: reset("g", *o)])
def test_one_unknown_queue_refuses_all_of_a_command(make: object) -> None:
    assert callable(make)
    replica = with_group()
    assert refusal(replica, make(("t", 0, 1), ("u", 0, 1))) is Status.TOPIC_UNKNOWN
    assert refusal(replica, make(("t", 0, 1), ("t", 4, 1))) is Status.QUEUE_UNKNOWN
    assert replica.offset("g") is None


def test_queues_that_are_only_read_still_take_commits() -> None:
    replica = with_group(PutTopic(TopicConfig("t", read_queues=4, write_queues=2)))
    assert refusal(replica, commit("g", NO_GENERATION, ("t", 3, 1))) is None


# -- results, threads, bytes -----------------------------------------------------------------------------


def test_results_go_to_those_who_asked() -> None:
    replica = with_group()
    replica.do(put_topic("u"))
    told = len(replica.results)
    replica.quietly(put_topic("v"))
    assert len(replica.results) == told and set(replica.ids) == {ID}
    assert replica.topic("v") is not None


def test_a_refused_outcome_raises_its_error() -> None:
    replica = with_group()
    with pytest.raises(BrokerError) as caught:
        replica.do(commit("g", 99)).check()
    assert caught.value.status is Status.GENERATION_STALE
    assert replica.do(put_topic("u")).check().index == replica.applied_index


def test_an_entry_is_applied_once() -> None:
    replica = with_group()
    replica.apply(replica.applied_index, encode(DeleteTopic("t")))
    replica.apply(0, encode(DeleteTopic("t")))
    assert replica.topic("t") is not None


def test_what_was_read_is_of_one_moment() -> None:
    replica = with_group(MEMBERS)
    group, topics = replica.group("g"), replica.topics
    assert group is not None
    replica.do(commit("g", group.generation, ("t", 0, 5)), put_topic("u"), NewGeneration("g", frozenset()))
    assert not group.offsets and group.members and list(topics) == ["t"]
    assert replica.topics is replica.topics is not topics


def test_readers_on_other_threads_never_see_half_a_commit() -> None:
    replica = with_group(MEMBERS)
    generation = replica.generation("g")

    def write() -> None:
        for n in range(1_000):
            replica.quietly(commit("g", generation, *[("t", queue_id, n) for queue_id in range(4)]))
            replica.quietly(put_topic(f"t{n % 7}"))
            replica.quietly(put_group(f"g{n % 50}"))
            replica.quietly(DeleteGroup(f"g{(n + 25) % 50}"))

    writer = Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        group = replica.group("g")
        assert group is not None
        offsets = set(group.offsets.values())
        assert len(offsets) <= 1, "the offsets of one commit, all or none"
        seen |= offsets
        assert "t" in replica.topics and group.name in {each.name for each in replica.groups()}
    writer.join()
    assert replica.offset("g") == 999 and max(seen, default=0) <= 999


@given(st.lists(st.one_of(st.binary(max_size=60), any_command.map(encode)), max_size=30))
def test_no_bytes_can_stop_a_node(bodies: list[bytes]) -> None:
    state = MetadataState()
    for index, body in enumerate(bodies):
        state.apply(index, body)
    assert state.applied_index == len(bodies) - 1
    copy = MetadataState()
    copy.load(state.save())
    assert copy.save() == state.save()


def test_what_a_node_does_not_understand_is_counted_and_changes_nothing() -> None:
    replica = with_group()
    before = replica.topics, replica.groups()
    newer = bytearray(encode(DeleteTopic("t"), ID))
    newer[3] = 2
    replica.apply(10, bytes(newer))
    replica.apply(11, b"what is this")
    replica.apply(12, encode(DeleteTopic("u"), ID))
    assert (replica.unknown, replica.damaged, replica.refused) == (1, 1, 1)
    assert (replica.topics, replica.groups()) == before
    assert replica.applied_index == 12


# -- locks of queues -------------------------------------------------------------------------------------


def test_a_grant_replaces_the_holder_and_only_the_holder_releases() -> None:
    replica = with_group(GrantLocks("g", "a", (("t", 0), ("t", 1))), GrantLocks("g", "b", (("t", 1),)))
    assert replica.lock_holders == {"g": {("t", 0): "a", ("t", 1): "b"}}
    replica.do(ReleaseLocks("g", "a", (("t", 0), ("t", 1), ("t", 9))))
    assert replica.lock_holders == {"g": {("t", 1): "b"}}
    replica.do(ReleaseLocks("g", "b", (("t", 1),)), ReleaseLocks("none", "b", (("t", 1),)))
    assert replica.lock_holders == {}


def test_holders_of_locks_have_a_limit_and_can_change_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MAX_LOCKS", 2)
    replica = with_group(GrantLocks("g", "a", (("t", 0),)), GrantLocks("h", "a", (("t", 0),)))
    assert refusal(replica, GrantLocks("g", "a", (("t", 1),))) is Status.TOO_MANY_MEMBERS
    assert refusal(replica, GrantLocks("g", "b", (("t", 0),))) is None
    replica.do(ReleaseLocks("h", "a", (("t", 0),)))
    assert refusal(replica, GrantLocks("g", "a", (("t", 1),))) is None
    assert replica.lock_holders == {"g": {("t", 0): "b", ("t", 1): "a"}}
    loaded = Replica()
    loaded.load(replica.save())
    assert refusal(loaded, GrantLocks("h", "a", (("t", 0),))) is Status.TOO_MANY_MEMBERS
