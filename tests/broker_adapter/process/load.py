"""Producers and a group of consumers that know the NameServers only, and what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from random import Random
from types import TracebackType
from typing import NamedTuple

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeSettings,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    SendStatus,
)
from broker_adapter.errors import (
    BrokerError,
    NameServerUnavailable,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from tests.broker_adapter.process.processes import OPTIONS, BrokerProcesses, queue_of

GROUP, AUDITORS = "readers", "auditors"
BODY = b"%d:%d:"
_BURST = 4
_AUDIT_S = 0.05
#: After a send that was refused, and may be repeated.
_AGAIN_S = 0.1
_CONSUMING = ConsumeSettings(
    is_ordered=True,
    suspend_s=0.05,
    lock_interval_s=1.0,
    pull_retry_s=0.2,
    commit_interval_s=0.1,
)

TopicQueue = tuple[str, int]  # topic, queue id


class Acknowledged(NamedTuple):
    body: bytes
    tag: str
    key: str
    offset_id: str


@dataclass
class Notes:
    """What clients were told. `is_consumed`: there were consumers."""

    is_consumed: bool
    acknowledged: dict[tuple[str, int, int], Acknowledged] = field(
        default_factory=dict
    )  # topic, queue, offset
    batches: list[list[bytes]] = field(default_factory=list)  # sent as one, with whatever outcome
    refused: dict[bytes, Status] = field(default_factory=dict)
    in_doubt: set[bytes] = field(default_factory=set)
    #: Offset and body, in the order of delivery.
    delivered: dict[TopicQueue, list[tuple[int, bytes]]] = field(default_factory=dict)


class Load:
    """`async with Load(brokers) as load:` sends and consumes without pause.

    Each writer goes through all queues in turn, with runs of single sends, one after the other, and atomic
    batches: so the order of its numbers in a queue is that of its calls. Each send goes to any node; what is
    refused is sent again for `timeout` seconds. `size`: of a body, at least. `refusals`: sends may be refused
    for good, and that is noted. `consumers`: members of the group, which consume in order.
    """

    def __init__(
        self,
        brokers: BrokerProcesses,
        *,
        writers: int = 8,
        consumers: int = 2,
        size: int = 100,
        pause_s: float = 0.0,
        timeout: float = 60.0,
        refusals: bool = False,
    ) -> None:
        self._names = brokers.names
        self._topics = brokers.topics
        self._writers, self._size, self._pause_s = writers, size, pause_s
        self._timeout, self._refusals = timeout, refusals
        self._rng = Random(7)
        self._producer = Producer("writers", self._names, options=OPTIONS)
        self._admin = Admin(self._names, options=replace(OPTIONS, timeout=30.0))
        self._auditor = PullConsumer(AUDITORS, self._names, options=OPTIONS)
        self._consumers = [self._consumer() for _ in range(consumers)]
        self.notes = Notes(consumers > 0)
        self.committed: dict[TopicQueue, int] = {}  # what the group has committed, as last seen
        self._changed = asyncio.Condition()
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def _consumer(self) -> PushConsumer:
        consumer = PushConsumer(
            GROUP,
            self._names,
            self._consume,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=_CONSUMING,
            options=OPTIONS,
        )
        for topic in self._topics:
            consumer.subscribe(topic.name)
        return consumer

    async def __aenter__(self) -> Load:
        for client in (self._producer, self._admin, self._auditor):
            await client.start()
        for consumer in self._consumers:
            await consumer.start()
        self._tasks = [asyncio.create_task(self._write(writer)) for writer in range(self._writers)]
        if self._consumers:
            self._tasks.append(asyncio.create_task(self._audit()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if error is not None:
            for task in self._tasks:
                task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if error is None:
                failed = [r for r in results if isinstance(r, Exception)]
                if failed:
                    raise failed[0]
                if self._consumers:
                    await self._consume_the_rest()
        finally:
            for consumer in self._consumers:
                await consumer.close()
            try:
                if error is None and self._consumers:
                    await self._look_at_offsets()
                    assert any(self.committed.values()), "nothing was committed"
            finally:
                await self._producer.close()
                await self._admin.close()
                await self._auditor.close()

    # -- waiting ------------------------------------------------------------------------------------------

    async def progress(self, more: int, within_s: float = 120.0) -> None:
        """Until `more` further messages have been acknowledged."""
        goal = len(self.notes.acknowledged) + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.notes.acknowledged) >= goal)

    async def refusals(self, more: int, status: Status, within_s: float = 120.0) -> None:
        """Until `more` further messages have been refused for this reason."""

        def refused() -> int:
            return sum(each is status for each in self.notes.refused.values())

        goal = refused() + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: refused() >= goal)

    async def found_by_key(self, sample: int = 10, within_s: float = 120.0) -> None:
        """Messages from all over the run, by their keys, through the index of the master, which may lag."""
        places = sorted(self.notes.acknowledged)
        for place in places[:: max(1, len(places) // sample)]:
            expected = self.notes.acknowledged[place]
            async with asyncio.timeout(within_s), self._changed:
                while not (found := await self._admin.query(place[0], expected.key)):
                    await self._changed.wait()
            assert [m.body for m in found] == [expected.body], place

    # -- producing ----------------------------------------------------------------------------------------

    async def _write(self, writer: int) -> None:
        places = cycle([(t.name, q) for t in self._topics for q in range(t.write_queues)])
        for number, (topic, queue_id) in zip(count(0, _BURST), places, strict=False):
            if self._stopped.is_set():
                return
            numbers = range(number, number + _BURST)
            if number // _BURST % 3 == 0:
                await self._send_batch(topic, queue_id, writer, numbers)
            else:
                for each in numbers:
                    await self._send(topic, queue_id, writer, each)
            async with self._changed:
                self._changed.notify_all()
            if self._pause_s:
                await self._pause(self._pause_s)

    async def _send(self, topic: str, queue_id: int, writer: int, number: int) -> None:
        body = self._body(writer, number)
        tag, key = f"tag-{number % 3}", f"key-{writer}-{number}"
        message = Message(topic, body, tags=tag, keys=[key])
        try:
            result = await self._stored([message], queue_id)
        except BrokerError as error:
            self._note_failure([body], error)
        else:
            self._note(result, 0, Acknowledged(body, tag, key, result.offset_message_ids[0]))

    async def _send_batch(self, topic: str, queue_id: int, writer: int, numbers: Sequence[int]) -> None:
        bodies = [self._body(writer, number) for number in numbers]
        tag, key = "batch", f"key-{writer}-{numbers[0]}"
        self.notes.batches.append(bodies)
        try:
            result = await self._stored([Message(topic, b, tags=tag, keys=[key]) for b in bodies], queue_id)
        except BrokerError as error:
            self._note_failure(bodies, error)
        else:
            of_each = zip(bodies, result.message_ids, result.offset_message_ids, strict=True)
            for number, (body, message_id, offset_id) in enumerate(of_each):
                # All of a batch have its key: it tells nothing about one of them.
                self._note(result, number, Acknowledged(body, tag, message_id, offset_id))

    async def _stored(self, messages: Sequence[Message], queue_id: int) -> SendResult:
        """Sent again while it is certain that nothing was stored."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((PutRefused, TopicRefused, NameServerUnavailable)),
            wait=wait_fixed(_AGAIN_S),
            stop=stop_after_delay(self._timeout),
            reraise=True,
        )

        async def send() -> SendResult:
            if len(messages) > 1:
                return await self._producer.send_batch(messages, selector=self._any_node, arg=queue_id)
            return await self._producer.send(messages[0], selector=self._any_node, arg=queue_id)

        return await again(send)

    def _any_node(self, queues: Sequence[MessageQueue], message: Message, queue_id: object) -> MessageQueue:
        """Each node has a name, and all of them take messages of the queue."""
        its = [queue for queue in queues if queue.queue_id == queue_id]
        if not its:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"no node takes messages of queue {queue_id}")
        return self._rng.choice(its)

    def _body(self, writer: int, number: int) -> bytes:
        return (BODY % (writer, number)).ljust(self._size, b".")

    def _note(self, result: SendResult, number: int, what: Acknowledged) -> None:
        assert result.status is SendStatus.SEND_OK
        place = (result.queue.topic, result.queue.queue_id, result.queue_offset + number)
        assert place not in self.notes.acknowledged, f"{place} was given away twice"
        self.notes.acknowledged[place] = what

    def _note_failure(self, bodies: Sequence[bytes], error: BrokerError) -> None:
        if isinstance(error, PutIndeterminate):
            self.notes.in_doubt.update(bodies)
        elif not self._refusals:
            raise error
        else:
            self.notes.refused.update(dict.fromkeys(bodies, error.status))

    # -- consuming ----------------------------------------------------------------------------------------

    async def _consume(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            place = (message.topic, message.queue.queue_id)
            self.notes.delivered.setdefault(place, []).append((message.queue_offset, message.body))
        if self._stopped.is_set():
            async with self._changed:
                self._changed.notify_all()

    async def _consume_the_rest(self) -> None:
        ends: dict[TopicQueue, int] = {}
        for topic, queue_id, offset in self.notes.acknowledged:
            ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset)

        def behind() -> list[TopicQueue]:
            return [p for p, end in ends.items() if not self.notes.delivered.get(p) or self._last(p) < end]

        try:
            async with asyncio.timeout(60), self._changed:
                await self._changed.wait_for(lambda: not behind())
        except TimeoutError:
            raise AssertionError(f"consumers are behind in {behind()}") from None

    def _last(self, place: TopicQueue) -> int:
        return self.notes.delivered[place][-1][0]

    async def _audit(self) -> None:
        """Offsets are read linearizably, so that each reading is of a later moment than the one before. And
        a group of its own commits how far deliveries have come: what was acknowledged stays."""
        place, acknowledged = (self._topics[0].name, 0), 0
        while not self._stopped.is_set():
            with suppress(BrokerError):  # at the end nothing is suppressed
                await self._look_at_offsets()
                if place in self.notes.delivered:
                    acknowledged = await self._commit_own(place, acknowledged)
            await self._pause(_AUDIT_S)

    async def _commit_own(self, place: TopicQueue, acknowledged: int) -> int:
        queue, offset = queue_of(*place), self._last(place)
        await self._auditor.commit(queue, offset)
        acknowledged = max(acknowledged, offset)
        found = await self._auditor.committed(queue)
        assert found is not None and found >= acknowledged, f"{found} after {acknowledged}"
        return acknowledged

    async def _look_at_offsets(self) -> None:
        offsets = await self._admin.group_offsets(GROUP)
        seen = {(queue.topic, queue.queue_id): offset for queue, offset in offsets.items()}
        fallen = {p: (at, seen.get(p)) for p, at in self.committed.items() if seen.get(p, -1) < at}
        assert not fallen, f"committed offsets went back: {fallen}"
        self.committed = seen

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
