"""Consumer groups whose members join, leave, crash and commit, and whose offsets are rewound.

Members consume in order: they lock their queues, and commit a queue before they release it. Each assignment
of a queue to a member is traced as one read (`pull`) with an epoch, which numbers the assignments of the
group; commits have no epoch.

The line `reset` states that the offset of the group on a queue may decrease from then on. A rewind takes
effect at some time between its request and its answer, and requests that are already in flight may be
answered even later. The line is therefore written before and after the request, when a member is assigned the
queue in between, and after every commit that was in flight.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle, product
from random import Random
from typing import Any, Literal

from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    MessageExt,
    MessageQueue,
    PushConsumer,
    QueueListener,
)
from broker_adapter.errors import BrokerError
from broker_adapter.wire.topic_names import RETRY_PREFIX
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.closing import close_in_time
from chaos.workloads.messages import digest, number_of
from chaos.workloads.spec import Setting
from chaos.workloads.tally import LoadTally

_PAUSE_S = 0.2
#: Broker setting: the locks of a dead member expire after this time, in ms.
LOCK_LIVE_MS = 4_000
#: Time in ms for which a lock lives at least after a delivery, because members rely on it for the rest only.
_LOCKED_MS = 2_800
_SETTINGS = ConsumeSettings(
    is_ordered=True,
    pull_batch=64,
    suspend_s=0.02,
    lock_interval_s=0.4,
    lock_live_s=(LOCK_LIVE_MS - _LOCKED_MS) / 1000,
    pull_retry_s=0.2,
    commit_interval_s=0.5,
)
#: Lifetime of a member and pause between rewinds, in seconds.
_LIFE_S = (2.0, 8.0)
_REWIND_S = (1.0, 2.5)
_REWIND_MESSAGES = 300
_CRASHES, _HANDLER_FAILURES = 0.4, 0.002

TopicQueue = tuple[str, int]  # topic, queue


@dataclass(frozen=True, slots=True)
class TracedGroupPlan:
    """Name and subscription of a group. `tags`: deliver only messages with one of these tags; empty: all
    messages. `first`, `step`: the slice of the topics that the group consumes."""

    name: str
    mode: Literal["orderly", "concurrent"]
    tags: tuple[str, ...] = ()
    is_rewound: bool = False
    first: int = 0
    step: int = 1

    def topics_of(self, topics: Sequence[str]) -> Sequence[str]:
        """Return the topics that the group consumes."""
        return topics[self.first :: self.step] or topics


#: Each queue has two groups. On two cores, a third would leave too little CPU time to the producers.
GROUPS = (
    TracedGroupPlan("orderly", "orderly"),
    TracedGroupPlan("rewound", "concurrent", is_rewound=True, step=2),
    TracedGroupPlan("tagged", "orderly", ("a", "b"), first=1, step=2),
)


class Rewinds:
    """Tracks the queues of a group that are being rewound, and writes the `reset` lines."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._pending: set[TopicQueue] = set()
        self._resets: Counter[TopicQueue] = Counter()

    def resets_of(self, place: TopicQueue) -> int:
        """Return the number of `reset` lines written for the queue."""
        return self._resets[place]

    def begin(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._pending.add(place)
        self.write_reset(writer, place, to)

    def end(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._pending.discard(place)
        self.write_reset(writer, place, to)

    def on_assigned(self, writer: TraceWriter, place: TopicQueue, offset: int) -> None:
        if place in self._pending:
            self.write_reset(writer, place, offset)

    def on_committed(self, writer: TraceWriter, place: TopicQueue, offset: int, resets_before: int) -> None:
        """Handle the end of a commit. `resets_before`: value of `resets_of` at its start."""
        if self._resets[place] != resets_before:
            self.write_reset(writer, place, offset)

    def write_reset(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._resets[place] += 1
        topic, queue = place
        writer.write(Ev.MEMBER, {"e": "reset", "group": self._group, "topic": topic, "q": queue, "off": to})


class TracedGroup:
    """One consumer group. Each `live` call runs a succession of members."""

    def __init__(
        self, plan: TracedGroupPlan, setting: Setting, name_servers: Sequence[str], topics: Sequence[str]
    ) -> None:
        """Create a group without members. `name_servers`: addresses from which clients request routes."""
        self.plan = plan
        self._setting = setting
        self._name_servers = name_servers
        self._epochs = count(1)
        self.topics = plan.topics_of(topics)
        self._rewinds = Rewinds(plan.name)
        self._members: set[PushConsumer] = set()

    def positions(self) -> dict[TopicQueue, int]:
        """Return the positions of the current members: the offset after the last consumed message of each
        queue."""
        positions: dict[TopicQueue, int] = {}
        for member in self._members:
            for queue, position in member.positions.items():
                place = queue.topic, queue.queue_id
                positions[place] = max(position, positions.get(place, 0))
        return positions

    async def live(self, number: int, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Run members in succession. The member present at `stop` continues until `drained`."""
        name = f"{self.plan.name}-{number}"
        writer, numbers = self._setting.client(name)
        rng = Random(self._setting.rng.random())
        for life in count():
            if drained.is_set():
                return
            about = (self.plan, self._rewinds, self._epochs)
            member = TracedMember(f"{name}.{life}", *about, writer, numbers, self._setting, rng)
            await self._one_life(member, rng, stop, drained)

    async def _one_life(
        self, member: TracedMember, rng: Random, stop: asyncio.Event, drained: asyncio.Event
    ) -> None:
        consumer = PushConsumer(
            self.plan.name,
            self._name_servers,
            member.handle,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=_SETTINGS,
            options=OPTIONS,
            queue_listener=member,
        )
        for topic in self.topics:
            consumer.subscribe(topic, " || ".join(self.plan.tags) or "*")
        member.join(self.topics)
        try:
            await consumer.start()
            self._members.add(consumer)
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(*_LIFE_S)):
                    await drained.wait()
            if stop.is_set():
                await drained.wait()
                member.stays = True
            elif rng.random() < _CRASHES:
                member.crash()
                await member.end(consumer.abandon())
        except BrokerError:
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._members.discard(consumer)
            with suppress(BrokerError):
                await member.end(consumer.close())
            member.leave()

    async def rewind(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Rewind the offsets of one queue after the other until `stop`. The last rewind may take until
        `drained` is set."""
        writer, numbers = self._setting.client(f"{self.plan.name}-rewinder")
        rng, process = Random(self._setting.rng.random()), Process(writer, numbers)
        queues = range(self._setting.spec.queues)
        places = cycle(sorted(product(self.topics, queues), key=lambda _: rng.random()))
        async with Admin(self._name_servers, options=OPTIONS) as admin:
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(*_REWIND_S)):
                        await stop.wait()
                        return
                place = next(places)
                stored = await self._stored(admin, process, place)
                if stored:
                    to = max(0, stored - rng.randint(1, _REWIND_MESSAGES))
                    await self._rewind_to(admin, process, place, to, drained)

    async def record_offsets(self, admin: Admin, process: Process, queues: int) -> None:
        """Fetch the offset of every queue, so that the checker can verify that acknowledged commits
        survived."""
        for topic in self.topics:
            for queue in range(queues):
                await self._stored(admin, process, (topic, queue))

    async def _stored(self, admin: Admin, process: Process, place: TopicQueue) -> int:
        """Return the group's offset, or 0 if it has none or the request failed."""
        topic, queue = place
        process.invoke("fetch_off", group=self.plan.name, topic=topic, q=queue)
        try:
            offset = await admin.committed(self.plan.name, queue_of(topic, queue)) or 0
        except BrokerError as error:
            process.failed(error)
            return 0
        process.ok(off=offset)
        return offset

    async def _rewind_to(
        self, admin: Admin, process: Process, place: TopicQueue, to: int, drained: asyncio.Event
    ) -> None:
        """Repeat the reset until it succeeds or `drained` is set.

        An attempt without an answer may take effect later, but not after a later attempt has succeeded.
        """
        topic, queue = place
        writer = process.writer
        self._rewinds.begin(writer, place, to)
        while not drained.is_set():
            process.invoke("reset_off", group=self.plan.name, topic=topic, q=queue, off=to)
            try:
                await admin.reset_offset(self.plan.name, queue_of(topic, queue), to)
            except BrokerError as error:
                process.failed(error)
                self._rewinds.write_reset(writer, place, to)
                await asyncio.sleep(_PAUSE_S)
            else:
                process.ok()
                self._rewinds.end(writer, place, to)
                return


@dataclass(slots=True)
class _Reading:
    """One queue while a member owns it."""

    process: Process
    epoch: int
    delivered: int = 0
    last: int = -1  # offset of the last delivered message
    attempt: int = 0  # at that message


class TracedMember(QueueListener):
    """Records one member from its start until it leaves or crashes."""

    def __init__(
        self,
        name: str,
        plan: TracedGroupPlan,
        rewinds: Rewinds,
        epochs: Iterator[int],
        writer: TraceWriter,
        numbers: Numbers,
        setting: Setting,
        rng: Random,
    ) -> None:
        self.name = name
        self.stays = False
        self._tally: LoadTally = setting.tally
        self._plan = plan
        self._rewinds = rewinds
        self._epochs = epochs
        self._writer = writer
        self._numbers = numbers
        self._rng = rng
        self._has_crashed = False
        self._readings: dict[TopicQueue, _Reading] = {}
        self._committers: dict[TopicQueue, Process] = {}  # idle, or with a commit in flight
        self._resets_before: dict[TopicQueue, int] = {}  # for commits in flight

    def join(self, topics: Sequence[str]) -> None:
        for topic in topics:
            how = {"mode": self._plan.mode, "filter": "||".join(self._plan.tags) or "*"}
            self._event("join", topic=topic, from_start=True, delay_ms=_LOCKED_MS, **how)

    def crash(self) -> None:
        """Stop writing, because a crashed member writes no further lines."""
        self._event("crash")
        self._has_crashed = True

    async def end(self, close: Awaitable[None]) -> None:
        await close_in_time(self.name, close, self._writer, self._tally)

    def leave(self) -> None:
        if not self.stays:
            self._event("leave")

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        if self._has_crashed or queue.topic.startswith(RETRY_PREFIX):
            return
        place, epoch = (queue.topic, queue.queue_id), next(self._epochs)
        self._rewinds.on_assigned(self._writer, place, offset)
        where = {"epoch": epoch, "topic": queue.topic, "q": queue.queue_id}
        self._event("assign", off=offset, **where)
        process = Process(self._writer, self._numbers)
        process.invoke("pull", group=self._plan.name, consumer=self.name, from_off=offset, **where)
        self._readings[place] = _Reading(process, epoch)

    def revoked(self, queue: MessageQueue) -> None:
        if self._has_crashed or queue.topic.startswith(RETRY_PREFIX):
            return
        reading = self._readings.pop((queue.topic, queue.queue_id))
        reading.process.ok(count=reading.delivered)
        self._event("revoke", epoch=reading.epoch, topic=queue.topic, q=queue.queue_id)

    def committing(self, queue: MessageQueue, offset: int) -> None:
        if self._has_crashed or queue.topic.startswith(RETRY_PREFIX):
            return
        place = queue.topic, queue.queue_id
        process = self._committers.get(place)
        if process is None:
            process = self._committers[place] = Process(self._writer, self._numbers)
        self._resets_before[place] = self._rewinds.resets_of(place)
        where = {"topic": queue.topic, "q": queue.queue_id, "off": offset}
        process.invoke("commit_off", group=self._plan.name, consumer=self.name, **where)

    def committed(self, queue: MessageQueue, offset: int, error: BaseException | None) -> None:
        if self._has_crashed or queue.topic.startswith(RETRY_PREFIX):
            return
        place = queue.topic, queue.queue_id
        if error is None:
            self._committers[place].ok()
        else:
            self._committers[place].failed(error)
        self._rewinds.on_committed(self._writer, place, offset, self._resets_before[place])

    async def handle(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        """Record the delivery, fail at random, and record the outcome."""
        if self._has_crashed:
            return ConsumeStatus.RECONSUME_LATER
        message = messages[0]
        place = message.topic, message.queue.queue_id
        reading = self._readings[place]
        is_again = reading.last == message.queue_offset
        reading.attempt = reading.attempt + 1 if is_again else 0
        reading.last = message.queue_offset
        who: dict[str, Any] = {
            "group": self._plan.name,
            "consumer": self.name,
            "epoch": reading.epoch,
            "attempt": reading.attempt,
        }
        mid = delivered(reading.process, reading.delivered, message, **who)
        reading.delivered += 1
        where = {"topic": message.topic, "q": message.queue.queue_id, "qoff": message.queue_offset}
        if self._rng.random() < _HANDLER_FAILURES:
            self._writer.write(Ev.DONE, {"mid": mid, "code": "retry", **who, **where})
            return ConsumeStatus.RECONSUME_LATER
        self._writer.write(Ev.DONE, {"mid": mid, "code": "ok", **who, **where})
        self._tally.count_read(self._writer.now(), 1)
        return ConsumeStatus.CONSUME_SUCCESS

    def _event(self, e: str, **fields: Any) -> None:
        if not self._has_crashed:
            who = {"group": self._plan.name, "consumer": self.name}
            self._writer.write(Ev.MEMBER, {"e": e, **who, **fields})


def delivered(process: Process, i: int, message: MessageExt, **more: Any) -> int:
    """Record a delivered message and return its number."""
    mid = number_of(message.body)
    process.delivered(
        i,
        mid,
        digest(message.body),
        topic=message.topic,
        q=message.queue.queue_id,
        qoff=message.queue_offset,
        tag=message.tags,
        key=" ".join(message.keys),
        **more,
    )
    return mid
