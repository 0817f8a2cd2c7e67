"""Producers and an administrator of a simulated broker. They know no more than real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

from broker_adapter.api import OutgoingMessage, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, IllegalMessage, NotMaster, PutRefused, TopicRefused
from broker_adapter.put.sender import PutResult
from dledger import DLedgerError
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.simulation import BrokerSimulation, NoAnswer, PassedOn
from tests.broker_adapter.simulator.truth import TRY

T = TypeVar("T")

TOPICS = ("Orders", "Clicks")
#: A topic that is deleted and comes into being again.
SHORT_LIVED = "Sales"
#: A topic that comes into being by being used, now and then, and goes when nobody does.
PASSING = "Rumours"
QUEUES = 2
TAGS = ("a", "b")
#: What a request may end in, beside its answer.
FAILURES = (BrokerError, DLedgerError, NoAnswer)


class Client:
    """What all clients share: a node to talk to, and a coroutine that goes on until it is stopped."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random) -> None:
        self.sim = sim
        self.name = name
        self.rng = rng
        self.is_stopped = False
        self.is_paused = False
        self.completed = 0
        self.is_idle = False  # has ended
        self._node = rng.choice(sim.profile.node_ids)

    def start(self) -> None:
        # What a client does not expect of a broker is a finding, and ends the run.
        self.sim.client_loop.create_task(self._run()).add_done_callback(lambda task: task.result())

    async def work(self) -> None:
        raise AssertionError("each kind of client has its own")

    async def _run(self) -> None:
        while not self.is_stopped:
            if not self.is_paused:
                await self.work()
            await self.think()
        self.is_idle = True

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(1, self.sim.profile.think_max_ms) / 1000)

    async def ask_master(
        self, request: Callable[[SimBroker], Awaitable[T]], passed_on: PassedOn[T] | None = None
    ) -> T:
        """Of whom it takes for the master. One of FAILURES, after which it takes another one for it."""
        try:
            return await self.sim.ask(self._node, request, self.sim.profile.request_timeout_ms * 2, passed_on)
        except FAILURES as error:
            master = error.master_address if isinstance(error, NotMaster) else None
            if master in self.sim.profile.node_ids and self.rng.random() < 0.8:
                assert master is not None
                self._node = master
            elif not isinstance(error, BrokerError) or isinstance(error, NotMaster):
                self._node = self.rng.choice(self.sim.profile.node_ids)
            raise

    async def ask_any(self, request: Callable[[SimBroker], Awaitable[T]]) -> tuple[str, T]:
        """Of any node, which is told, too."""
        node_id = self.rng.choice(self.sim.profile.node_ids)
        return node_id, await self.sim.ask(node_id, request, self.sim.profile.request_timeout_ms * 2)


class Producer(Client):
    """Sends a batch until it is acknowledged; gives up now and then, when nobody can tell whether it is."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random) -> None:
        super().__init__(sim, name, rng)
        self._made = 0

    async def work(self) -> None:
        rng, truth = self.rng, self.sim.truth
        topic = rng.choice((*TOPICS, *TOPICS, SHORT_LIVED))
        queue_id = rng.choice((-1, *range(QUEUES)))
        bodies = [self._body() for _ in range(rng.randint(1, self.sim.profile.max_batch))]
        properties = [self._properties(body) for body in bodies]
        for number in range(1000):
            tried = str(number)
            messages = [
                OutgoingMessage(body, {**given, TRY: tried})
                for body, given in zip(bodies, properties, strict=True)
            ]

            async def send(broker: SimBroker, messages: list[OutgoingMessage] = messages) -> PutResult:
                return await broker.send(topic, messages, queue_id=queue_id)

            try:
                result = await self.ask_master(send)
            except FAILURES as error:
                self.sim.count("sends", error)
                if isinstance(error, IllegalMessage) and topic != SHORT_LIVED:
                    raise  # all of them are good; only queues of that topic come and go
                if isinstance(error, PutRefused | TopicRefused | IllegalMessage):
                    truth.refused.update((body, tried) for body in bodies)
                    if self.is_stopped and topic == SHORT_LIVED:
                        return  # nobody will give it the queue
                elif self.is_stopped or rng.random() < 0.1:
                    self.sim.counts["sends left open"] += 1
                    return
                await self.think()
            else:
                truth.sent(result, topic, bodies)
                self.completed += 1
                self.sim.counts["batches of messages acknowledged"] += 1
                return

    def _body(self) -> bytes:
        self._made += 1
        size = self.rng.randint(0, self.sim.profile.body_max_bytes)
        return b"%s:%d:" % (self.name.encode(), self._made) + b"x" * size

    def _properties(self, body: bytes) -> dict[str, str]:
        found = {"TAGS": self.rng.choice(TAGS)} if self.rng.random() < 0.7 else {}
        if self.rng.random() < 0.5:
            found["KEYS"] = f"{body[:12].decode()} shared"
        return found


class Administrator(Client):
    """Deletes a topic, and sets offsets of groups back, every now and then."""

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random, groups: tuple[str, ...]) -> None:
        super().__init__(sim, name, rng)
        self._groups = groups

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(50, 1500) / 1000)

    async def work(self) -> None:
        try:
            if self.rng.random() < 0.5:
                await self.ask_master(lambda broker: broker.broker.delete_topic(SHORT_LIVED))
                self.sim.counts["topics deleted"] += 1
            else:
                await self._reset(self.rng.choice(self._groups))
        except FAILURES as error:
            self.sim.count("administration", error)
        else:
            self.completed += 1

    async def _reset(self, group: str) -> None:
        """Back to some offset before the group's own."""
        known = sorted(self.sim.truth.groups.offsets(group).items())
        if not known:
            return
        (topic, queue_id), offset = self.rng.choice(known)
        back = QueueOffset(topic, queue_id, self.rng.randint(max(0, offset - 10), offset))
        index = await self.ask_master(lambda broker: broker.broker.reset_offsets(group, [back]))
        self.sim.truth.reset_acknowledged(group, index)
        self.sim.counts["offsets reset"] += 1


class TopicChurn(Client):
    """Deletes the short-lived topic again and again, and makes it anew, with more queues or with fewer, while
    others send to it."""

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(10, 250) / 1000)

    def __init__(self, sim: BrokerSimulation, name: str, rng: Random, lasting: Sequence[str]) -> None:
        """`lasting`: topics that are an administrator's, so that they do not expire."""
        super().__init__(sim, name, rng)
        self._lasting = list(lasting)

    async def work(self) -> None:
        if self._lasting:
            await self._make_last(self._lasting[-1])
            return
        queues = self.rng.randint(1, QUEUES)
        config = TopicConfig(SHORT_LIVED, read_queues=queues, write_queues=queues)
        try:
            if self.rng.random() < 0.6:
                await self.ask_master(lambda broker: broker.broker.delete_topic(SHORT_LIVED))
                self.sim.counts["topics deleted"] += 1
            else:
                await self.ask_master(lambda broker: broker.broker.put_topic(config))
                self.sim.counts["topics made"] += 1
        except FAILURES as error:
            self.sim.count("churn of topics", error)
        else:
            self.completed += 1

    async def _make_last(self, topic: str) -> None:
        config = TopicConfig(topic, read_queues=QUEUES, write_queues=QUEUES)
        try:
            await self.ask_master(lambda broker: broker.broker.put_topic(config))
        except FAILURES as error:
            self.sim.count("churn of topics", error)
        else:
            self._lasting.pop()


class Passerby(Client):
    """Uses a topic once, and not again for a while: it sends to it, or has it made and sends nothing."""

    async def think(self) -> None:
        await asyncio.sleep(self.rng.randint(50, 1200) / 1000)

    async def work(self) -> None:
        sends = self.rng.random() < 0.5
        self.completed += 1
        message = OutgoingMessage(b"%s:%d" % (self.name.encode(), self.completed))
        try:
            if not sends:
                await self.ask_master(lambda broker: broker.topic_creation.ensure(PASSING, ""))
            else:
                result = await self.ask_master(lambda broker: broker.send(PASSING, [message]))
                self.sim.truth.sent(result, PASSING, [message.body])
                self.sim.counts["rumours"] += 1
        except FAILURES as error:
            self.sim.count("rumours", error)
