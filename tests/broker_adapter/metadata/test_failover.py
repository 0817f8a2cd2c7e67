"""Consumers, masters and a log of which an uncommitted tail may be lost: acknowledged offsets stay.

Three nodes apply one log, each at its own pace. Masters change, with any part of the tail. Bugs are planted,
and must be found.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker_adapter.metadata.commands import (
    MAX_OFFSET,
    NO_GENERATION,
    Command,
    CommitOffsets,
    ResetOffsets,
    SetRulesVersion,
)
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome
from dledger import RULES_VERSION
from tests.broker_adapter.metadata.samples import ID, commit, put_group, put_topic, reset

Queue = tuple[str, int]


class Failover(RuleBasedStateMachine):
    state_class: type[MetadataState] = MetadataState
    acknowledges_before_commit = False

    def __init__(self) -> None:
        super().__init__()
        self.results: list[CommandOutcome] = []
        self.nodes = [self.new_state() for _ in range(3)]
        self.entries: list[Command] = []
        self.committed = 0  # entries
        self.judged = 0  # entries whose effect was checked
        self.waiting_from = 0  # callers of this master's time wait for entries from here on
        self.acknowledged: dict[Queue, int] = {}
        self.reset_at: dict[Queue, int] = {}
        self.master = 0
        for command in (put_topic("t", 3), put_group("g"), SetRulesVersion(RULES_VERSION)):
            self.append(command)
        self.commit_some(3)

    def new_state(self) -> MetadataState:
        return self.state_class(on_result=lambda _, outcome: self.results.append(outcome))

    def append(self, command: Command) -> None:
        self.entries.append(command)
        if self.acknowledges_before_commit and isinstance(command, CommitOffsets):
            self.acknowledge(command)

    def catch_up(self, node: int, upto: int) -> None:
        state = self.nodes[node]
        for index in range(state.applied_index + 1, min(upto, self.committed)):
            state.apply(index, encode(self.entries[index], ID))

    @rule(count=st.integers(1, 6))
    def commit_some(self, count: int) -> None:
        self.committed = min(self.committed + count, len(self.entries))
        while self.judged < self.committed:
            self.judge(self.judged, self.entries[self.judged])
            self.judged += 1

    def judge(self, index: int, command: Command) -> None:
        """Apply one entry on the master and check what it did."""
        before = self.offsets()
        self.catch_up(self.master, index + 1)
        after = self.offsets()
        if isinstance(command, CommitOffsets):
            for queue, offset in before.items():
                assert after[queue] >= offset
                if self.reset_at.get(queue, -1) > command.judged_at:
                    assert after[queue] == offset, "it was judged before a reset"
            if index >= self.waiting_from:
                self.acknowledge(command)
        elif isinstance(command, ResetOffsets):
            for topic, queue_id, offset in command.offsets:
                assert after[topic, queue_id] == offset
                self.reset_at[topic, queue_id] = index
                self.acknowledged.pop((topic, queue_id), None)

    def offsets(self) -> dict[Queue, int]:
        group = self.nodes[self.master].group("g")
        return {} if group is None else dict(group.offsets)

    def acknowledge(self, command: CommitOffsets) -> None:
        for topic, queue_id, offset in command.offsets:
            queue = topic, queue_id
            if self.reset_at.get(queue, -1) <= command.judged_at:
                self.acknowledged[queue] = max(self.acknowledged.get(queue, 0), offset)

    @rule(queue_id=st.integers(0, 2), offset=st.integers(0, 20))
    def consumer_commits(self, queue_id: int, offset: int) -> None:
        judged_at = self.nodes[self.master].applied_index
        self.append(replace(commit("g", NO_GENERATION, ("t", queue_id, offset)), judged_at=judged_at))

    @rule(queue_id=st.integers(0, 2), offset=st.integers(0, 20))
    def reset_offset(self, queue_id: int, offset: int) -> None:
        self.append(reset("g", ("t", queue_id, offset)))

    @rule(kept=st.integers(0, 5), master=st.integers(0, 2))
    def failover(self, kept: int, master: int) -> None:
        """So much of the tail is in the log of the next master, which commits it; nobody waits for it now."""
        del self.entries[self.committed + kept :]
        self.waiting_from = len(self.entries)
        self.catch_up(master, self.committed)
        self.master = master
        self.commit_some(len(self.entries))

    @rule(node=st.integers(0, 2))
    def follow(self, node: int) -> None:
        self.catch_up(node, self.committed)

    @rule(node=st.integers(0, 2), source=st.integers(0, 2))
    def start_from_an_image(self, node: int, source: int) -> None:
        if node != self.master:
            image = self.nodes[source].save()
            self.nodes[node] = self.new_state()
            self.nodes[node].load(image)

    @invariant()
    def acknowledged_offsets_are_there(self) -> None:
        offsets = self.offsets()
        for queue, offset in self.acknowledged.items():
            assert offsets.get(queue, -1) >= offset

    @invariant()
    def nodes_agree(self) -> None:
        images = {node.applied_index: node.save() for node in self.nodes}
        for node in self.nodes:
            assert node.save() == images[node.applied_index]

    def teardown(self) -> None:
        self.failover(0, (self.master + 1) % 3)
        self.acknowledged_offsets_are_there()


Failover.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFailover = Failover.TestCase


# -- planted bugs ----------------------------------------------------------------------------------------


class NewestOffsetWins(MetadataState):
    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed


class CommitsUndoAReset(MetadataState):
    def _commit(self, command: CommitOffsets) -> None:
        super()._commit(replace(command, judged_at=MAX_OFFSET))


class ImageWithoutBarriers(MetadataState):
    def load(self, image: bytes) -> None:
        super().load(image)
        self._groups = {name: group._replace(barriers={}) for name, group in self._groups.items()}


def with_bug(state: type[MetadataState] = MetadataState, *, early: bool = False) -> type[Failover]:
    class WithBug(Failover):
        state_class = state
        acknowledges_before_commit = early

    return WithBug


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(with_bug(NewestOffsetWins), id="newest offset wins"),
        pytest.param(with_bug(CommitsUndoAReset), id="commits undo a reset"),
        pytest.param(with_bug(ImageWithoutBarriers), id="an image has no barriers"),
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
