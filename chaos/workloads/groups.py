"""Consumer groups whose members come and go, crash and commit, and whose offsets are rewound.

Members consume in order: they lock the queues that they take, and a queue that a member leaves is committed
first. Every queue that a member is assigned is one reading of its own (`pull`) and one epoch, which the group
counts: the protocol has no generations, and commits have none. The line `reset` says
that from there on the group may go back on a queue. A rewind takes effect somewhere between its request and
its answer, and what was under way before may be answered later still: so the line is written before and after
the request, when a member is assigned the queue meanwhile, and after every commit that was under way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
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
from broker_adapter.format.topic_names import RETRY_PREFIX
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.messages import digest, number_of
from chaos.workloads.spec import Setting
from chaos.workloads.tally import Tally

_PAUSE_S = 0.2
#: Of the brokers: the queues of a member that has died are somebody else's after this.
LOCK_LIVE_MS = 3_000
_SETTINGS = ConsumeSettings(
    is_ordered=True,
    pull_batch=64,
    suspend_s=0.02,
    lock_interval_s=0.5,
    lock_live_s=LOCK_LIVE_MS / 1000 / 2,
    pull_retry_s=0.2,
    commit_interval_s=0.5,
)
#: How long a member lives, and how long it takes until the next rewind, in seconds.
_LIFE_S = (2.0, 8.0)
_REWIND_S = (2.0, 5.0)
_REWIND_MESSAGES = 300
_CRASHES, _HANDLER_FAILURES = 0.4, 0.002

TopicQueue = tuple[str, int]  # topic, queue


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`tags`: only messages with one of these; none: all. `first`, `step`: of the topics."""

    name: str
    mode: Literal["orderly", "concurrent"]
    tags: tuple[str, ...] = ()
    is_rewound: bool = False
    first: int = 0
    step: int = 1

    def topics_of(self, topics: Sequence[str]) -> Sequence[str]:
        """Those that the group consumes."""
        return topics[self.first :: self.step] or topics


#: Each queue has two groups: a third one would take from the producers what two cores can do.
GROUPS = (
    GroupPlan("orderly", "orderly"),
    GroupPlan("rewound", "concurrent", is_rewound=True, step=2),
    GroupPlan("tagged", "orderly", ("a", "b"), first=1, step=2),
)


class Rewinds:
    """Which queues of a group are being rewound, and where the trace has to say so."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._pending: set[TopicQueue] = set()
        self._resets: Counter[TopicQueue] = Counter()

    def resets_of(self, place: TopicQueue) -> int:
        """Lines written so far."""
        return self._resets[place]

    def begin(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._pending.add(place)
        self.say(writer, place, to)

    def end(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._pending.discard(place)
        self.say(writer, place, to)

    def on_assigned(self, writer: TraceWriter, place: TopicQueue, offset: int) -> None:
        if place in self._pending:
            self.say(writer, place, offset)

    def on_committed(self, writer: TraceWriter, place: TopicQueue, offset: int, resets_before: int) -> None:
        """A commit has ended before which `resets_of` was `resets_before`."""
        if self._resets[place] != resets_before:
            self.say(writer, place, offset)

    def say(self, writer: TraceWriter, place: TopicQueue, to: int) -> None:
        self._resets[place] += 1
        topic, queue = place
        writer.write(Ev.MEMBER, {"e": "reset", "group": self._group, "topic": topic, "q": queue, "off": to})


class Group:
    """One group. `live` is one of its members after the other."""

    def __init__(
        self, plan: GroupPlan, setting: Setting, name_servers: Sequence[str], topics: Sequence[str]
    ) -> None:
        """`name_servers`: for clients of brokers."""
        self.plan = plan
        self._setting = setting
        self._name_servers = name_servers
        self._epochs = count(1)
        self.topics = plan.topics_of(topics)
        self._rewinds = Rewinds(plan.name)
        self._members: set[PushConsumer] = set()

    def positions(self) -> dict[TopicQueue, int]:
        """What the members that are there have consumed: one behind the last message of each queue."""
        found: dict[TopicQueue, int] = {}
        for member in self._members:
            for queue, position in member.positions.items():
                place = queue.topic, queue.queue_id
                found[place] = max(position, found.get(place, 0))
        return found

    async def live(self, number: int, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Members one after the other; the one that is there at `stop` stays until `drained`."""
        name = f"{self.plan.name}-{number}"
        writer, numbers = self._setting.client(name)
        rng = Random(self._setting.rng.random())
        for life in count():
            if drained.is_set():
                return
            about = (self.plan, self._rewinds, self._epochs)
            member = Member(f"{name}.{life}", *about, writer, numbers, self._setting, rng)
            await self._one_life(member, rng, stop, drained)

    async def _one_life(
        self, member: Member, rng: Random, stop: asyncio.Event, drained: asyncio.Event
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
                await consumer.abandon()
        except BrokerError:
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._members.discard(consumer)
            await consumer.close()
            member.leave()

    async def rewind(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Set offsets back, again and again, until `stop`. The last time may take until `drained`."""
        writer, numbers = self._setting.client(f"{self.plan.name}-rewinder")
        rng, process = Random(self._setting.rng.random()), Process(writer, numbers)
        places = [(topic, queue) for topic in self.topics for queue in range(self._setting.spec.queues)]
        async with Admin(self._name_servers, options=OPTIONS) as admin:
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(*_REWIND_S)):
                        await stop.wait()
                        return
                place = rng.choice(places)
                stored = await self._stored(admin, process, place)
                if stored:
                    to = max(0, stored - rng.randint(1, _REWIND_MESSAGES))
                    await self._rewind_to(admin, process, place, to, drained)

    async def tell_offsets(self, admin: Admin, process: Process, queues: int) -> None:
        """Ask for the offset of every queue: what was acknowledged is there to the end."""
        for topic in self.topics:
            for queue in range(queues):
                await self._stored(admin, process, (topic, queue))

    async def _stored(self, admin: Admin, process: Process, place: TopicQueue) -> int:
        """The group's offset; 0 if it has none, or nobody can say."""
        topic, queue = place
        process.invoke("fetch_off", group=self.plan.name, topic=topic, q=queue)
        try:
            found = await admin.committed(self.plan.name, queue_of(topic, queue)) or 0
        except BrokerError as error:
            process.failed(error)
            return 0
        process.ok(off=found)
        return found

    async def _rewind_to(
        self, admin: Admin, process: Process, place: TopicQueue, to: int, drained: asyncio.Event
    ) -> None:
        """Until it has succeeded: what was tried and not answered may happen later, but not after that. Of a
        cluster that does not come back it is not asked for ever."""
        topic, queue = place
        writer = process.writer
        self._rewinds.begin(writer, place, to)
        while not drained.is_set():
            process.invoke("reset_off", group=self.plan.name, topic=topic, q=queue, off=to)
            try:
                await admin.reset_offset(self.plan.name, queue_of(topic, queue), to)
            except BrokerError as error:
                process.failed(error)
                self._rewinds.say(writer, place, to)
                await asyncio.sleep(_PAUSE_S)
            else:
                process.ok()
                self._rewinds.end(writer, place, to)
                return


@dataclass(slots=True)
class _Reading:
    """One queue as long as a member has it."""

    process: Process
    epoch: int
    given: int = 0
    last: int = -1  # offset of the message that was handed over last
    attempt: int = 0  # of that message


class Member(QueueListener):
    """Writes down one life of one member."""

    def __init__(
        self,
        name: str,
        plan: GroupPlan,
        rewinds: Rewinds,
        epochs: Iterator[int],
        writer: TraceWriter,
        numbers: Numbers,
        setting: Setting,
        rng: Random,
    ) -> None:
        self.name = name
        self.stays = False
        self._tally: Tally = setting.tally
        self._plan = plan
        self._rewinds = rewinds
        self._epochs = epochs
        self._writer = writer
        self._numbers = numbers
        self._rng = rng
        self._has_crashed = False
        self._readings: dict[TopicQueue, _Reading] = {}
        self._committers: dict[TopicQueue, Process] = {}  # idle, or with a commit under way
        self._resets_before: dict[TopicQueue, int] = {}  # of commits under way

    def join(self, topics: Sequence[str]) -> None:
        for topic in topics:
            how = {"mode": self._plan.mode, "filter": "||".join(self._plan.tags) or "*"}
            self._event("join", topic=topic, from_start=True, **how)

    def crash(self) -> None:
        """From now on nothing is written: who is dead does not write."""
        self._event("crash")
        self._has_crashed = True

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
        reading.process.ok(count=reading.given)
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
        """Note that the message came, sometimes fail, and note what became of it."""
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
        mid = delivered(reading.process, reading.given, message, **who)
        reading.given += 1
        where = {"topic": message.topic, "q": message.queue.queue_id, "qoff": message.queue_offset}
        if self._rng.random() < _HANDLER_FAILURES:
            self._writer.write(Ev.DONE, {"mid": mid, "code": "retry", **who, **where})
            return ConsumeStatus.RECONSUME_LATER
        self._writer.write(Ev.DONE, {"mid": mid, "code": "ok", **who, **where})
        self._tally.took(self._writer.now(), 1)
        return ConsumeStatus.CONSUME_SUCCESS

    def _event(self, e: str, **fields: Any) -> None:
        if not self._has_crashed:
            who = {"group": self._plan.name, "consumer": self.name}
            self._writer.write(Ev.MEMBER, {"e": e, **who, **fields})


def delivered(process: Process, i: int, message: MessageExt, **more: Any) -> int:
    """Note a message that was handed over; its number."""
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
