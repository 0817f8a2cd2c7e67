"""A proposal is answered once it was applied here; until then nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from broker_adapter.errors import Busy, IllegalMessage, NotMaster, PutIndeterminate, Status
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome
from tests.broker_adapter.metadata.samples import commit, put_group, put_topic

FOREVER_MS = 60_000


class Node:
    """A state, proposals to it, and a log that applies on another thread whatever is appended."""

    def __init__(self, *, timeout_ms: int = FOREVER_MS, max_waiting: int = 10) -> None:
        ids = count(1)
        self.bodies: list[bytes] = []
        self.before: Callable[[], None] = lambda: None  # runs in front of the append
        self.after: Callable[[], None] = lambda: None  # runs when all of it was applied
        self.applies = True
        self.held: asyncio.Future[None] | None = None
        self.proposals = Proposals(
            self.append,
            new_request_id=lambda: next(ids).to_bytes(16, "big"),
            timeout_ms=timeout_ms,
            max_waiting=max_waiting,
        )
        self.state = MetadataState(on_result=self.proposals.on_result)

    async def append(self, body: bytes) -> int:
        self.before()
        self.bodies.append(body)
        if self.applies:
            await self.apply_all()
        if self.held is not None:
            await self.held
        self.after()
        return len(self.bodies) - 1

    async def apply_all(self) -> None:
        for index in range(self.state.applied_index + 1, len(self.bodies)):
            await asyncio.to_thread(self.state.apply, index, self.bodies[index])


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


async def test_a_proposal_is_answered_with_what_came_of_it() -> None:
    node = Node()
    assert await node.proposals.propose(put_topic("t")) == CommandOutcome(0)
    assert await node.proposals.propose(put_group("g")) == CommandOutcome(1)
    refused = await node.proposals.propose(commit("g", 0))
    assert (refused.index, refused.status) == (2, Status.GENERATION_STALE)
    assert len(node.proposals) == 0


async def test_each_gets_its_own_result() -> None:
    node = Node()
    node.applies = False
    tasks = [asyncio.create_task(node.proposals.propose(put_group(f"g{n}"))) for n in range(5)]
    while len(node.bodies) < 5:
        await asyncio.sleep(0)
    await node.apply_all()
    assert [outcome.index for outcome in await asyncio.gather(*tasks)] == [0, 1, 2, 3, 4]


async def test_what_is_refused_before_it_is_in_the_log_raises() -> None:
    node = Node()
    node.before = raising(NotMaster("a slave"))
    with pytest.raises(NotMaster):
        await node.proposals.propose(put_topic("t"))
    with pytest.raises(IllegalMessage):
        await node.proposals.propose(put_topic("t t"))
    assert len(node.proposals) == 0 and not node.bodies


async def test_nobody_knows_what_was_not_applied_in_time() -> None:
    node = Node(timeout_ms=1)
    node.applies = False
    with pytest.raises(PutIndeterminate):
        await node.proposals.propose(put_topic("t"))
    await node.apply_all()
    assert len(node.proposals) == 0 and node.state.topic("t") is not None


async def test_nobody_knows_what_the_log_does_not_know() -> None:
    node = Node()
    node.applies = False
    node.after = raising(PutIndeterminate(Status.OUTCOME_UNKNOWN, "the term changed"))
    with pytest.raises(PutIndeterminate, match="the term changed"):
        await node.proposals.propose(put_topic("t"))


async def test_what_was_applied_is_known_even_if_the_log_did_not_say_so() -> None:
    node = Node()
    node.after = raising(PutIndeterminate(Status.OUTCOME_UNKNOWN, "the term changed"))
    assert await node.proposals.propose(put_topic("t")) == CommandOutcome(0)


async def test_who_waits_is_told_when_this_node_is_not_the_master_any_more() -> None:
    node = Node()
    node.applies = False
    waiting = asyncio.create_task(node.proposals.propose(put_topic("t")))
    while not node.bodies:
        await asyncio.sleep(0)
    node.proposals.abandon("not the master any more")
    with pytest.raises(PutIndeterminate, match="not the master any more"):
        await waiting
    await node.apply_all()
    assert node.state.topic("t") is not None


async def test_so_many_are_on_their_way_at_a_time() -> None:
    node = Node(max_waiting=2)
    node.held = asyncio.get_running_loop().create_future()
    tasks = [asyncio.create_task(node.proposals.propose(put_topic(name))) for name in "tu"]
    while len(node.proposals) < 2:
        await asyncio.sleep(0)
    with pytest.raises(Busy) as caught:
        await node.proposals.propose(put_topic("v"))
    assert caught.value.status is Status.TOO_MANY_PROPOSALS
    node.held.set_result(None)
    await asyncio.gather(*tasks)
    assert await node.proposals.propose(put_topic("v"))


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    node = Node()
    node.applies = False
    waiting = asyncio.create_task(node.proposals.propose(put_topic("t")))
    while not node.bodies:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(node.proposals) == 0
    await node.apply_all()


def test_results_that_come_after_the_loop_has_ended_stop_no_node() -> None:
    node = Node()

    async def begin() -> None:
        node.proposals._waiting[bytes(16)] = asyncio.get_running_loop().create_future()

    asyncio.run(begin())
    node.proposals.on_result(bytes(16), CommandOutcome(0))
    assert len(node.proposals) == 1
