"""Consumer groups whose members come and go, crash and commit, and whose offsets are rewound.

Every queue that a member is assigned is one reading of its own (`pull`) and one epoch. The line `reset` says
that from there on the group may go back on a queue. A rewind takes effect somewhere between its request and
its answer, and what was under way before may be answered later still: so the line is written before and after
the request, when a member is assigned the queue meanwhile, and after every commit that was under way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Literal

from broker_adapter.api import QueueOffset
from broker_adapter.client import Admin, Consumer, GroupListener, Message, MessageQueue, NameServerRoutes
from broker_adapter.errors import BrokerError
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import digest, number_of
from chaos.workloads.spec import BROKER, Setting
from chaos.workloads.tally import Tally

_PAUSE_S = 0.2
_LEASE_S = 3.0
_RETRY_PAUSE_S = 0.02
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
        self, plan: GroupPlan, setting: Setting, routes: NameServerRoutes, topics: Sequence[str]
    ) -> None:
        self.plan = plan
        self._setting = setting
        self._routes = routes
        self.topics = plan.topics_of(topics)
        self._rewinds = Rewinds(plan.name)
        self._members: set[Consumer] = set()

    def positions(self) -> dict[TopicQueue, int]:
        """What the members that are there have consumed: one behind the last message of each queue."""
        found: dict[TopicQueue, int] = {}
        for member in self._members:
            for queue, position in member.assignment.items():
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
            member = Member(f"{name}.{life}", self.plan, self._rewinds, writer, numbers, self._setting, rng)
            await self._one_life(member, rng, stop, drained)

    async def _one_life(
        self, member: Member, rng: Random, stop: asyncio.Event, drained: asyncio.Event
    ) -> None:
        consumer = Consumer(
            self._routes,
            self.plan.name,
            dict.fromkeys(self.topics, " || ".join(self.plan.tags)),
            handler=member.handle,
            lease=_LEASE_S,
            retry_pause=_RETRY_PAUSE_S,
            member_id=member.name,
            listener=member,
        )
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
        # Named: where strangers have registered brokers, too, nobody can tell which is meant.
        async with Admin(self._routes, broker=BROKER) as admin:
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
            generation, offsets = await admin.offsets(self.plan.name)
        except BrokerError as error:
            process.failed(error)
            return 0
        found = [one.offset for one in offsets if (one.topic, one.queue_id) == place]
        process.ok(epoch=generation, **({"off": found[0]} if found else {}))
        return found[0] if found else 0

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
                generation = await admin.reset_offsets(self.plan.name, [QueueOffset(topic, queue, to)])
            except BrokerError as error:
                process.failed(error)
                self._rewinds.say(writer, place, to)
                await asyncio.sleep(_PAUSE_S)
            else:
                process.ok(epoch=generation)
                self._rewinds.end(writer, place, to)
                return


class _HandlerFailure(Exception):
    """On purpose: the message is to be handed in again."""


@dataclass(slots=True)
class _Reading:
    """One queue as long as a member has it."""

    process: Process
    epoch: int
    given: int = 0
    last: int = -1  # offset of the message that was handed over last
    attempt: int = 0  # of that message


class Member(GroupListener):
    """Writes down one life of one member."""

    def __init__(
        self,
        name: str,
        plan: GroupPlan,
        rewinds: Rewinds,
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
        self._writer = writer
        self._numbers = numbers
        self._rng = rng
        self._has_crashed = False
        self._readings: dict[TopicQueue, _Reading] = {}
        self._committers: dict[TopicQueue, Process] = {}
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

    def assigned(self, queue: MessageQueue, offset: int, generation: int) -> None:
        place = queue.topic, queue.queue_id
        self._rewinds.on_assigned(self._writer, place, offset)
        where = {"epoch": generation, "topic": queue.topic, "q": queue.queue_id}
        self._event("assign", off=offset, **where)
        process = Process(self._writer, self._numbers)
        process.invoke("pull", group=self._plan.name, consumer=self.name, from_off=offset, **where)
        self._readings[place] = _Reading(process, generation)

    def revoked(self, queue: MessageQueue) -> None:
        reading = self._readings.pop((queue.topic, queue.queue_id))
        if not self._has_crashed:
            reading.process.ok(count=reading.given)
            self._event("revoke", epoch=reading.epoch, topic=queue.topic, q=queue.queue_id)

    def committing(self, offsets: Mapping[MessageQueue, int], generation: int) -> None:
        if self._has_crashed:
            return
        for queue, offset in offsets.items():
            place = queue.topic, queue.queue_id
            process = self._committers.get(place)
            if process is None:
                process = self._committers[place] = Process(self._writer, self._numbers)
            self._resets_before[place] = self._rewinds.resets_of(place)
            where = {"topic": queue.topic, "q": queue.queue_id, "epoch": generation, "off": offset}
            process.invoke("commit_off", group=self._plan.name, consumer=self.name, **where)

    def commit_repeated(self, offsets: Mapping[MessageQueue, int], number: int) -> None:
        if not self._has_crashed:
            for queue in offsets:
                self._committers[queue.topic, queue.queue_id].again(number - 1)

    def committed(self, offsets: Mapping[MessageQueue, int], error: BaseException | None) -> None:
        if self._has_crashed:
            return
        for queue, offset in offsets.items():
            place = queue.topic, queue.queue_id
            if error is None:
                self._committers[place].ok()
            else:
                self._committers[place].failed(error)
            self._rewinds.on_committed(self._writer, place, offset, self._resets_before[place])

    async def handle(self, message: Message) -> None:
        """Note that the message came, sometimes fail, and note what became of it."""
        place = message.topic, message.queue_id
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
        where = {"topic": message.topic, "q": message.queue_id, "qoff": message.queue_offset}
        if self._rng.random() < _HANDLER_FAILURES:
            self._writer.write(Ev.DONE, {"mid": mid, "code": "retry", **who, **where})
            raise _HandlerFailure
        self._writer.write(Ev.DONE, {"mid": mid, "code": "ok", **who, **where})
        self._tally.took(self._writer.now(), 1)

    def _event(self, e: str, **fields: Any) -> None:
        if not self._has_crashed:
            who = {"group": self._plan.name, "consumer": self.name}
            self._writer.write(Ev.MEMBER, {"e": e, **who, **fields})


def delivered(process: Process, i: int, message: Message, **more: Any) -> int:
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
        key=" ".join(message.keys),
        **more,
    )
    return mid
