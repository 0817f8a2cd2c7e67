"""Clients of delivery in a simulated cluster: a producer whose messages are stored once, and consumers that
are given messages for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from broker_adapter.api import GroupConfig, OutgoingMessage, QueueOffset
from broker_adapter.delivery.api import AckStatus, Delivery, ReceivedBatch
from broker_adapter.errors import GroupRefused, IllegalMessage, PutRefused, ReadFailed, Status
from broker_adapter.scheduled.deferring import Resolution
from broker_adapter.wire.message import decode
from dledger.testing import Violation
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.clients import FAILURES, QUEUES, Client
from tests.broker_adapter.simulator.simulation import BrokerSimulation

T = TypeVar("T")

#: Takes what it can get, and is done with nothing.
ABANDONED = GroupConfig("abandoned", retry_max_times=-1)

POPPED_TOPIC = "Pops"
#: The second one consumes in order; the third gives up on a message after two attempts.
POP_GROUPS = (
    GroupConfig("shared", retry_max_times=-1),
    GroupConfig("orderly", retry_max_times=-1, consume_orderly=True),
    GroupConfig("impatient", retry_max_times=1),
)
#: A producer that does not know by then whether its message is stored gives up: ids are forgotten.
_GIVE_UP_MS = 25_000
#: Delays from here on are ten times as long.
_LONG_MS = 360


async def received(receiving: Awaitable[ReceivedBatch]) -> list[Delivery]:
    """Release the memory of a batch, as an endpoint does after its response.

    The garbage collector would release it too, but at a time that does not depend on the seed.
    """
    batch = await receiving
    batch.close()
    return list(batch)


class OnceProducer(Client):
    """Sends messages one by one under ids, until it knows that they are there; some delayed, some halves."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random) -> None:
        super().__init__(sim, name, rng)
        self._made = 0

    async def work(self) -> None:
        self._made += 1
        message_id = f"{self.name}-{self._made}"
        body = message_id.encode() + b"x" * self.rng.randint(0, 60)
        kind = self.rng.choice(("plain", "plain", "plain", "delayed", "half"))
        # Clients name a birth; 0 would be none, and each try would have one of its own.
        message = OutgoingMessage(body, born_timestamp=self._now_ms() or 1)
        if kind == "plain":
            await self._plain(message_id, message)
        elif kind == "delayed":
            await self._delayed(message_id, message)
        else:
            await self._half(message_id, message)

    async def _plain(self, message_id: str, message: OutgoingMessage) -> None:
        sent = await self._until_known(
            "once", lambda b: b.send(POPPED_TOPIC, [message], message_id=message_id)
        )
        if sent is not None:
            self.sim.truth.delivery.stored(message_id)
            self.completed += 1

    async def _delayed(self, message_id: str, message: OutgoingMessage) -> None:
        delay_ms = self.rng.randint(0, 400)
        if delay_ms >= _LONG_MS:
            delay_ms *= 10  # the log is purged meanwhile

        async def send(broker: SimBroker) -> str:
            due_ms = broker.node.cluster_time_ms() + delay_ms
            found = await broker.delivery.send_delayed(
                POPPED_TOPIC, message, message_id=message_id, deliver_at_ms=due_ms
            )
            return found.recall_handle

        handle = await self._until_known("delayed", send)
        if handle is None:
            return
        truth = self.sim.truth.delivery
        if self.rng.random() < 0.4:
            try:
                recalled = await self.ask_master(lambda b: b.delivery.recall(POPPED_TOPIC, handle))
            except FAILURES as error:
                self.sim.count("recalls", error)
                if not (isinstance(error, ReadFailed) and error.status is Status.DELAYED_UNKNOWN):
                    return  # recalled or not
            else:
                if recalled != message_id:
                    raise Violation("recall", f"{recalled} came back for {message_id}")
                if self.rng.random() < 0.5:
                    await self._plain(message_id, self._born_later(message))  # under the same id
                else:
                    truth.never(message_id)
                return
        truth.stored(message_id)
        self.completed += 1

    async def _half(self, message_id: str, message: OutgoingMessage) -> None:
        async def send(broker: SimBroker) -> str:
            found = await broker.delivery.send_half(
                POPPED_TOPIC, message, message_id=message_id, client_id=self.name
            )
            return found.transaction_id

        transaction_id = await self._until_known("halves", send)
        if transaction_id is None or self.rng.random() < 0.2:
            return  # and nobody ever ends it, but the broker
        resolution = self.rng.choice((Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK))
        ended = await self._until_known("ends", lambda b: self._end(b, transaction_id, resolution))
        if not ended:
            return
        truth = self.sim.truth.delivery
        self.completed += 1
        if resolution is Resolution.COMMIT:
            truth.stored(message_id)
        elif self.rng.random() < 0.5:
            self.sim.counts["transactions begun again"] += 1
            await self._half(message_id, self._born_later(message))
        else:
            truth.never(message_id)

    def _born_later(self, message: OutgoingMessage) -> OutgoingMessage:
        """Sent again on purpose. Attempts of the first send were born before."""
        return message._replace(born_timestamp=max(self._now_ms(), message.born_timestamp + 1))

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _end(self, broker: SimBroker, transaction_id: str, resolution: Resolution) -> bool:
        """False: it was rolled back meanwhile, as nobody ended it in time."""
        try:
            await broker.delivery.end_transaction(POPPED_TOPIC, transaction_id, resolution)
        except ReadFailed as error:
            if error.status is not Status.TRANSACTION_UNKNOWN:
                raise
            return False
        return True

    async def _until_known(self, what: str, request: Callable[[SimBroker], Awaitable[T]]) -> T | None:
        end_ms, is_repeated = self._now_ms() + _GIVE_UP_MS, False
        while self._now_ms() < end_ms:
            try:
                return await self.ask_master(request)
            except FAILURES as error:
                self.sim.count(what, error)
                if is_repeated and isinstance(error, IllegalMessage) and error.status is Status.SEND_ENDED:
                    return None  # the broker rolled back what an earlier attempt has stored
                if isinstance(error, IllegalMessage):
                    raise
                is_repeated = True
                if self.is_stopped and not isinstance(error, PutRefused):
                    break
                await self.think()
        return None


class PopConsumer(Client):
    """Receives, then acknowledges, lets go, asks for more time, or forgets."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random, group: GroupConfig) -> None:
        super().__init__(sim, name, rng)
        self.catches_up = False
        self._group = group
        self._attempts = 0
        self._is_known = False

    async def work(self) -> None:
        try:
            if not self._is_known:
                await self.ask_master(lambda b: b.broker.put_group(self._group))
                self._is_known = True
            await self._consume()
        except FAILURES as error:
            self.sim.count("receives and acks", error)
            if isinstance(error, GroupRefused):
                self._is_known = False

    async def _consume(self) -> None:
        group, rng, truth = self._group.name, self.rng, self.sim.truth.delivery
        self._attempts += 1
        attempt_id = f"{self.name}-{self._attempts}" if rng.random() < 0.5 else ""
        invisible_ms = rng.choice((0, 100, 300))
        wait_ms = rng.choice((0, 20, 100))
        before = truth.acknowledged(group)

        async def receive(broker: SimBroker) -> list[Delivery]:
            return await received(
                broker.delivery.receive(
                    group,
                    POPPED_TOPIC,
                    client_id=self.name,
                    max_messages=rng.choice((1, 3, 8)),
                    invisible_ms=invisible_ms,
                    wait_ms=wait_ms,
                    attempt_id=attempt_id,
                )
            )

        try:
            found = await self.ask_master(receive, self._passed_on)
        except FAILURES as error:
            self.sim.count("receives", error)
            if not attempt_id:
                return
            found = await self.ask_master(receive, self._passed_on)
        for one in found:
            self._check(one)
            truth.given(group, POPPED_TOPIC, one, before)
        self.sim.counts["messages given"] += len(found)
        if found:
            await self._finish(found)

    def _passed_on(self, broker: SimBroker, found: list[Delivery], is_passed_on: bool) -> None:
        """As the front of a broker does it."""
        told = broker.delivery.passed_on if is_passed_on else broker.delivery.give_back
        told(self._group.name, POPPED_TOPIC, found)
        self.sim.counts["messages passed on" if is_passed_on else "messages given back"] += len(found)

    def _check(self, one: Delivery) -> None:
        message = decode(one.record)
        stored = self.sim.truth.queue((POPPED_TOPIC, one.queue_id)).messages[one.queue_offset]
        if stored.body != message.body or stored.physical_offset != message.physical_offset:
            raise Violation("given", f"{message} where {stored} is")

    async def _give_up(self, group: str, one: Delivery) -> None:
        """Sometimes a call that came before acknowledges it in the same moment."""

        async def dead_letter(broker: SimBroker) -> None:
            if self.rng.random() < 0.5:
                acking = asyncio.ensure_future(broker.delivery.ack(group, POPPED_TOPIC, [one.handle]))
                acking.add_done_callback(lambda task: task.cancelled() or task.exception())
            await broker.delivery.dead_letter(group, POPPED_TOPIC, one.handle)

        self.sim.counts["dead letters asked for"] += 1
        await self.ask_master(dead_letter)

    async def _finish(self, found: list[Delivery]) -> None:
        group, dice = self._group.name, self.rng.random()
        if dice < 0.1 and not self.catches_up:
            return  # it has died, for all that anybody knows
        if dice < 0.2 and not self.catches_up:
            await self.ask_master(lambda b: b.delivery.release(self.name, group))
            return
        if dice < 0.4 and not self.catches_up:
            first = found[0]
            handle = await self.ask_master(
                lambda b: b.delivery.change_invisible(group, POPPED_TOPIC, first.handle, 50)
            )
            if dice < 0.3:
                return
            found = [first._replace(handle=handle), *found[1:]]
        if dice > 0.8 and not self.catches_up and self._group.retry_max_times >= 0:
            await self._give_up(group, found[0])
            found = found[1:]
        handles = [one.handle for one in found]
        statuses = await self.ask_master(lambda b: b.delivery.ack(group, POPPED_TOPIC, handles))
        for one, status in zip(found, statuses, strict=True):
            if status is AckStatus.OK:
                self.sim.truth.delivery.acked(group, one)
                self.completed += 1


class AbandonedConsumer(Client):
    """Receives all it can, for long, and acknowledges nothing. Others have to get what is theirs."""

    async def work(self) -> None:
        async def receive(broker: SimBroker) -> list[Delivery]:
            return await received(
                broker.delivery.receive(
                    ABANDONED.name, POPPED_TOPIC, client_id=self.name, max_messages=32, invisible_ms=3_600_000
                )
            )

        try:
            self.sim.counts["messages abandoned"] += len(await self.ask_master(receive))
        except FAILURES as error:
            self.sim.count("receives", error)


class PassingConsumer(Client):
    """Receives now and then, in a group that comes into being by that and may be gone the next time."""

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(50, 1000) / 1000)

    async def work(self) -> None:
        async def receive(broker: SimBroker) -> list[Delivery]:
            found = await received(
                broker.delivery.receive(
                    self.name, POPPED_TOPIC, client_id=self.name, max_messages=2, invisible_ms=50
                )
            )
            await broker.delivery.ack(self.name, POPPED_TOPIC, [one.handle for one in found])
            return found

        try:
            await self.ask_master(receive)
            self.completed += 1
        except FAILURES as error:
            self.sim.count("receives", error)


class NewGroups(Client):
    """Makes groups, and sets the offsets of each in the moment in which it is given its first messages."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random) -> None:
        super().__init__(sim, name, rng)
        self._made = 0

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(20, 300) / 1000)

    async def work(self) -> None:
        queue_id = self.rng.randint(0, QUEUES - 1)
        end = len(self.sim.truth.queue((POPPED_TOPIC, queue_id)).messages)
        if not end:
            return
        self._made += 1
        group = GroupConfig(f"{self.name}-{self._made}")
        offset = QueueOffset(POPPED_TOPIC, queue_id, self.rng.randint(0, end))

        async def both(broker: SimBroker) -> int:
            """Whatever becomes of the receive."""
            await broker.broker.put_group(group)
            receiving = asyncio.ensure_future(
                received(
                    broker.delivery.receive(
                        group.name, POPPED_TOPIC, client_id=self.name, max_messages=1, invisible_ms=50
                    )
                )
            )
            receiving.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.sleep(self.rng.randint(0, 3) / 1000)
            index = await broker.broker.reset_offsets(group.name, [offset])
            await asyncio.wait([receiving])
            return index

        try:
            index = await self.ask_master(both)
            self.sim.truth.reset_acknowledged(group.name, index)
            self.sim.counts["new groups reset"] += 1
            self.completed += 1
            await self.ask_master(lambda broker: broker.broker.delete_group(group.name))
        except FAILURES as error:
            self.sim.count("new groups", error)
