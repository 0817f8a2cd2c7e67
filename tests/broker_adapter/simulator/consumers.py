"""Consumers of a simulated broker: members of groups, which pull from any node and commit what they got."""

from __future__ import annotations

import asyncio
from random import Random

from broker_adapter.api import GetMessageResult, GetMessageStatus, QueueOffset
from broker_adapter.errors import GroupRefused, IllegalMessage
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE
from dledger.testing import Violation
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.clients import FAILURES, QUEUES, TAGS, TOPICS, Client
from tests.broker_adapter.simulator.simulation import BrokerSimulation
from tests.broker_adapter.simulator.truth import Queue

#: How long a member pauses. Half of the time, the others divide its queues meanwhile.
_PAUSE_S = 1.4
#: How often a member reads the offsets again though it has the same queues: they may have been reset.
_READ_AGAIN = 0.05


class GroupLog:
    """What the members of a group have got, all together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumed: dict[Queue, set[int]] = {}
        self.purged: dict[Queue, int] = {}  # offsets below were purged before somebody got there
        self.present: set[str] = set()  # names of the members

    def share_of(self, name: str) -> list[Queue]:
        """The queues of one member. All members divide them by the same rule, as RocketMQ's clients do."""
        members = sorted(self.present)
        queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
        return queues[members.index(name) :: len(members)]


class Member(Client):
    """Reads the offsets of its queues, consumes and commits. It leaves now and then, or pauses and continues
    with old offsets."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random, group: GroupLog) -> None:
        super().__init__(sim, name, rng)
        self.catches_up = False  # it takes as much as it gets, so that the time for that has a bound
        self._group = group
        self._queues: list[Queue] = []  # empty until it has read their offsets
        self._next: dict[Queue, int] = {}

    def belongs_to(self, group: GroupLog) -> bool:
        return self._group is group

    async def work(self) -> None:
        self._group.present.add(self.name)
        share = self._group.share_of(self.name)
        if share != self._queues or self.rng.random() < _READ_AGAIN:
            await self._begin(share)
        if self._queues:
            await self._consume(self.rng.choice(self._queues))
            await self._commit()
        if not (self.is_stopped or self.catches_up):  # a group that nobody is in expires, and begins anew
            await self._may_go()

    async def _begin(self, share: list[Queue]) -> None:
        """The offsets of its queues, read anywhere."""
        truth, group = self.sim.truth, self._group.name
        since = truth.begin_offsets(group)
        try:
            _, offsets = await self.ask_any(lambda broker: broker.broker.offsets(group))
        except FAILURES as error:
            self.sim.count("offsets", error)
            if not isinstance(error, GroupRefused):
                return
            offsets = []  # the first commit creates the group
        else:
            truth.end_offsets(group, since, offsets)
            self.sim.counts["offsets read"] += 1
        known = {(one.topic, one.queue_id): one.offset for one in offsets}
        self._queues = share
        self._next = {queue: known[queue] for queue in share if queue in known}

    async def _consume(self, queue: Queue) -> None:
        offset, (topic, queue_id) = self._next.get(queue, 0), queue
        tags = (self.rng.choice(TAGS),) if self.rng.random() < 0.1 else ()
        most = 32 if self.catches_up else self.rng.choice((1, 4, 32))

        async def pull(broker: SimBroker) -> tuple[GetMessageResult, int]:
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

    def _take(
        self, queue: Queue, offset: int, node_id: str, result: GetMessageResult, begin_pos: int
    ) -> None:
        truth, consumed = self.sim.truth, self._group.consumed.setdefault(queue, set())
        match result.status:
            case GetMessageStatus.FOUND:
                bodies = truth.pulled(node_id, queue, offset, result.next_offset, result.records)
                consumed.update(range(offset, result.next_offset))
                self._next[queue] = result.next_offset
                self.completed += 1
                self.sim.counts["messages consumed"] += len(bodies)
            case GetMessageStatus.NO_MATCHED_MESSAGE:  # offsets that no message has
                truth.pulled(node_id, queue, offset, result.next_offset, [])
                self._next[queue] = result.next_offset
            case GetMessageStatus.OFFSET_ILLEGAL if result.next_offset > offset:
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
        group = self._group.name
        try:
            await self.ask_master(lambda broker: broker.broker.commit_offsets(group, offsets))
        except FAILURES as error:
            self.sim.count("commits", error)
            if isinstance(error, IllegalMessage):
                raise Violation(
                    "consumer offsets", f"{offsets} of {group}, which were consumed: {error}"
                ) from error
            if isinstance(error, GroupRefused):
                self._queues = []  # begin again with what the log has
        else:
            self.sim.truth.commit_acknowledged(group, offsets)
            self.sim.counts["commits acknowledged"] += 1

    async def _may_go(self) -> None:
        dice = self.rng.random()
        if dice < 0.02:
            self._group.present.discard(self.name)
            self._queues = []
        elif dice < 0.04:
            if self.rng.random() < 0.5:
                self._group.present.discard(self.name)  # the others take it for dead
            await asyncio.sleep(_PAUSE_S)
