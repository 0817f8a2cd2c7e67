"""The state against the obvious implementation, in any order of commands, with images anywhere in between.

Bugs of the kind that this is for are planted, and must be found.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    NewGeneration,
    PutGroup,
    PutTopic,
    ResetOffsets,
    SetRulesVersion,
)
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome, Group
from tests.broker_adapter.metadata.history import History
from tests.broker_adapter.metadata.samples import ID, put_group, put_topic

TOPICS = ("t", "u")
GROUPS = ("g", "h")
QUEUES = range(4)

topics, groups = st.sampled_from(TOPICS), st.sampled_from(GROUPS)
queue_counts = st.integers(1, 3)
offset_lists = st.lists(
    st.builds(QueueOffset, topics, st.sampled_from(QUEUES), st.integers(0, 5)), min_size=1, max_size=3
).map(tuple)
members = st.frozensets(st.sampled_from("mn"))


class Metadata(RuleBasedStateMachine):
    """`state` is replaced by a copy of its image now and then; `twin` has applied everything itself."""

    state_class: type[MetadataState] = MetadataState

    def __init__(self) -> None:
        super().__init__()
        self.results: list[CommandOutcome] = []
        self.state, self.twin = self.new_state(), self.new_state()
        self.history = History()
        self.index = -1
        self.greatest = dict.fromkeys(GROUPS, -1)  # generation ever seen, deletions or not
        self.before: dict[tuple[str, str, int], int | None] = {}

    def new_state(self) -> MetadataState:
        return self.state_class(on_result=lambda _, outcome: self.results.append(outcome))

    def do(self, command: Command, gap: int = 1) -> None:
        self.index += gap
        self.results.clear()
        self.remember_offsets()
        self.state.apply(self.index, encode(command, ID))
        self.twin.apply(self.index, encode(command, ID))
        expected = self.history.put(self.index, command)
        assert [outcome.status for outcome in self.results] == [expected, expected]
        self.check_offsets_only_grow(command)

    @initialize(empty=st.booleans())
    def begin(self, empty: bool) -> None:
        if not empty:
            for command in (*map(put_topic, TOPICS), *map(put_group, GROUPS)):
                self.do(command)

    @rule(topic=topics, read=queue_counts, write=queue_counts, create_only=st.booleans())
    def put_topic(self, topic: str, read: int, write: int, create_only: bool) -> None:
        self.do(PutTopic(TopicConfig(topic, read, write), create_only))

    @rule(group=groups, retry_queues=queue_counts, create_only=st.booleans())
    def put_group(self, group: str, retry_queues: int, create_only: bool) -> None:
        self.do(PutGroup(GroupConfig(group, retry_queues=retry_queues), create_only))

    @rule(command=st.one_of(topics.map(DeleteTopic), groups.map(DeleteGroup)))
    def delete(self, command: Command) -> None:
        self.do(command)

    @rule(group=groups, queue_id=st.integers(0, 1), offset=st.integers(0, 5))
    def commit_with_its_generation(self, group: str, queue_id: int, offset: int) -> None:
        found = self.state.group(group)
        if found is not None:
            self.do(CommitOffsets(group, found.generation, (QueueOffset("t", queue_id, offset),)))

    @rule(group=groups, offsets=offset_lists, which=st.integers(-3, 3))
    def commit(self, group: str, offsets: tuple[QueueOffset, ...], which: int) -> None:
        """Mostly with the newest generation or without one, else with one around it."""
        found = self.state.group(group)
        newest = found.generation if found else self.greatest[group]
        generation = {-3: NO_GENERATION, -2: newest - 1, 2: newest + 1, 3: NO_GENERATION}.get(which, newest)
        self.do(CommitOffsets(group, max(generation, NO_GENERATION), offsets))

    @rule(group=groups, offsets=offset_lists)
    def reset(self, group: str, offsets: tuple[QueueOffset, ...]) -> None:
        self.do(ResetOffsets(group, offsets))

    @rule(group=groups, members=members, gap=st.integers(1, 3))
    def set_members(self, group: str, members: frozenset[str], gap: int) -> None:
        self.do(NewGeneration(group, members), gap)

    @precondition(lambda self: self.index > 15)
    @rule(version=st.sampled_from([2, 3]))
    def raise_rules(self, version: int) -> None:
        self.do(SetRulesVersion(version))

    @rule(body=st.binary(max_size=30))
    def damage(self, body: bytes) -> None:
        self.index += 1
        self.state.apply(self.index, body)
        self.twin.apply(self.index, body)

    @rule()
    def from_image(self) -> None:
        image = self.state.save()
        self.state = self.new_state()
        self.state.load(image)

    @rule(back=st.integers(0, 3), group=groups)
    def hand_out_again(self, back: int, group: str) -> None:
        """Entries that an image covers are met again when the log below it is read."""
        self.state.apply(self.index - back, encode(DeleteGroup(group)))

    @invariant()
    def copies_agree(self) -> None:
        assert self.state.save() == self.twin.save()

    @invariant()
    def history_agrees(self) -> None:
        history = self.history
        for topic in TOPICS:
            assert self.state.topic(topic) == history.topic(topic)
        for name in GROUPS:
            group = self.state.group(name)
            assert (group and group.config) == history.config(name)
            if group is not None:
                assert group.generation == history.generation(name)
                assert group.members == history.members(name)
                for topic in TOPICS:
                    for queue_id in QUEUES:
                        assert group.offsets.get((topic, queue_id)) == history.offset(name, topic, queue_id)

    @invariant()
    def generations_never_fall(self) -> None:
        for group in self.state.groups():
            assert group.generation >= self.greatest[group.name]
            self.greatest[group.name] = group.generation

    def remember_offsets(self) -> None:
        self.before = {
            (group.name, *queue): offset
            for group in self.state.groups()
            for queue, offset in group.offsets.items()
        }

    def check_offsets_only_grow(self, command: Command) -> None:
        if isinstance(command, ResetOffsets | DeleteTopic | DeleteGroup):
            return
        for (name, topic, queue_id), offset in self.before.items():
            group = self.state.group(name)
            assert group is not None and group.offsets[topic, queue_id] >= (offset or 0)


Metadata.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMetadata = Metadata.TestCase


# -- planted bugs ----------------------------------------------------------------------------------------


class LowerGenerationAccepted(MetadataState):
    def _check_generation(self, group: Group, generation: int) -> None:
        if generation > group.generation or (generation == NO_GENERATION and group.members):
            super()._check_generation(group, generation)


class HigherGenerationAccepted(MetadataState):
    def _check_generation(self, group: Group, generation: int) -> None:
        super()._check_generation(group, min(generation, group.generation))


class MembersAreNoObstacle(MetadataState):
    def _check_generation(self, group: Group, generation: int) -> None:
        if generation != NO_GENERATION:
            super()._check_generation(group, generation)


class SmallerOffsetWins(MetadataState):
    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed if stored is None else min(stored, committed)


class NewestOffsetWins(MetadataState):
    """SlaveSynchronize's: what comes last overwrites."""

    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed


class GenerationsAreCountedByGroup(MetadataState):
    """They begin anew when the group does."""

    def _put_group(self, index: int, command: PutGroup) -> None:
        existed = command.config.name in self._groups
        super()._put_group(index, command)
        if not existed:
            self._groups[command.config.name] = self._groups[command.config.name]._replace(generation=0)


class ResetKeepsTheGeneration(MetadataState):
    def _reset(self, index: int, command: ResetOffsets) -> None:
        generation = self._groups[command.group].generation if command.group in self._groups else index
        super()._reset(generation, command)


class ImageWithoutMembers(MetadataState):
    def load(self, image: bytes) -> None:
        super().load(image)
        self._groups = {name: group._replace(members=frozenset()) for name, group in self._groups.items()}


class MembersOutliveTheRaise(MetadataState):
    """Their groups refuse all commits for ever."""

    def _raise_rules(self, version: int) -> None:
        self._rules_version = max(self._rules_version, version)


class MembersAreTakenAfterTheRaise(MetadataState):
    def _set_members(self, index: int, command: NewGeneration) -> None:
        group = self._known_group(command.group)
        self._groups[group.name] = group._replace(generation=index, members=command.members)


class ImageWithoutItsIndex(MetadataState):
    def load(self, image: bytes) -> None:
        super().load(image)
        self._applied_index = -1


class OffsetsOutliveTheirTopic(MetadataState):
    def _delete_topic(self, name: str) -> None:
        kept = dict(self._groups)
        super()._delete_topic(name)
        self._groups = kept


class HalfACommit(MetadataState):
    """Offsets in front of the unknown queue are kept."""

    def _check_queues(self, offsets: tuple[QueueOffset, ...]) -> None:
        super()._check_queues(offsets[:1])


PLANTED: list[type[MetadataState]] = [
    LowerGenerationAccepted,
    HigherGenerationAccepted,
    MembersAreNoObstacle,
    SmallerOffsetWins,
    NewestOffsetWins,
    GenerationsAreCountedByGroup,
    ResetKeepsTheGeneration,
    ImageWithoutMembers,
    MembersOutliveTheRaise,
    MembersAreTakenAfterTheRaise,
    ImageWithoutItsIndex,
    OffsetsOutliveTheirTopic,
    HalfACommit,
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(bug: type[MetadataState]) -> None:
    class WithBug(Metadata):
        state_class = bug

    quick = settings(
        max_examples=500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(WithBug, settings=quick)
