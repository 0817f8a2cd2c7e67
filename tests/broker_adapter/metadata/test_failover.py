"""Members, masters and a log of which an uncommitted tail may be lost: what was acknowledged stays.

Three nodes apply one log, each at its own pace. Members consume and commit under what they were last told,
however long ago that was; masters change, with any part of the tail. Bugs are planted, and must be found.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker_adapter.api import Assignment
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    CommitOffsets,
    NewGeneration,
    ResetOffsets,
)
from broker_adapter.metadata.coordinator import CoordinatorConfig, GroupCoordinator
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import Group, Outcome
from tests.broker_adapter.metadata.samples import ID, commit, put_group, put_topic, reset

LEASE = 3_000
CONFIG = CoordinatorConfig(collect_ms=500, orphan_ms=4_000)
MEMBERS = ("a", "b", "c")
Queue = tuple[str, int]
ALL_QUEUES = [("t", queue_id) for queue_id in range(3)]


class Told(NamedTuple):
    """What a member knows of its group."""

    generation: int
    queues: tuple[Queue, ...]


class Entry(NamedTuple):
    command: Command
    member: str  # "" if it is not a member's
    coordinator: GroupCoordinator | None  # that waits for it


class Failover(RuleBasedStateMachine):
    state_class: type[MetadataState] = MetadataState
    coordinator_class: type[GroupCoordinator] = GroupCoordinator
    acknowledges_before_commit = False

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Outcome] = []
        self.nodes = [self.new_state() for _ in range(3)]
        self.entries: list[Entry] = []
        self.committed = 0  # entries
        self.judged = 0  # entries whose effect was checked
        self.waiting_from = 0  # callers of this master's time wait for entries from here on
        self.acknowledged: dict[Queue, int] = {}
        self.told: dict[str, Told] = {}
        self.now_ms = 0
        self.master = 0
        self.began_at = 0  # index below which a generation is of an earlier master
        for command in (put_topic("t", 3), put_group("g")):
            self.append(command)
        self.commit_all()
        self.coordinator = self.coordinator_class(self.nodes[0], CONFIG)

    def new_state(self) -> MetadataState:
        return self.state_class(on_result=lambda _, outcome: self.results.append(outcome))

    # -- the log ------------------------------------------------------------------------------------------

    def append(self, command: Command, member: str = "", coordinator: GroupCoordinator | None = None) -> None:
        self.entries.append(Entry(command, member, coordinator))
        if self.acknowledges_before_commit and isinstance(command, CommitOffsets):
            self.acknowledge(command)

    def commit_all(self) -> None:
        self.commit_some(len(self.entries))

    def catch_up(self, node: int, upto: int) -> None:
        state = self.nodes[node]
        for index in range(state.applied_index + 1, min(upto, self.committed)):
            state.apply(index, encode(self.entries[index].command, ID))

    @rule(count=st.integers(1, 6))
    def commit_some(self, count: int) -> None:
        self.committed = min(self.committed + count, len(self.entries))
        while self.judged < self.committed:
            self.judge(self.judged, self.entries[self.judged])
            self.judged += 1

    def judge(self, index: int, entry: Entry) -> None:
        """Apply one entry on the master and check what it did."""
        state = self.nodes[self.master]
        before = state.group("g")
        self.catch_up(self.master, index + 1)
        outcome, after = self.results[-1], state.group("g")
        if before is None or after is None:
            return
        assert after.generation >= before.generation
        command = entry.command
        if isinstance(command, CommitOffsets):
            self.judge_commit(command, entry, before, after, outcome)
            if outcome.status is None and index >= self.waiting_from:
                self.acknowledge(command)
        elif isinstance(command, ResetOffsets):
            assert after.generation == index
            for topic, queue_id, offset in command.offsets:
                if (topic, queue_id) in self.acknowledged:
                    self.acknowledged[topic, queue_id] = offset
        if entry.coordinator is self.coordinator and isinstance(command, NewGeneration):
            self.coordinator.settled("g", applied=outcome.status is None)

    def judge_commit(
        self, command: CommitOffsets, entry: Entry, before: Group, after: Group, outcome: Outcome
    ) -> None:
        assert after.generation == before.generation
        if command.generation not in (before.generation, NO_GENERATION):
            assert outcome.status is not None and after.offsets == before.offsets
        for queue, offset in before.offsets.items():
            assert after.offsets[queue] >= offset
        if outcome.status is None and entry.member:
            for topic, queue_id, _ in command.offsets:
                mine = before.members.get(entry.member, ())
                assert (topic, queue_id) in mine, "the queue is another's by now"

    def acknowledge(self, command: CommitOffsets) -> None:
        for topic, queue_id, offset in command.offsets:
            queue = topic, queue_id
            self.acknowledged[queue] = max(self.acknowledged.get(queue, 0), offset)

    # -- members ------------------------------------------------------------------------------------------

    @rule(member=st.sampled_from(MEMBERS))
    def heartbeat(self, member: str) -> None:
        answer = self.coordinator.join("g", member, ["t"], LEASE, self.now_ms)
        if isinstance(answer, Assignment):
            self.told[member] = Told(answer.generation, tuple(answer.queues))

    @rule(member=st.sampled_from(MEMBERS), which=st.integers(0, 2), offset=st.integers(0, 20))
    def member_commits(self, member: str, which: int, offset: int) -> None:
        told = self.told.get(member)
        if told is not None and told.queues:
            topic, queue_id = told.queues[which % len(told.queues)]
            self.append(commit("g", told.generation, (topic, queue_id, offset)), member)

    @rule(queue_id=st.integers(0, 2), offset=st.integers(0, 20))
    def stranger_commits(self, queue_id: int, offset: int) -> None:
        self.append(commit("g", NO_GENERATION, ("t", queue_id, offset)))

    @rule(queue_id=st.integers(0, 2), offset=st.integers(0, 20))
    def reset_offset(self, queue_id: int, offset: int) -> None:
        self.append(reset("g", ("t", queue_id, offset)))

    # -- masters ------------------------------------------------------------------------------------------

    @rule(passed_ms=st.sampled_from([0, 100, 600, 3_000]))
    def tick(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for command in self.coordinator.tick(self.now_ms):
            self.append(command, coordinator=self.coordinator)

    @rule(kept=st.integers(0, 5), master=st.integers(0, 2))
    def failover(self, kept: int, master: int) -> None:
        """So much of the tail is in the log of the next master, which commits it; nobody waits for it now."""
        del self.entries[self.committed + kept :]
        self.waiting_from = len(self.entries)
        self.catch_up(master, self.committed)
        self.master = master
        self.commit_all()
        self.began_at = len(self.entries)
        self.coordinator = self.coordinator_class(self.nodes[master], CONFIG)

    @rule(node=st.integers(0, 2))
    def follow(self, node: int) -> None:
        self.catch_up(node, self.committed)

    @rule(node=st.integers(0, 2), source=st.integers(0, 2))
    def begin_with_an_image(self, node: int, source: int) -> None:
        if node != self.master:
            image = self.nodes[source].save()
            self.nodes[node] = self.new_state()
            self.nodes[node].load(image)

    # -- what must be true --------------------------------------------------------------------------------

    @invariant()
    def acknowledged_offsets_are_there(self) -> None:
        group = self.nodes[self.master].group("g")
        assert group is not None
        for queue, offset in self.acknowledged.items():
            assert group.offsets.get(queue, -1) >= offset

    @invariant()
    def nodes_agree(self) -> None:
        images = {node.applied_index: node.save() for node in self.nodes}
        for node in self.nodes:
            assert node.save() == images[node.applied_index]

    def teardown(self) -> None:
        self.quiet()
        self.failover(0, (self.master + 1) % 3)
        self.quiet()

    @rule()
    def quiet(self) -> None:
        """All members come back, have every queue once, under a generation of this master, and can commit."""
        for _ in range(4):
            for member in MEMBERS:
                self.heartbeat(member)
            self.tick(600)
            self.commit_all()
        for member in MEMBERS:
            self.heartbeat(member)
        assert {told.generation for told in self.told.values()} == {self.group_generation()}
        assert self.group_generation() >= self.began_at
        assert sorted(queue for told in self.told.values() for queue in told.queues) == ALL_QUEUES
        for member, told in self.told.items():
            answer = self.coordinator.answer("g", member)
            assert isinstance(answer, Assignment) and answer.heartbeat_ms == LEASE // 3
            self.append(commit("g", told.generation, (*told.queues[0], 10)), member)
        self.commit_all()
        assert all(self.acknowledged[told.queues[0]] >= 10 for told in self.told.values())

    def group_generation(self) -> int:
        group = self.nodes[self.master].group("g")
        assert group is not None
        return group.generation


Failover.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFailover = Failover.TestCase


# -- planted bugs ----------------------------------------------------------------------------------------


class NewestOffsetWins(MetadataState):
    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed


class StaleMembersCommit(MetadataState):
    def _check_generation(self, group: Group, generation: int) -> None:
        if generation > group.generation or generation == NO_GENERATION:
            super()._check_generation(group, generation)


class ResetKeepsTheGeneration(MetadataState):
    def _reset(self, index: int, command: ResetOffsets) -> int:
        return super()._reset(self._groups["g"].generation, command)


class BelievesTheOldMaster(GroupCoordinator):
    """Takes over the assignment that it finds, without a generation of its own."""

    def proposal(self, group: str, now_ms: int) -> NewGeneration | None:
        self._groups[group].inherited = False
        return super().proposal(group, now_ms)


class AnswersBeforeTheLog(GroupCoordinator):
    """Tells members what they will have, under the generation that is over then."""

    def answer(self, group: str, member_id: str) -> Assignment:
        stored, local = self._stored(group), self._groups[group]
        wanted = self._wanted(local)
        return Assignment(stored.generation, wanted[member_id], len(wanted), LEASE // 3)


def with_bug(
    state: type[MetadataState] = MetadataState,
    coordinator: type[GroupCoordinator] = GroupCoordinator,
    *,
    early: bool = False,
) -> type[Failover]:
    class WithBug(Failover):
        state_class = state
        coordinator_class = coordinator
        acknowledges_before_commit = early

    return WithBug


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(with_bug(NewestOffsetWins), id="newest offset wins"),
        pytest.param(with_bug(StaleMembersCommit), id="stale members commit"),
        pytest.param(with_bug(ResetKeepsTheGeneration), id="a reset keeps the generation"),
        pytest.param(with_bug(coordinator=BelievesTheOldMaster), id="no generation of the new master"),
        pytest.param(with_bug(coordinator=AnswersBeforeTheLog), id="assignments that are not in the log"),
        pytest.param(with_bug(early=True), id="acknowledged before it was committed"),
    ],
)
def test_planted_bugs_are_found(machine: type[Failover]) -> None:
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
        run_state_machine_as_test(machine, settings=quick)
