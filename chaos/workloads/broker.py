"""Load on brokers: producers to several topics and queues, a consumer group whose members come and go, and a
final drain of every queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from random import Random

from broker_adapter.api import TopicConfig
from broker_adapter.client import Admin, Consumer, NameServerRoutes, Producer, PullConsumer
from broker_adapter.client.values import Message, SendReceipt
from broker_adapter.errors import BrokerError
from chaos.trace.operations import Process
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.auditor import Auditor
from chaos.workloads.messages import Bodies, digest, number_of
from chaos.workloads.pacing import Pace, while_running
from chaos.workloads.spec import Setting

GROUP = "readers"
_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
_LEASE_S = 5.0
#: How long a member of the group lives, in seconds.
_LIFE_S = (2.0, 8.0)
_TAGS = ("a", "b", "c")


class BrokerWorkload:
    """Implements `Workload`. `namesrv`: addresses."""

    def __init__(self, setting: Setting, namesrv: Sequence[str]) -> None:
        self._setting = setting
        self._routes = NameServerRoutes(namesrv)
        self._topics = [f"topic-{n}" for n in range(setting.spec.topics)]

    async def prepare(self) -> None:
        """Make the topics. BrokerError if that does not succeed."""
        queues = self._setting.spec.queues
        async with Admin(self._routes, timeout=30) as admin:
            for topic in self._topics:
                await admin.put_topic(TopicConfig(topic, queues, queues))

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._setting.spec.clients):
                group.create_task(self._produce(number, stop))
            for number in range(self._setting.spec.consumers):
                group.create_task(self._consume(number, stop))
            auditor = Auditor(self._setting, self._routes, self._topics, self._setting.spec.queues)
            group.create_task(auditor.run(stop))

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        writer.write(Ev.META, {"e": "drain_begin"})
        process = Process(writer, numbers)
        async with asyncio.timeout(within_s), PullConsumer(self._routes, timeout=_TIMEOUT_S) as consumer:
            for topic in self._topics:
                for queue in range(self._setting.spec.queues):
                    await self._drain_queue(writer, process, consumer, topic, queue)
        writer.write(Ev.META, {"e": "drain_end"})
        await self._routes.close()

    async def _drain_queue(
        self, writer: TraceWriter, process: Process, consumer: PullConsumer, topic: str, queue: int
    ) -> None:
        where = {"topic": topic, "q": queue}
        end = None
        while end is None:
            try:
                end = (await consumer.bounds(topic, queue)).max_offset
            except BrokerError:
                await asyncio.sleep(_PAUSE_S)
        writer.write(Ev.META, {"e": "drain_target", "off": end - 1, **where})
        at = 0
        while at < end:
            process.invoke("drain", from_off=at, **where)
            seen = 0
            try:
                async with aclosing(consumer.reader(topic, queue, at).batches()) as batches:
                    async for messages in batches:
                        for message in messages:
                            _delivered(process, seen, message)
                            seen += 1
                            at = message.queue_offset + 1
            except BrokerError as error:
                process.failed(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                process.ok(count=seen, next_off=at)

    async def _produce(self, number: int, stop: asyncio.Event) -> None:
        rng = Random(self._setting.rng.random())
        async with Producer(self._routes, timeout=_TIMEOUT_S) as producer:
            sender = _Sender(self._setting, producer, f"p{number}", rng, self._topics)
            pace = Pace(self._setting.spec.at_once, self._setting.spec.rate_of_client(), rng)
            await pace.run(stop, sender.worker)

    async def _consume(self, number: int, stop: asyncio.Event) -> None:
        """Members of one group, one after the other: each lives for a while."""
        writer, numbers = self._setting.client(f"c{number}")
        rng = Random(self._setting.rng.random())
        for life in count():
            if stop.is_set():
                return
            process, name = Process(writer, numbers), f"c{number}.{life}"
            member = _Member(self._setting, self._routes, writer, process, name)
            await while_running(stop, member.live(self._topics, rng.uniform(*_LIFE_S)))


class _Sender:
    """One producer, by several workers."""

    def __init__(
        self, setting: Setting, producer: Producer, name: str, rng: Random, topics: Sequence[str]
    ) -> None:
        self._tally = setting.tally
        self._spec = setting.spec
        self._producer = producer
        self._writer, self._numbers = setting.client(name)
        self._rng = rng
        self._topics = topics
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.lines)

    def worker(self) -> _Worker:
        return _Worker(self, Process(self._writer, self._numbers))

    async def send(self, process: Process) -> bool:
        """One message or batch to one queue; whether it is acknowledged."""
        rng = self._rng
        size = rng.randint(1, self._spec.max_batch)
        mids = [self._numbers.message() for _ in range(size)]
        bodies = [self._bodies.make(mid) for mid in mids]
        topic, queue, tag = rng.choice(self._topics), rng.randrange(self._spec.queues), rng.choice(_TAGS)
        where = {"topic": topic, "q": queue}
        if size == 1:
            process.invoke("send", mid=mids[0], digest=digest(bodies[0]), tag=tag, **where)
        else:
            for i, (mid, body) in enumerate(zip(mids, bodies, strict=True)):
                process.item(i, mid, digest(body), tag=tag, **where)
            process.invoke("send_batch", count=size, **where)
        began = self._writer.now()
        try:
            receipts = await self._producer.send_many(topic, bodies, tag=tag, queue_id=queue)
        except BrokerError as error:
            self._tally.not_ok(process.failed(error), error.status.name, size)
            return False
        process.ok(count=size, **_stored_at(receipts[0]), **where)
        self._tally.ok(began, self._writer.now(), size)
        return True


class _Worker:
    def __init__(self, sender: _Sender, process: Process) -> None:
        self._sender = sender
        self._process = process

    async def __call__(self) -> bool:
        return await self._sender.send(self._process)


class _Member:
    """One life of a member of the group."""

    def __init__(
        self, setting: Setting, routes: NameServerRoutes, writer: TraceWriter, process: Process, name: str
    ) -> None:
        self._tally = setting.tally
        self._routes = routes
        self._writer = writer
        self._process = process
        self._name = name
        self._given = 0

    async def live(self, topics: Sequence[str], seconds: float) -> None:
        """Join, consume so long, leave."""
        for topic in topics:
            self._event("join", topic=topic, mode="orderly", from_start=True)
        self._process.invoke("pull", group=GROUP, consumer=self._name)
        consumer = Consumer(
            self._routes, GROUP, topics, handler=self._handle, lease=_LEASE_S, member_id=self._name
        )
        try:
            await consumer.start()
            await asyncio.sleep(seconds)
        except BrokerError as error:
            self._process.failed(error)
            await asyncio.sleep(_PAUSE_S)
        else:
            self._process.ok(count=self._given)
        finally:
            await consumer.close()
            self._event("leave")

    async def _handle(self, message: Message) -> None:
        mid = _delivered(self._process, self._given, message, group=GROUP, consumer=self._name)
        self._given += 1
        self._writer.write(
            Ev.DONE,
            {
                "mid": mid,
                "code": "ok",
                "group": GROUP,
                "consumer": self._name,
                "topic": message.topic,
                "q": message.queue_id,
                "qoff": message.queue_offset,
            },
        )
        self._tally.read += 1

    def _event(self, e: str, **fields: str | bool) -> None:
        self._writer.write(Ev.MEMBER, {"e": e, "group": GROUP, "consumer": self._name, **fields})


def _stored_at(first: SendReceipt) -> dict[str, int | str]:
    """What an acknowledgement says of where the first message is, and of who has stored it."""
    told: dict[str, int | str] = {"qoff": first.queue_offset, "term": first.term, "node": first.node_id}
    return told | ({"lidx": first.index, "ledger": LEDGER} if first.index >= 0 else {})


def _delivered(process: Process, i: int, message: Message, **more: str) -> int:
    """Note a message that was handed over; its number."""
    mid = number_of(message.body)
    process.delivered(
        i,
        mid,
        digest(message.body),
        topic=message.topic,
        q=message.queue_id,
        qoff=message.queue_offset,
        tag=message.tag or "",
        **more,
    )
    return mid
