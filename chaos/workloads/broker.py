"""Broker workload: producers to several topics and queues, consumer groups, and a final read of all
queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random

from broker_adapter.client import Admin, Message, Producer, PullConsumer
from broker_adapter.errors import BrokerError, Status
from chaos.trace.operations import Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.auditor import Auditor
from chaos.workloads.clients import OPTIONS, SEND_OPTIONS, batches, queue_of
from chaos.workloads.closing import ClosedInTime
from chaos.workloads.groups import GROUPS, LOCK_LIVE_MS, TopicQueue, TracedGroup, delivered
from chaos.workloads.messages import payload_of
from chaos.workloads.pacing import Pacer
from chaos.workloads.senders import WorkloadSender
from chaos.workloads.spec import DrainTimeout, Setting

#: Settings of every broker.
BROKER_SETTINGS = {"remoting": {"lock_live_ms": LOCK_LIVE_MS}}
READERS = "readers"
_PREPARE_S = 30.0
_PAUSE_S = 0.1
#: Operations in flight per client. A send costs a broker more than an append costs a log, so keeping a broker
#: busy takes more sends.
_AT_ONCE = 32
_MAX_FOUND = 256


def topic_names(count: int) -> list[str]:
    return [f"topic-{n}" for n in range(count)]


class BrokerWorkload:
    """Implements `Workload`."""

    def __init__(self, setting: Setting, names: Sequence[str]) -> None:
        self._setting = setting
        self._spec = replace(setting.spec, at_once=setting.spec.at_once or _AT_ONCE)
        self._names = names
        self._topics = topic_names(self._spec.topics)
        self._senders: list[WorkloadSender] = []
        plans = GROUPS if self._spec.consumers else ()
        self._groups = [TracedGroup(plan, setting, names, self._topics) for plan in plans]

    async def prepare(self) -> None:
        """Create the topics. Raises BrokerError."""
        await make_topics(self._names, dict.fromkeys(self._topics, self._spec.queues))

    def logs(self) -> Iterable[Mapping[str, str | int]]:
        return [{"topic": topic, "q": q} for topic in self._topics for q in range(self._spec.queues)]

    async def write(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._spec.clients):
                tasks.create_task(self._produce(number, stop))
            auditor = Auditor(self._setting, self._names, self._topics, self._spec.queues)
            tasks.create_task(auditor.run(stop))

    async def read(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                for number in range(self._spec.consumers):
                    tasks.create_task(group.live(number, stop, drained))
                if group.plan.is_rewound:
                    tasks.create_task(group.rewind(stop, drained))

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        lookup = Process(*self._setting.client("lookup"))
        writer.write(Ev.META, {"e": "drain_begin"})
        drain = FinalReader(self._setting, writer, Process(writer, numbers))
        try:
            names = self._names
            async with (
                asyncio.timeout(within_s),
                PullConsumer(READERS, names, options=OPTIONS) as consumer,
                Admin(names, options=OPTIONS) as admin,
            ):
                for topic in self._topics:
                    for queue in range(self._spec.queues):
                        await drain.read(consumer, topic, queue)
                while self._behind(drain):
                    await asyncio.sleep(_PAUSE_S)
                for sender in self._senders:
                    for topic, key in sender.keys:
                        await _look_up(lookup, admin, topic, key)
                for group in self._groups:
                    await group.record_offsets(admin, lookup, self._spec.queues)
        except TimeoutError:
            behind = self._behind(drain) or "the final reader did not reach the end"
            raise DrainTimeout(behind) from None
        writer.write(Ev.META, {"e": "drain_end"})

    async def close(self) -> None:
        """Do nothing, because no client remains open between the phases."""

    def _behind(self, drain: FinalReader) -> str:
        """Describe the first group that has not consumed everything. Returns an empty text if all groups
        have."""
        for group in self._groups:
            positions = group.positions()
            for place, end in drain.ends_for(group).items():
                if positions.get(place, 0) < end:
                    where = f"{positions.get(place, 0)} of {place[0]}/{place[1]}, which ends at {end}"
                    return f"group {group.plan.name} is at {where}"
        return ""

    async def _produce(self, number: int, stop: asyncio.Event) -> None:
        rng = Random(self._setting.rng.random())
        trace = self._setting.sender(f"p{number}")

        def note(messages: Sequence[Message], number: int) -> None:
            self._setting.tally.repeated += number == 2
            trace.note([message.body for message in messages], number)

        client = Producer(f"p{number}", self._names, options=SEND_OPTIONS, on_attempt=note)
        async with ClosedInTime(f"p{number}", client, trace.writer, self._setting.tally) as producer:
            sender = WorkloadSender(self._setting, producer, trace, rng, self._topics)
            self._senders.append(sender)
            rate = self._spec.rate_of_client(self._spec.mean_size)
            pace = Pacer(self._spec.at_once, rate, rng, self._setting.tally)
            await pace.run(stop, sender.worker)


class FinalReader:
    """Reads every queue to its end."""

    def __init__(self, setting: Setting, writer: TraceWriter, process: Process) -> None:
        self._setting = setting
        self._writer = writer
        self._process = process
        #: The offset after the last message of each queue, and after the last message with each tag.
        self._ends: dict[TopicQueue, int] = {}
        self._tagged: dict[tuple[TopicQueue, str], int] = {}

    def ends_of(self, topics: Sequence[str]) -> dict[TopicQueue, int]:
        """Return the end offset of each queue of `topics`."""
        return {place: end for place, end in self._ends.items() if place[0] in topics}

    def ends_for(self, group: TracedGroup) -> dict[TopicQueue, int]:
        """Return the offset that a group must reach in each queue.

        A group with a tag filter commits an offset after skipped messages only when it has received the next
        matching message, so its target is the last matching message.
        """
        ends = self.ends_of(group.topics)
        if not group.plan.tags:
            return ends
        return {place: max(self._tagged.get((place, tag), 0) for tag in group.plan.tags) for place in ends}

    async def read(self, consumer: PullConsumer, topic: str, queue: int) -> None:
        where = {"topic": topic, "q": queue}
        while (end := await self._end(consumer, topic, queue)) is None:
            await asyncio.sleep(_PAUSE_S)
        self._ends[topic, queue] = end
        self._writer.write(Ev.META, {"e": "drain_target", "off": end - 1, **where})
        at = 0
        while at < end:
            self._process.invoke("drain", from_off=at, **where)
            seen = 0
            try:
                async with aclosing(batches(consumer, queue_of(topic, queue), at, end)) as pulls:
                    async for messages in pulls:
                        for message in messages:
                            delivered(self._process, seen, message)
                            self._setting.went_through(payload_of(message.body))
                            seen += 1
                            at = message.queue_offset + 1
                            self._tagged[(topic, queue), message.tags] = at
            except BrokerError as error:
                self._process.failed(error)
                await asyncio.sleep(_PAUSE_S)
                if error.status is Status.OFFSET_BELOW_MINIMUM:
                    bounds = await self._bounds("min_off", consumer, topic, queue)
                    at = at if bounds is None else max(at, bounds[0])
            else:
                self._process.ok(count=seen, next_off=at)

    async def _end(self, consumer: PullConsumer, topic: str, queue: int) -> int | None:
        bounds = await self._bounds("max_off", consumer, topic, queue)
        return None if bounds is None else bounds[1]

    async def _bounds(self, f: str, consumer: PullConsumer, topic: str, queue: int) -> tuple[int, int] | None:
        """Return the first offset of a queue and the offset after its last message, or None if the broker
        failed."""
        self._process.invoke(f, topic=topic, q=queue)
        try:
            where = queue_of(topic, queue)
            begin, end = await consumer.min_offset(where), await consumer.max_offset(where)
        except BrokerError as error:
            self._process.failed(error)
            return None
        self._process.ok(max_off=end, min_off=begin)
        return begin, end


async def make_topics(names: Sequence[str], queues: Mapping[str, int]) -> None:
    """Create each topic with its number of queues. Raises BrokerError."""
    options = replace(OPTIONS, timeout=_PREPARE_S)
    async with Admin(names, options=options) as admin:
        for topic, count in queues.items():
            await admin.create_topic(topic, queues=count)


async def _look_up(process: Process, admin: Admin, topic: str, key: str) -> None:
    """Query all messages with this key."""
    process.invoke("lookup", topic=topic, key=key)
    try:
        messages = await admin.query(topic, key, max_messages=_MAX_FOUND)
    except BrokerError as error:
        process.failed(error)
        return
    for i, message in enumerate(messages):
        delivered(process, i, message)
    process.ok(count=len(messages), end_claim=len(messages) < _MAX_FOUND)
