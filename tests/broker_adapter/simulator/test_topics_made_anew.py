"""What is delivered one by one of a topic that is deleted and made anew all the time: the other clients of
the simulator only send to it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from broker_adapter.api import GroupConfig, OutgoingMessage, QueueOffset
from broker_adapter.delivery.api import Delivery
from broker_adapter.delivery_state.commands import Element, EndDeferred, Ending
from broker_adapter.metadata.commands import Command, DeleteTopic, PutTopic, ResetOffsets
from broker_adapter.scheduled.deferring import Resolution
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import UNIQ_KEY, split_properties
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX
from dledger.testing import Violation
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.clients import FAILURES, QUEUES, SHORT_LIVED, Client
from tests.broker_adapter.simulator.delivery_model import DeliveryModel
from tests.broker_adapter.simulator.delivery_truth import DeliveryTruth
from tests.broker_adapter.simulator.pop_clients import received
from tests.broker_adapter.simulator.run import RunResult, _quiet, _Run, broker_profile
from tests.broker_adapter.simulator.simulation import BrokerSimulation

#: Dead letters after two attempts; the second one consumes in order.
GROUPS = (
    GroupConfig("short", retry_max_times=1),
    GroupConfig("row", retry_max_times=1, consume_orderly=True),
)
#: Ids of messages that are sent again and again, to one topic after the other.
USED_AGAIN = tuple(f"again-{number}" for number in range(6))


class _Model(DeliveryModel):
    """What was acknowledged comes again after a reset; an end may be of what went with its topic."""

    def metadata(self, index: int, command: Command, took_effect: bool) -> None:
        super().metadata(index, command, took_effect)
        match command:
            case DeleteTopic(topic=name) | PutTopic(config=(name, *_)) if took_effect:
                self.acked = {place for place in self.acked if place[0].topic != name}
            case ResetOffsets(group=name) if took_effect:
                self.acked = {place for place in self.acked if place[0].group != name}

    def _take(self, element: Element, number: int, stamp_ms: int) -> None:
        if (
            isinstance(element, EndDeferred)
            and element.ending in (Ending.ROLLED_BACK, Ending.RECALLED)
            and element.deferred_id not in self._deferred
        ):
            return
        super()._take(element, number, stamp_ms)


class _Truth(DeliveryTruth):
    def __init__(self) -> None:
        super().__init__()
        self.model = _Model(is_strict=True)

    def message(self, message: MessageRecord) -> None:
        letters = {DEAD_LETTER_PREFIX + group.name for group in GROUPS}
        message_id = split_properties(message.properties).get(UNIQ_KEY, "")
        if message.topic not in letters and message_id not in USED_AGAIN:
            super().message(message)


class _User(Client):
    """Of the short-lived topic, in all ways that delivery has."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random) -> None:
        super().__init__(sim, name, rng)
        self._made = 0
        self._floors: list[int] = []

    async def work(self) -> None:
        ways = (self._send, self._send, self._delay, self._half, self._receive, self._receive, self._reset)
        way = self.rng.choice(ways)
        try:
            await way()
        except FAILURES as error:
            self.sim.count(way.__name__, error)
        else:
            self.sim.counts[way.__name__] += 1

    async def _pause(self) -> None:
        for _ in range(self.rng.choice((0, 0, 2, 10))):
            await self.think()

    def _look(self, broker: SimBroker) -> None:
        """What is below these offsets was of another topic when the master took the call."""
        queues = [broker.dispatcher.queues.get(SHORT_LIVED, queue_id) for queue_id in range(QUEUES)]
        self._floors = [0 if queue is None else queue.floor for queue in queues]

    def _next(self) -> tuple[str, OutgoingMessage]:
        self._made += 1
        message_id = f"{self.name}-{self._made}"
        return message_id, OutgoingMessage(message_id.encode())

    async def _send(self) -> None:
        message_id = self.rng.choice(USED_AGAIN)

        async def send(broker: SimBroker) -> tuple[int, int]:
            self._look(broker)
            message = OutgoingMessage(message_id.encode())
            return (await broker.send(SHORT_LIVED, [message], message_id=message_id))[:2]

        queue_id, offset = await self.ask_master(send)
        stored = self.sim.truth.queue((SHORT_LIVED, queue_id)).messages[offset]
        if offset < self._floors[queue_id] or stored.message_id != message_id:
            raise Violation("ids", f"{message_id} is at {queue_id}-{offset}: {stored}, {self._floors}")

    async def _delay(self) -> None:
        message_id, message = self._next()
        delay_ms = self.rng.randint(0, 300)

        async def send(broker: SimBroker) -> str:
            due_ms = broker.node.cluster_time_ms() + delay_ms
            sent = await broker.delivery.send_delayed(
                SHORT_LIVED, message, message_id=message_id, deliver_at_ms=due_ms
            )
            return sent.recall_handle

        handle = await self.ask_master(send)
        if self.rng.random() < 0.3:
            await self._pause()
            await self.ask_master(lambda broker: broker.delivery.recall(SHORT_LIVED, handle))
            self.sim.truth.delivery.never(message_id)

    async def _half(self) -> None:
        message_id, message = self._next()

        async def send(broker: SimBroker) -> str:
            half = await broker.delivery.send_half(
                SHORT_LIVED, message, message_id=message_id, client_id=self.name
            )
            return half.transaction_id

        number = await self.ask_master(send)
        await self._pause()
        how = self.rng.choice((Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK))
        await self.ask_master(lambda broker: broker.delivery.end_transaction(SHORT_LIVED, number, how))
        if how is Resolution.ROLLBACK:
            self.sim.truth.delivery.never(message_id)

    async def _receive(self) -> None:
        group, rng = self.rng.choice(GROUPS), self.rng
        attempt_id = f"{self.name}-{rng.random()}" if rng.random() < 0.5 else ""

        async def receive(broker: SimBroker) -> list[Delivery]:
            await broker.broker.put_group(group)
            self._look(broker)
            return await received(
                broker.delivery.receive(
                    group.name,
                    SHORT_LIVED,
                    client_id=self.name,
                    max_messages=8,
                    invisible_ms=rng.choice((0, 50, 200)),
                    wait_ms=rng.choice((0, 50)),
                    attempt_id=attempt_id,
                )
            )

        def passed_on(broker: SimBroker, found: list[Delivery], is_passed_on: bool) -> None:
            told = broker.delivery.passed_on if is_passed_on else broker.delivery.give_back
            told(group.name, SHORT_LIVED, found)

        found = await self.ask_master(receive, passed_on)
        self._check(group.name, found)
        if found and (dice := rng.random()) < 0.6:
            handles = [one.handle for one in found]
            if dice < 0.4:
                await self.ask_master(lambda broker: broker.delivery.ack(group.name, SHORT_LIVED, handles))
            else:
                await self.ask_master(
                    lambda broker: broker.delivery.dead_letter(group.name, SHORT_LIVED, handles[0])
                )

    def _check(self, group: str, found: Sequence[Delivery]) -> None:
        for one in found:
            self.sim.truth.delivery.given(group, SHORT_LIVED, one, ())
            stored = self.sim.truth.queue((SHORT_LIVED, one.queue_id)).messages[one.queue_offset]
            if one.queue_offset < self._floors[one.queue_id] or decode(one.record).body != stored.body:
                raise Violation("given", f"{one} to {group}: {stored}, {self._floors}")
            self.sim.counts["given"] += 1

    async def _reset(self) -> None:
        group, queue_id = self.rng.choice(GROUPS).name, self.rng.randrange(QUEUES)
        end = len(self.sim.truth.queue((SHORT_LIVED, queue_id)).messages)
        offset = QueueOffset(SHORT_LIVED, queue_id, self.rng.randint(0, end))
        index = await self.ask_master(lambda broker: broker.broker.reset_offsets(group, [offset]))
        self.sim.truth.reset_acknowledged(group, index)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(one, marks=pytest.mark.long) for one in (8, 12, 14, 16))]
)
def test_nothing_of_a_deleted_topic_is_given_of_a_later_one(seed: int) -> None:
    with _quiet():
        profile = broker_profile(seed)
        sim = BrokerSimulation(profile, seed=seed)
        try:
            sim.truth.delivery = _Truth()
            run = _Run(sim, RunResult(seed, profile))
            run._others += [_User(sim, f"u{i}", sim.seeds.random_for(f"user {i}")) for i in range(3)]
            run.drive()
        finally:
            sim.close()
    for what in ("given", "_send", "_delay", "_half", "_reset", "topics deleted"):
        assert sim.counts[what], what
