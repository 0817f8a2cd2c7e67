"""A reset holds against commits that were judged before it, in the state that every node derives."""

from __future__ import annotations

from dataclasses import replace

from broker_adapter.metadata.commands import (
    NO_GENERATION,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    EndBarriers,
    SetRulesVersion,
)
from broker_adapter.metadata.records import decode, encode
from broker_adapter.metadata.values import MAX_PASSED, Barrier
from dledger import RULES_VERSION

from .samples import Replica, commit, put_group, put_topic, reset


def replica() -> Replica:
    state = Replica()
    state.do(SetRulesVersion(RULES_VERSION), put_topic("t"), put_group("g"))
    return state


def own_commit(offset: int, *, judged_at: int, client_id: str = "") -> CommitOffsets:
    return replace(commit("g", NO_GENERATION, ("t", 0, offset)), judged_at=judged_at, client_id=client_id)


def barriers(state: Replica) -> dict[tuple[str, int], Barrier]:
    group = state.group("g")
    assert group is not None
    return dict(group.barriers)


def test_a_commit_that_was_judged_before_a_reset_changes_nothing() -> None:
    state = replica()
    state.do(own_commit(50, judged_at=state.applied_index))
    judged_at = state.applied_index
    state.do(reset("g", ("t", 0, 10)))
    assert state.do(own_commit(60, judged_at=judged_at)).status is None
    assert state.offset("g") == 10


def test_a_commit_that_was_judged_after_a_reset_moves_the_offset() -> None:
    state = replica()
    index = state.do(reset("g", ("t", 0, 10))).index
    state.do(own_commit(12, judged_at=index))
    assert state.offset("g") == 12


def test_a_reset_of_one_queue_leaves_older_commits_of_other_queues_alone() -> None:
    state = replica()
    judged_at = state.applied_index
    state.do(reset("g", ("t", 0, 10)))
    state.do(replace(commit("g", NO_GENERATION, ("t", 0, 60), ("t", 1, 7)), judged_at=judged_at))
    assert (state.offset("g"), state.offset("g", queue_id=1)) == (10, 7)


def test_the_first_commit_that_counts_writes_the_client_into_the_barrier() -> None:
    state = replica()
    index = state.do(reset("g", ("t", 0, 10))).index
    state.do(own_commit(60, judged_at=index - 1, client_id="late"))
    state.do(own_commit(12, judged_at=index, client_id="a"), own_commit(13, judged_at=index, client_id="a"))
    assert barriers(state) == {("t", 0): Barrier(index, ("a",))}


def test_a_barrier_remembers_the_newest_clients() -> None:
    state = replica()
    index = state.do(reset("g", ("t", 0, 10))).index
    for number in range(MAX_PASSED + 1):
        state.do(own_commit(10, judged_at=index, client_id=f"c{number}"))
    assert barriers(state)["t", 0].passed == tuple(f"c{number}" for number in range(1, MAX_PASSED + 1))


def test_a_newer_reset_replaces_the_barrier_and_forgets_who_has_passed() -> None:
    state = replica()
    first = state.do(reset("g", ("t", 0, 10))).index
    state.do(own_commit(12, judged_at=first, client_id="a"))
    second = state.do(reset("g", ("t", 0, 5))).index
    state.do(own_commit(13, judged_at=first, client_id="a"))
    assert barriers(state) == {("t", 0): Barrier(second)}
    assert state.offset("g") == 5


def test_a_commit_of_the_generation_that_a_reset_has_begun_counts() -> None:
    """Release 0.1.0 wrote such commits. They have no `judged_at`, and the generation is what counts."""
    state = replica()
    generation = state.do(reset("g", ("t", 0, 10))).index
    state.do(replace(commit("g", generation, ("t", 0, 12)), judged_at=0))
    assert state.offset("g") == 12


def test_barriers_end_by_command_up_to_the_reset_that_it_names() -> None:
    state = replica()
    first = state.do(reset("g", ("t", 0, 10))).index
    second = state.do(reset("g", ("t", 1, 10))).index
    state.do(EndBarriers("g", first))
    assert barriers(state) == {("t", 1): Barrier(second)}


def test_barriers_go_with_their_topic_and_their_group() -> None:
    state = replica()
    state.do(put_topic("u"))
    index = state.do(reset("g", ("t", 0, 10), ("u", 0, 3))).index
    state.do(DeleteTopic("t"))
    assert barriers(state) == {("u", 0): Barrier(index)}
    state.do(DeleteGroup("g"), put_group("g"))
    assert barriers(state) == {}


def test_an_image_has_the_barriers() -> None:
    state = replica()
    index = state.do(reset("g", ("t", 0, 10), ("t", 2, 5))).index
    state.do(own_commit(12, judged_at=index, client_id="a"), own_commit(13, judged_at=index, client_id="b"))
    other = Replica()
    other.load(state.save())
    assert barriers(other) == barriers(state) != {}
    assert other.save() == state.save()


def test_a_log_of_release_0_1_0_sets_no_barriers() -> None:
    """Nodes that resume from an image of that release and nodes that replay its log stay equal."""
    state = Replica()
    state.do(put_topic("t"), put_group("g"), reset("g", ("t", 0, 10)))
    assert barriers(state) == {}


def test_an_offset_that_is_copied_from_another_cluster_sets_no_barrier_and_leaves_others() -> None:
    state = replica()
    index = state.do(reset("g", ("t", 0, 10))).index
    state.do(replace(reset("g", ("t", 0, 8), ("t", 1, 5)), has_barriers=False))
    assert (state.offset("g"), state.offset("g", queue_id=1)) == (8, 5)
    assert barriers(state) == {("t", 0): Barrier(index)}


def test_an_adopted_offset_sets_no_barrier() -> None:
    """A slave that corrects its copy of a genuine master's offsets: no operator has reset the group."""
    state = replica()
    state.adopt(reset("g", ("t", 0, 10)))
    assert (state.offset("g"), barriers(state)) == (10, {})


def test_a_commit_of_release_0_1_0_is_read() -> None:
    new = encode(commit("g", 7, ("t", 0, 3)))
    judgement = 8 + 2  # the index, and an empty client id
    at = 20 + 2 + len("g") + 8
    old = new[:3] + b"\x01" + new[4:at] + new[at + judgement :]
    assert decode(old).command == commit("g", 7, ("t", 0, 3))


def test_a_barrier_goes_with_an_offset_that_is_dropped() -> None:
    """Otherwise the first commits in a queue that restarts change nothing, and messages are redelivered."""
    for is_restart in (False, True):
        state = replica()
        judged_at = state.applied_index
        index = state.do(reset("g", ("t", 0, 10), ("t", 1, 3))).index
        if is_restart:
            state.drop_queue("t", 0)
        else:
            state.do(DropOffsets("g", (("t", 0),)))
        group = state.group("g")
        assert group is not None and list(group.barriers) == [("t", 1)]
        assert group.barriers["t", 1].reset_index == index and dict(group.offsets) == {("t", 1): 3}
        state.do(replace(commit("g", NO_GENERATION, ("t", 0, 1)), judged_at=judged_at))
        assert state.offset("g") == 1
