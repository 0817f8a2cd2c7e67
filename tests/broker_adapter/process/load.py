"""Producers and a group of consumers that know the NameServers only, and what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from types import TracebackType
from typing import NamedTuple

from broker_adapter.client import (
    Admin,
    Consumer,
    Message,
    NameServerRoutes,
    Producer,
    PullConsumer,
    SendReceipt,
)
from broker_adapter.errors import BrokerError, PutIndeterminate, PutRefused, ReadFailed, Status
from dledger import TlsFiles
from tests.broker_adapter.process.processes import BrokerProcesses

GROUP, AUDITORS = "readers", "auditors"
BODY = b"%d:%d:"
_BURST = 4
_AUDIT_S = 0.05

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

    Each writer goes through all queues in turn, with bursts of single sends and atomic batches: so the order
    of its numbers in a queue is that of its calls. `size`: of a body, at least. `refusals`: sends may be
    refused for good, after `timeout` seconds, and that is noted. `consumers`: members of the group.
    """

    def __init__(
        self,
        brokers: BrokerProcesses,
        *,
        writers: int = 3,
        consumers: int = 2,
        size: int = 100,
        pause_s: float = 0.0,
        timeout: float = 60.0,
        refusals: bool = False,
        routes: NameServerRoutes | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._routes = brokers.routes if routes is None else routes
        self._topics = brokers.topics
        self._writers, self._size, self._pause_s = writers, size, pause_s
        self._refusals = refusals
        self._producer = Producer(self._routes, timeout=timeout, stall_timeout=5.0, tls=tls)
        self._admin = Admin(self._routes, timeout=30, tls=tls)
        self._auditor = PullConsumer(self._routes, group=AUDITORS, timeout=30, tls=tls)
        self._consumers = [self._consumer(f"member-{n}", tls) for n in range(consumers)]
        self.notes = Notes(consumers > 0)
        self.committed: dict[TopicQueue, int] = {}  # what the group has committed, as last seen
        self._changed = asyncio.Condition()
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def _consumer(self, member_id: str, tls: TlsFiles | None) -> Consumer:
        topics = [topic.name for topic in self._topics]
        return Consumer(
            self._routes,
            GROUP,
            topics,
            handler=self._consume,
            lease=10.0,
            commit_interval=0.1,
            member_id=member_id,
            tls=tls,
        )

    async def __aenter__(self) -> Load:
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
            finally:
                await self._producer.close()
                await self._admin.close()
                await self._auditor.close()
                await self._routes.close()

    # -- waiting ------------------------------------------------------------------------------------------

    async def progress(self, more: int, within_s: float = 60.0) -> None:
        """Until `more` further messages have been acknowledged."""
        goal = len(self.notes.acknowledged) + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.notes.acknowledged) >= goal)

    async def refusals(self, more: int, status: Status, within_s: float = 60.0) -> None:
        """Until `more` further messages have been refused for this reason."""

        def refused() -> int:
            return sum(each is status for each in self.notes.refused.values())

        goal = refused() + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: refused() >= goal)

    async def found_by_key(self, sample: int = 10) -> None:
        """Messages from all over the run, by their keys, through the index of the master."""
        places = sorted(self.notes.acknowledged)
        for place in places[:: max(1, len(places) // sample)]:
            expected = self.notes.acknowledged[place]
            found = await self._admin.query(place[0], expected.key)
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
                await asyncio.gather(*(self._send(topic, queue_id, writer, n) for n in numbers))
            async with self._changed:
                self._changed.notify_all()
            if self._pause_s:
                await self._pause(self._pause_s)

    async def _send(self, topic: str, queue_id: int, writer: int, number: int) -> None:
        body = self._body(writer, number)
        tag, key = f"tag-{number % 3}", f"key-{writer}-{number}"
        try:
            receipt = await self._producer.send(topic, body, tag=tag, keys=key, queue_id=queue_id)
        except (PutRefused, PutIndeterminate) as error:
            self._note_failure([body], error)
        else:
            self._note(receipt, Acknowledged(body, tag, key, receipt.offset_id))

    async def _send_batch(self, topic: str, queue_id: int, writer: int, numbers: Sequence[int]) -> None:
        bodies = [self._body(writer, number) for number in numbers]
        tag, key = "batch", f"key-{writer}-{numbers[0]}"
        self.notes.batches.append(bodies)
        try:
            receipts = await self._producer.send_many(topic, bodies, tag=tag, keys=key, queue_id=queue_id)
        except (PutRefused, PutIndeterminate) as error:
            self._note_failure(bodies, error)
        else:
            for body, receipt in zip(bodies, receipts, strict=True):
                # All of a batch have its key: it tells nothing about one of them.
                self._note(receipt, Acknowledged(body, tag, receipt.message_id, receipt.offset_id))

    def _body(self, writer: int, number: int) -> bytes:
        return (BODY % (writer, number)).ljust(self._size, b".")

    def _note(self, receipt: SendReceipt, what: Acknowledged) -> None:
        place = (receipt.topic, receipt.queue_id, receipt.queue_offset)
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

    async def _consume(self, message: Message) -> None:
        place = (message.topic, message.queue_id)
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
        place = (self._topics[0].name, 0)
        generation, acknowledged = -1, 0
        while not self._stopped.is_set():
            with suppress(PutRefused, PutIndeterminate, ReadFailed):
                generation = await self._look_at_offsets(generation)
                if place in self.notes.delivered:
                    acknowledged = await self._commit_own(place, acknowledged)
            await self._pause(_AUDIT_S)

    async def _commit_own(self, place: TopicQueue, acknowledged: int) -> int:
        offset = self._last(place)
        await self._auditor.commit(*place, offset)
        acknowledged = max(acknowledged, offset)
        found = await self._auditor.committed(*place)
        assert found is not None and found >= acknowledged, f"{found} after {acknowledged}"
        return acknowledged

    async def _look_at_offsets(self, generation: int = -1) -> int:
        found, offsets = await self._admin.offsets(GROUP)
        assert found >= generation, f"generation {found} after {generation}"
        seen = {(one.topic, one.queue_id): one.offset for one in offsets}
        fallen = {p: (at, seen.get(p)) for p, at in self.committed.items() if seen.get(p, -1) < at}
        assert not fallen, f"committed offsets went back: {fallen}"
        self.committed = seen
        return found

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
