"""What the tests of metadata share: short commands, and strategies for any of them."""

from __future__ import annotations

from hypothesis import strategies as st

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.metadata.commands import (
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    EndBarriers,
    ExpireGroup,
    GrantLocks,
    NewGeneration,
    PutGroup,
    PutTopic,
    ReleaseLocks,
    ResetOffsets,
)
from broker_adapter.metadata.records import NO_REQUEST, encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome

ID = bytes(range(16))


def put_topic(name: str, queues: int = 4) -> PutTopic:
    return PutTopic(TopicConfig(name, queues, queues))


def put_group(name: str) -> PutGroup:
    return PutGroup(GroupConfig(name))


def offsets_of(*offsets: tuple[str, int, int]) -> tuple[QueueOffset, ...]:
    return tuple(QueueOffset(*offset) for offset in offsets)


def commit(group: str, generation: int, *offsets: tuple[str, int, int]) -> CommitOffsets:
    return CommitOffsets(group, generation, offsets_of(*offsets))


def reset(group: str, *offsets: tuple[str, int, int]) -> ResetOffsets:
    return ResetOffsets(group, offsets_of(*offsets))


class Replica(MetadataState):
    """A state that numbers what it applies, and gives each result at once."""

    def __init__(self) -> None:
        self.results: list[CommandOutcome] = []
        self.ids: list[bytes] = []
        self.cuts: list[tuple[int, str]] = []
        super().__init__(on_result=self._keep, on_topic_cut=self._keep_cut)

    def do(self, *commands: Command) -> CommandOutcome:
        for command in commands:
            self.apply(self.applied_index + 1, encode(command, ID))
        return self.results[-1]

    def quietly(self, command: Command) -> None:
        self.apply(self.applied_index + 1, encode(command, NO_REQUEST))

    def offset(self, group: str, topic: str = "t", queue_id: int = 0) -> int | None:
        found = self.group(group)
        assert found is not None
        return found.offsets.get((topic, queue_id))

    def generation(self, group: str) -> int:
        found = self.group(group)
        assert found is not None
        return found.generation

    def _keep(self, request_id: bytes, outcome: CommandOutcome) -> None:
        self.ids.append(request_id)
        self.results.append(outcome)

    def _keep_cut(self, topic: str) -> None:
        self.cuts.append((self.applied_index, topic))


names = st.text("abcXYZ019-_%|", min_size=1, max_size=40)
member_ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
queue_offsets = st.builds(QueueOffset, names, st.integers(0, 1_023), st.integers(0, (1 << 63) - 1))
attributes = st.dictionaries(names, names, max_size=3).map(lambda found: tuple(sorted(found.items())))
topic_configs = st.builds(
    TopicConfig,
    names,
    st.integers(1, 1_024),
    st.integers(1, 1_024),
    st.integers(0, 7),
    st.integers(0, (1 << 31) - 1),
    st.booleans(),
    st.sampled_from(MESSAGE_TYPES),
    attributes=attributes,
)
group_configs = st.builds(
    GroupConfig,
    names,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1_024),
    st.integers(-1, (1 << 31) - 1),
    st.booleans(),
    st.booleans(),
    attributes=attributes,
)


locked_queues = st.lists(st.tuples(names, st.integers(0, (1 << 31) - 1)), unique=True, max_size=20).map(
    lambda queues: tuple(sorted(queues))
)
lock_clients = st.text(min_size=1, max_size=255)
any_command: st.SearchStrategy[Command] = st.one_of(
    st.builds(PutTopic, topic_configs, st.booleans(), st.booleans()),
    st.builds(DeleteTopic, names),
    st.builds(BeginQueue, names, st.integers(0, 1023), st.integers(0, 1 << 50)),
    st.builds(PutGroup, group_configs, st.booleans()),
    st.builds(DeleteGroup, names, st.booleans()),
    st.builds(ExpireGroup, names, st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 96)),
    st.builds(
        CommitOffsets,
        names,
        st.integers(-1, (1 << 63) - 1),
        st.lists(queue_offsets, max_size=20).map(tuple),
        st.just("") | member_ids,
        st.integers(-1, (1 << 63) - 1),
    ),
    st.builds(EndBarriers, names, st.integers(0, (1 << 63) - 1)),
    st.builds(ResetOffsets, names, st.lists(queue_offsets, max_size=20).map(tuple), st.booleans()),
    st.builds(NewGeneration, names, st.frozensets(member_ids, max_size=5)),
    st.builds(GrantLocks, names, lock_clients, locked_queues),
    st.builds(ReleaseLocks, names, lock_clients, locked_queues),
)
