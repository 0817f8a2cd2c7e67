"""Consumers of a simulated broker: members of groups, which pull from any node and commit what they got."""

from __future__ import annotations

import asyncio
from random import Random

from broker_adapter.api import Assignment, PullResult, PullStatus, QueueOffset
from broker_adapter.errors import GroupRefused, IllegalMessage
from broker_adapter.format.consume_queue_unit import FILLER_SIZE
from broker_adapter.testing.broker_node import SimBroker
from broker_adapter.testing.clients import FAILURES, TAGS, TOPICS, Client
from broker_adapter.testing.simulation import BrokerSimulation
from broker_adapter.testing.truth import Queue
from dledger.testing import Violation

_LEASE_MS = 700


class GroupLog:
    """What the members of a group have got, all together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumed: dict[Queue, set[int]] = {}
        self.purged: dict[Queue, int] = {}  # offsets below were purged before somebody got there


class Member(Client):
    """Joins, reads the offsets of its queues, consumes and commits under its generation; and leaves, or is
    silent for so long that it is taken for dead."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random, group: GroupLog) -> None:
        super().__init__(sim, name, rng)
        self.catches_up = False  # it takes as much as it gets, so that the time for that has a bound
        self._group = group
        self._next: dict[Queue, int] = {}
        self._generation = -1

    def belongs_to(self, group: GroupLog) -> bool:
        return self._group is group

    async def work(self) -> None:
        group = self._group.name
        try:
            assignment = await self.ask_master(
                lambda broker: broker.broker.join(group, self.name, TOPICS, _LEASE_MS)
            )
        except FAILURES as error:
            self.sim.count("joins", error)
            return
        if assignment.generation != self._generation:
            await self._begin(assignment)
        if assignment.generation == self._generation and assignment.queues:
            queue = self.rng.choice(assignment.queues)
            await self._consume(queue)
            await self._commit()
        if not (self.is_stopped or self.catches_up):  # a group that nobody is in expires, and begins anew
            await self._may_go()

    async def _begin(self, assignment: Assignment) -> None:
        """The offsets of the new generation, read anywhere."""
        truth, group = self.sim.truth, self._group.name
        since = truth.begin_offsets(group)
        try:
            _, (generation, offsets) = await self.ask_any(lambda broker: broker.broker.offsets(group))
        except FAILURES as error:
            self.sim.count("offsets", error)
            return
        truth.end_offsets(group, since, generation, offsets)
        self.sim.counts["offsets read"] += 1
        if generation != assignment.generation:
            return  # it changed meanwhile: join again
        known = {(one.topic, one.queue_id): one.offset for one in offsets}
        self._generation = generation
        self._next = {queue: known.get(queue, 0) for queue in assignment.queues}

    async def _consume(self, queue: Queue) -> None:
        offset, (topic, queue_id) = self._next.get(queue, 0), queue
        tags = (self.rng.choice(TAGS),) if self.rng.random() < 0.1 else ()
        most = 32 if self.catches_up else self.rng.choice((1, 4, 32))

        async def pull(broker: SimBroker) -> tuple[PullResult, int]:
            result = await broker.broker.pull(
                topic, queue_id, offset, max_messages=most, tags=tags, wait_ms=self.rng.choice((0, 0, 30))
            )
            return result, broker.node.begin_pos

        try:
            node_id, (result, begin_pos) = await self.ask_any(pull)
        except FAILURES as error:
            self.sim.count("pulls", error)
            return
        if tags:
            return  # looked at, and not consumed
        self._take(queue, offset, node_id, result, begin_pos)

    def _take(self, queue: Queue, offset: int, node_id: str, result: PullResult, begin_pos: int) -> None:
        truth, consumed = self.sim.truth, self._group.consumed.setdefault(queue, set())
        match result.status:
            case PullStatus.FOUND:
                bodies = truth.pulled(node_id, queue, offset, result.next_offset, result.records)
                consumed.update(range(offset, result.next_offset))
                self._next[queue] = result.next_offset
                self.completed += 1
                self.sim.counts["messages consumed"] += len(bodies)
            case PullStatus.NO_MATCHED_MESSAGE:  # offsets that no message has
                truth.pulled(node_id, queue, offset, result.next_offset, [])
                self._next[queue] = result.next_offset
            case PullStatus.OFFSET_ILLEGAL if result.next_offset > offset:
                passed_over = truth.queue(queue).messages[offset : result.next_offset]
                there = [one for one in passed_over if one.size != FILLER_SIZE]
                if there and there[-1].physical_offset >= begin_pos:
                    raise Violation(
                        "seen", f"{node_id} lets {queue} begin at {result.next_offset}: {there[-1]}"
                    )
                self._group.purged[queue] = max(self._group.purged.get(queue, 0), result.next_offset)
                self._next[queue] = result.next_offset
                self.sim.counts["purged before they were consumed"] += 1
            case _:
                pass  # nothing new, or a node that is behind

    async def _commit(self) -> None:
        # Now and then what a request that was late would say.
        late = 3 if self.rng.random() < 0.05 else 0
        known = sorted(self._next.items())
        offsets = tuple(QueueOffset(*queue, max(0, offset - late)) for queue, offset in known)
        group, generation = self._group.name, self._generation
        try:
            await self.ask_master(lambda broker: broker.broker.commit_offsets(group, generation, offsets))
        except FAILURES as error:
            self.sim.count("commits", error)
            if isinstance(error, IllegalMessage):
                raise Violation(
                    "consumer offsets", f"{offsets} of {group}, which were consumed: {error}"
                ) from error
            if isinstance(error, GroupRefused):
                self._generation = -1  # begin again with what the log has
        else:
            self.sim.truth.commit_acknowledged(group, generation, offsets)
            self.sim.counts["commits acknowledged"] += 1

    async def _may_go(self) -> None:
        dice, group = self.rng.random(), self._group.name
        if dice < 0.02:
            self._generation = -1
            try:
                await self.ask_master(lambda broker: broker.broker.leave(group, self.name))
            except FAILURES as error:
                self.sim.count("leaves", error)
        elif dice < 0.04:
            await asyncio.sleep(_LEASE_MS * 2 / 1000)
