"""Which pulls of members move to the offset of a reset, and which commits count after it, on one master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    CommitOffsets,
    EndBarriers,
    SetRulesVersion,
)
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.records import decode
from broker_adapter.metadata.reset_barriers import (
    SETTLE_S,
    Pull,
    PullVerdict,
    RemotingCaller,
    ResetBarriers,
    ResetStyle,
)
from dledger import RULES_VERSION

from .samples import Replica, commit, offsets_of, put_group, put_topic, reset

SERVED = PullVerdict()


class Master:
    """One master of a replicated state, which can be followed by another one."""

    def __init__(self) -> None:
        self.state = Replica()
        self.state.do(SetRulesVersion(RULES_VERSION), put_topic("t"), put_group("g"))
        self.state.do(commit("g", NO_GENERATION, ("t", 0, 500)))
        self.now_s = 1_000.0
        self.members: dict[str, ResetStyle] = {}
        self.notices: list[tuple[str, int]] = []
        self.proposed: list[Command] = []
        self.ids = iter(range(1, 100))
        self.proposals = Proposals(self._append, new_request_id=lambda: next(self.ids).to_bytes(16))
        self.barriers = self._take_over()

    def _take_over(self) -> ResetBarriers:
        barriers = ResetBarriers(self.state, self.proposals, self, lambda: self.now_s)
        barriers.start(1, 1)
        return barriers

    async def fail_over(self) -> None:
        await self.barriers.stop()
        self.barriers = self._take_over()

    async def _append(self, body: bytes) -> int:
        command = decode(body).command
        assert isinstance(command, EndBarriers)
        self.proposed.append(command)
        outcome = self.state.do(command)
        self.proposals.on_result(body[4:20], outcome)
        return outcome.index

    # GroupClients

    def reset_style(self, group: str, client_id: str) -> ResetStyle:
        return self.members.get(client_id, ResetStyle.NONE)

    def groups(self) -> Set[str]:
        return {"g"} if self.members else set()

    def send_reset(self, group: str, client_id: str, topic: str, queue_id: int, offset: int) -> None:
        self.notices.append((client_id, offset))

    # What tests do

    def reset(self, offset: int) -> None:
        self.state.do(reset("g", ("t", 0, offset)))

    def arrived(self, client_id: str, offset: int, remote: str = "10.0.0.1:1") -> Pull:
        reset_index = self.barriers.reset_index("g", "t", 0)
        return Pull("t", 0, offset, "g", RemotingCaller(client_id, remote), reset_index)

    def pull(self, client_id: str, offset: int, remote: str = "10.0.0.1:1") -> PullVerdict:
        return self.barriers.judge_pull(self.arrived(client_id, offset, remote))

    def serve(self, client_id: str, offset: int, next_offset: int) -> None:
        assert self.pull(client_id, offset) == SERVED
        self.barriers.served(self.arrived(client_id, offset), next_offset)

    def commit(self, client_id: str, offset: int) -> bool:
        """Whether it counts; then it is applied."""
        verdict = self.barriers.judge_commit("g", "t", 0, offset, client_id)
        if verdict.counts:
            offsets = offsets_of(("t", 0, offset))
            command = CommitOffsets("g", NO_GENERATION, offsets, verdict.client_id, verdict.judged_at)
            self.state.do(command)
        return verdict.counts

    @property
    def stored(self) -> int | None:
        return self.state.offset("g")

    @property
    def passed(self) -> tuple[str, ...]:
        group = self.state.group("g")
        assert group is not None
        return group.barriers["t", 0].passed


@pytest.fixture
async def master() -> AsyncIterator[Master]:
    found = Master()
    found.members = dict.fromkeys("ab", ResetStyle.BY_PULL)
    yield found
    await found.barriers.stop()


async def test_without_a_reset_every_pull_is_served_and_every_commit_counts(master: Master) -> None:
    assert master.pull("a", 480) == SERVED
    assert master.commit("a", 510)
    assert master.stored == 510


@pytest.mark.parametrize("to", [10, 900])
async def test_a_member_moves_with_its_next_pull_and_then_commits(master: Master, to: int) -> None:
    master.reset(to)
    assert not master.commit("a", 505)
    assert master.pull("a", 505) == PullVerdict(to)
    master.serve("a", to, to + 5)
    assert master.commit("a", to + 5)
    assert (master.stored, master.passed) == (to + 5, ("a",))


async def test_a_member_that_asks_for_its_offset_passes_with_the_pull_from_there(master: Master) -> None:
    master.reset(10)
    master.serve("b", 10, 30)
    assert master.commit("b", 20)
    index = master.barriers.reset_index("g", "t", 0)
    master.barriers.offset_given("g", "t", 0, RemotingCaller("a", "10.0.0.1:1"), 20, index)
    assert master.commit("b", 30)  # before the other one pulls
    assert master.pull("a", 20) == SERVED


async def test_an_offset_that_was_read_before_the_reset_is_not_given_after_it(master: Master) -> None:
    index = master.barriers.reset_index("g", "t", 0)
    master.reset(10)
    master.barriers.offset_given("g", "t", 0, RemotingCaller("a", "10.0.0.1:1"), 500, index)
    assert master.pull("a", 500) == PullVerdict(10)


async def test_a_third_pull_from_elsewhere_is_a_seek(master: Master) -> None:
    """The client may have given up the first one before the answer came."""
    master.reset(10)
    assert master.pull("a", 505) == PullVerdict(10)
    assert master.pull("a", 505) == PullVerdict(10)
    master.serve("a", 505, 510)
    assert master.commit("a", 510)


async def test_pulls_that_waited_at_the_reset_are_no_choice_of_the_client(master: Master) -> None:
    """A client that left the queue and got it again waits with several pulls, and drops most answers."""
    waiting = [master.arrived("a", 500) for _ in range(5)]
    master.reset(10)
    assert [master.barriers.judge_pull(pull) for pull in waiting] == [PullVerdict(10)] * 5
    assert master.pull("a", 500) == PullVerdict(10)
    assert not master.commit("a", 500)


async def test_another_connection_of_the_client_is_moved_as_well(master: Master) -> None:
    """The answer to the first one may have been lost with it."""
    master.reset(10)
    assert master.pull("a", 505, "10.0.0.1:1") == PullVerdict(10)
    assert master.pull("a", 505, "10.0.0.1:2") == PullVerdict(10)


async def test_a_client_that_still_commits_its_old_position_does_not_undo_the_reset(master: Master) -> None:
    """DefaultLitePullConsumer of the Java client reads on from the new offset while the last offset that its
    program consumed is the old one."""
    master.reset(10)
    assert master.pull("a", 505) == PullVerdict(10)
    master.serve("a", 10, 42)
    assert not master.commit("a", 505)
    assert master.commit("a", 30)
    assert master.stored == 30


async def test_messages_that_no_member_wants_count_as_read_in_their_order(master: Master) -> None:
    master.reset(10)
    assert master.pull("a", 10) == SERVED
    master.barriers.passed_over(master.arrived("a", 500), 505)  # by what it had before
    assert not master.commit("a", 505)
    master.barriers.passed_over(master.arrived("a", 10), 40)
    master.barriers.passed_over(master.arrived("b", 10), 40)  # which has not passed
    assert not master.commit("b", 40)
    assert master.commit("a", 40)


async def test_a_paused_member_never_undoes_the_reset_that_another_one_follows(master: Master) -> None:
    master.reset(10)
    master.serve("b", 10, 30)
    for _ in range(100):
        master.now_s += 3_600
        assert not master.commit("a", 505)
        assert master.commit("b", 30)
    assert master.stored == 30
    assert master.pull("a", 505) == PullVerdict(30)


async def test_a_rebalance_long_after_the_reset_does_not_rewind(master: Master) -> None:
    master.reset(10)
    master.serve("a", 10, 2_000)
    assert master.commit("a", 2_000)
    master.now_s += 86_400
    assert master.pull("b", 2_000) == SERVED
    master.serve("b", 2_000, 2_050)
    assert master.commit("b", 2_050)
    assert (master.stored, master.passed) == (2_050, ("a", "b"))


async def test_after_a_failover_those_who_have_committed_have_passed_and_others_have_not(
    master: Master,
) -> None:
    master.reset(10)
    master.serve("a", 10, 40)
    assert master.commit("a", 20)
    master.serve("b", 20, 40)  # and does not commit
    await master.fail_over()
    assert master.pull("a", 40) == SERVED
    assert master.commit("a", 40)
    assert not master.commit("b", 505)
    assert master.pull("b", 45) == PullVerdict(40)


async def test_a_client_in_cpp_is_sent_the_offset_and_passes_when_it_follows(master: Master) -> None:
    master.members["c"] = ResetStyle.BY_NOTICE
    master.reset(10)
    assert master.pull("c", 505) == PullVerdict(10, is_notified=True)
    assert master.pull("c", 505) == PullVerdict(10, is_notified=True)
    assert master.notices == [("c", 10)]
    assert not master.commit("c", 505)
    master.serve("c", 10, 20)
    assert master.commit("c", 20)


async def test_a_client_in_cpp_that_stays_elsewhere_has_chosen_to(master: Master) -> None:
    master.members["c"] = ResetStyle.BY_NOTICE
    master.reset(10)
    assert master.pull("c", 505).move_to == 10
    master.now_s += 20
    assert master.pull("c", 505) == SERVED


async def test_commits_of_others_than_members_count_once_the_master_knows_its_members(
    master: Master,
) -> None:
    """A new master has heard of no member yet: an old commit of one must not be taken for that of a tool."""
    master.reset(10)
    master.now_s += SETTLE_S - 1
    with pytest.raises(Busy) as refused:
        master.commit("tool", 50)
    assert refused.value.status is Status.REBALANCING
    assert master.barriers.judge_commit("g", "t", 1, 50, "tool").counts  # another queue
    master.now_s += 1
    assert master.commit("tool", 50)
    assert (master.stored, master.passed) == (50, ())


async def test_commits_of_those_who_can_be_no_member_count_at_once(master: Master) -> None:
    """Tools, and UpdateOffset of the gRPC protocol."""
    master.reset(10)
    assert master.commit("", 50)
    assert (master.stored, master.passed) == (50, ())


async def test_pulls_of_others_than_members_are_served(master: Master) -> None:
    master.reset(10)
    assert master.pull("tool", 505) == SERVED


async def test_barriers_end_when_the_group_had_no_members_for_a_minute(master: Master) -> None:
    master.reset(10)
    master.now_s += SETTLE_S
    await master.barriers.sweep()
    master.members.clear()
    master.now_s += SETTLE_S - 1
    await master.barriers.sweep()
    assert not master.proposed
    master.now_s += 1
    await master.barriers.sweep()
    group = master.state.group("g")
    assert group is not None
    assert (len(master.proposed), len(group.barriers)) == (1, 0)
    master.members["late"] = ResetStyle.BY_PULL
    assert master.pull("late", 505) == SERVED


async def test_a_new_master_waits_for_a_minute_before_it_ends_barriers(master: Master) -> None:
    master.reset(10)
    master.members.clear()
    await master.barriers.sweep()
    master.now_s += SETTLE_S - 1
    await master.fail_over()
    master.now_s += SETTLE_S - 1
    await master.barriers.sweep()
    assert not master.proposed


async def test_a_slave_sends_members_that_have_not_committed_to_the_master(master: Master) -> None:
    """Whether they have passed is in the memory of the master, until they commit."""
    master.reset(10)
    master.serve("a", 10, 20)
    assert master.commit("a", 20)
    await master.barriers.stop()
    assert master.pull("a", 20) == SERVED
    assert master.pull("b", 20) == PullVerdict(20)
    assert master.pull("b", 20) == PullVerdict(20)


async def test_a_client_id_that_the_log_cannot_hold_counts_without_a_place_in_the_barrier(
    master: Master,
) -> None:
    name = "10.0.0.1@Prozeß 1"
    master.members[name] = ResetStyle.BY_PULL
    master.reset(10)
    master.serve(name, 10, 20)
    assert master.commit(name, 20)
    assert (master.stored, master.passed) == (20, ())


async def test_only_so_many_connections_are_remembered(master: Master) -> None:
    master.reset(10)
    for number in range(2_000):
        assert master.pull("a", 505, f"10.0.0.1:{number}") == PullVerdict(10)
    (queue,) = master.barriers._queues.values()
    assert len(queue.connections) == 1_024
    await asyncio.sleep(0)


async def test_barriers_stay_while_clients_are_connected(master: Master) -> None:
    """Only remoting connections show these members. Without the barrier, an old commit undoes the reset."""
    master.reset(10)
    for _ in range(3):
        await master.barriers.sweep()
        master.now_s += SETTLE_S
    await master.barriers.sweep()
    assert not master.proposed
    assert not master.commit("a", 505)


async def test_the_answer_of_a_pull_from_before_a_reset_lets_nobody_pass(master: Master) -> None:
    waiting = Pull("t", 0, 500, "g", RemotingCaller("a", "host:1"), -1)
    master.reset(10)
    master.pull("b", 10)
    master.barriers.served(waiting, 505)
    assert not master.commit("a", 505)


async def test_a_master_of_a_later_term_waits_for_a_minute_though_it_saw_no_members_in_an_earlier_one(
    master: Master,
) -> None:
    master.reset(10)
    members = dict(master.members)
    master.members.clear()
    await master.barriers.sweep()
    await master.barriers.stop()
    master.now_s += SETTLE_S  # another node was the master
    master.barriers.start(3, 3)
    await master.barriers.sweep()
    assert not master.proposed, "its members may not have sent it a heartbeat yet"
    master.members.update(members)
    assert not master.commit("a", 505)
