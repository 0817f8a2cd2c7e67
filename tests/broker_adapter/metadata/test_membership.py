"""Joining and leaving through the log, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_adapter.errors import BrokerError, Busy, NotMaster, PutIndeterminate, Status
from broker_adapter.metadata.commands import Command, DeleteGroup
from broker_adapter.metadata.coordinator import CoordinatorConfig
from broker_adapter.metadata.membership import Membership
from broker_adapter.metadata.values import Outcome
from tests.broker_adapter.metadata.samples import Replica, commit, put_group, put_topic

LEASE = 9_000


class Node:
    def __init__(self, replica: Replica | None = None, *, join_timeout_ms: int = 60_000) -> None:
        self.replica = replica or Replica()
        if replica is None:
            self.replica.do(put_topic("t"), put_group("g"))
        self.now_ms = 0
        self.asked = 0
        self.open = asyncio.Event()  # while it is not set, proposals do not come through
        self.open.set()
        self.failures: Iterator[Exception] = iter(())
        self.proposed = 0
        self.membership = Membership(
            self.replica,
            self.propose,
            self.clock,
            CoordinatorConfig(min_lease_ms=1),
            tick_ms=60_000,
            join_timeout_ms=join_timeout_ms,
        )
        self.membership.start()

    def clock(self) -> int:
        self.asked += 1
        return self.now_ms

    async def propose(self, command: Command) -> Outcome:
        self.proposed += 1
        await self.open.wait()
        if (error := next(self.failures, None)) is not None:
            raise error
        return self.replica.do(command)

    def joining(self, member_id: str) -> asyncio.Task[object]:
        return asyncio.create_task(self.membership.join("g", member_id, ["t"], LEASE))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_joining_returns_once_the_log_has_an_assignment() -> None:
    node = Node()
    answer = await node.membership.join("g", "a", ["t"], LEASE)
    assert answer.generation == node.replica.applied_index and len(answer.queues) == 4
    assert await node.membership.join("g", "a", ["t"], LEASE) == answer
    assert node.proposed == 1


async def test_members_that_join_while_a_proposal_is_on_its_way_share_the_next_one() -> None:
    node = Node()
    node.open.clear()
    joining = [node.joining(member_id) for member_id in "abcd"]
    await settled()
    assert node.proposed == 1
    node.open.set()
    await asyncio.gather(*joining)
    assert node.proposed == 2
    answers = [await node.membership.join("g", member_id, ["t"], LEASE) for member_id in "abcd"]
    assert {answer.generation for answer in answers} == {node.replica.generation("g")}
    assert [len(answer.queues) for answer in answers] == [1, 1, 1, 1]


async def test_leaving_hands_the_queues_over_at_once() -> None:
    node = Node()
    await asyncio.gather(node.joining("a"), node.joining("b"))
    await node.membership.leave("g", "a")
    await settled()
    assert len((await node.membership.join("g", "b", ["t"], LEASE)).queues) == 4


async def test_what_fails_is_proposed_again_by_the_next_tick() -> None:
    node = Node()
    node.failures = iter([PutIndeterminate(Status.OUTCOME_UNKNOWN, "nobody knows")])
    joining = node.joining("a")
    await settled()
    assert not joining.done() and node.proposed == 1
    node.membership.tick()
    await joining


async def test_a_join_that_takes_too_long_is_to_be_tried_again() -> None:
    node = Node(join_timeout_ms=1)
    node.open.clear()
    with pytest.raises(Busy) as caught:
        await node.joining("a")
    assert caught.value.status is Status.REBALANCING
    node.open.set()
    await settled()
    assert len((await node.membership.join("g", "a", ["t"], LEASE)).queues) == 4


async def test_a_lease_does_not_run_out_while_its_member_waits() -> None:
    node = Node()
    node.open.clear()
    waiting = asyncio.create_task(node.membership.join("g", "a", ["t"], 30))
    await settled()
    node.now_ms = 20
    asked = node.asked
    while node.asked < asked + 2:
        await asyncio.sleep(0)
    node.now_ms = 40
    node.open.set()
    assert len((await waiting).queues) == 4
    assert node.proposed == 1, "its lease would have ended at 30"


async def test_who_waits_while_the_node_stops_being_master_is_told() -> None:
    node = Node()
    node.open.clear()
    joining = node.joining("a")
    await settled()
    node.membership.stop()
    with pytest.raises(NotMaster):
        await joining
    for call in (node.membership.join("g", "a", ["t"], LEASE), node.membership.leave("g", "a")):
        with pytest.raises(NotMaster):
            await call
    node.open.set()
    await settled()
    node.membership.tick()
    assert node.proposed == 1


async def test_who_leaves_while_it_waits_does_not_come_back_by_waiting() -> None:
    node = Node()
    node.open.clear()
    joining = node.joining("a")
    await settled()
    await node.membership.leave("g", "a")
    node.open.set()
    with pytest.raises(BrokerError) as caught:
        await joining
    assert caught.value.status is Status.NOT_A_MEMBER
    await settled()
    assert not node.replica.groups()[0].members


async def test_who_waits_in_a_group_that_is_deleted_is_told() -> None:
    node = Node()
    node.open.clear()
    joining = node.joining("a")
    await settled()
    node.replica.do(DeleteGroup("g"))
    node.membership.tick()
    with pytest.raises(BrokerError) as caught:
        await joining
    assert caught.value.status is Status.GROUP_UNKNOWN
    node.open.set()
    await settled()


async def test_a_new_master_takes_the_members_over_under_a_new_generation() -> None:
    old = Node()
    await asyncio.gather(old.joining("a"), old.joining("b"))
    before = await old.membership.join("g", "a", ["t"], LEASE)
    old.membership.stop()
    new = Node(old.replica)
    assert (await new.membership.join("g", "a", ["t"], LEASE)).generation == before.generation
    assert new.replica.do(commit("g", before.generation, ("t", 0, 1))).status is None
    await new.membership.join("g", "b", ["t"], LEASE)
    await settled()
    after = await new.membership.join("g", "a", ["t"], LEASE)
    assert after.generation > before.generation and after.queues == before.queues
    new.membership.stop()


async def test_a_mistake_is_told_and_the_next_tick_proposes_again() -> None:
    node = Node()
    node.failures = iter([RuntimeError("a mistake")])
    with capture_logs() as logs:
        joining = node.joining("a")
        await settled()
    assert [(line["log_level"], str(line["exc_info"])) for line in logs] == [("error", "a mistake")]
    assert not joining.done() and node.proposed == 1 and not node.membership._tasks
    node.membership.tick()
    await joining
    assert node.proposed == 2


async def test_the_clock_drives_it() -> None:
    replica = Replica()
    replica.do(put_topic("t"), put_group("g"))
    proposed = asyncio.Event()

    async def propose(command: Command) -> Outcome:
        proposed.set()
        return replica.do(command)

    now = [0]
    membership = Membership(replica, propose, lambda: now[0], CoordinatorConfig(), tick_ms=1)
    membership.start()
    await membership.join("g", "a", ["t"], LEASE)
    proposed.clear()
    now[0] = LEASE
    await asyncio.wait_for(proposed.wait(), 60)
    await settled()
    assert replica.group("g") is not None and not replica.groups()[0].members
    membership.stop()
