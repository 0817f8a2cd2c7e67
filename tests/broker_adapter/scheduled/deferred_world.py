"""Deferred delivery without a node around it: commands are applied in the next step, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state.commands import Element, StoredId, StoredIds
from broker_adapter.delivery_state.deferred_messages import LogPosition
from broker_adapter.delivery_state.delay_index import DelayIndex
from broker_adapter.delivery_state.duplicate_filter import DEFERRED
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Busy, ReadFailed, Status
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome
from broker_adapter.put.message_writer import AnyTopic, MessageWriter
from broker_adapter.put.sender import Sender
from broker_adapter.scheduled.deferred_delivery import DeferredDelivery
from broker_adapter.scheduled.deferring import DeferRequest, OrphanedHalf, StoredHalf

ID = bytes(range(16))
TOPIC = TopicConfig("t", 1, 1)
START = 1_000_000
SETTINGS = {"check_first_ms": 1000, "check_again_ms": 1000, "max_checks": 15}


class World:
    """Deferred delivery: commands are applied in the next step, or refused, at a time that a test sets."""

    max_command_bytes = 1 << 20
    steps_ms = 0

    def __init__(self, index: DelayIndex | None = None, **settings: int) -> None:
        self.now_ms = START
        self.index = 0
        self.refuses: type[Element] | None = None
        self.is_full = False
        self.asked: list[OrphanedHalf] = []
        self.submitted = 0
        self.elements: list[Element] = []
        self.topics = AnyTopic()
        self.outgoing: list[OutgoingMessage] = []
        self._outcomes: list[Any] = []
        self.log: dict[int, bytes] = {}  # commands, by position
        self.reads: list[list[LogPosition]] = []
        self.unreadable: set[int] = set()
        self.state = DeliveryState(
            on_outcomes=lambda _, outcomes: self._outcomes.extend(outcomes), index=index
        )
        committer, writer = cast(Committer, self), cast(MessageWriter, self)
        self.deferred = DeferredDelivery(
            self.state,
            committer,
            writer,
            Sender(
                self.state,
                committer,
                writer,
                now_ms=lambda: self.now_ms,
                retry_span_ms=15_000,
                timeout_ms=60_000,
            ),
            read=self.read,
            run=self.run,
            now_ms=lambda: self.now_ms,
            settings=DeliverySettings(
                check_first_ms=1000, check_again_ms=1000, **{"max_checks": 15, **settings}
            ),
            broker_name="broker-a",
        )
        self.deferred.on_orphan(self.asked.append)
        self.deferred.start()

    async def read(self, places: Sequence[LogPosition]) -> list[bytes]:
        """As the log has them."""
        self.reads.append(list(places))
        await asyncio.sleep(0)
        if any(place.pos in self.unreadable for place in places):
            raise ReadFailed(Status.BEING_REPAIRED, "damaged")
        return [self.log[place.pos] for place in places]

    async def run(self, work: Callable[[], Any], _: str) -> Any:
        await asyncio.sleep(0)
        return work()

    async def put_status_of_all(self, timeout_ms: int) -> Status | None:
        return None

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        return max(0, queue_id)

    def records(self, topic: str, queue_id: int, messages: list[OutgoingMessage], **_: Any) -> Any:
        self.outgoing = messages
        return SimpleNamespace(topic=topic, queue_id=queue_id, batch=SimpleNamespace(sizes=[]))

    def submit(self, request: PutRequest) -> asyncio.Future[RequestOutcome]:
        if self.is_full:
            raise Busy(Status.TOO_MANY_PENDING_BYTES, "try again later")
        self.submitted += 1
        asyncio.get_running_loop().call_soon(self.settle, request)
        return request.done

    def apply(self, elements: Sequence[Element]) -> None:
        self.index += 1
        body = encode(elements, ID)
        self.log[1000 * self.index] = body
        self.state.apply(self.index, self.now_ms, body, LogPosition(1000 * self.index, len(body)))

    def settle(self, request: PutRequest) -> None:
        if self.refuses is not None and isinstance(request.elements[0], self.refuses):
            request.fail(Busy(Status.DISK_FULL, "no room"))
        else:
            self.elements += request.elements
            self._outcomes.clear()
            ids = [StoredIds((StoredId(request.identity, DEFERRED, 0),))] if request.identity else []
            self.apply([*request.elements, *ids])
            request.applied = RequestOutcome([], self._outcomes[: len(request.elements)])
            request.settle(request.applied)
        request.release()

    async def look(self) -> None:
        self.deferred._process_due()
        for _ in range(3):
            await asyncio.sleep(0)

    async def half(self, topic: TopicConfig = TOPIC) -> StoredHalf:
        return await self.deferred.half(
            DeferRequest(topic, OutgoingMessage(b"x"), "", timeout_ms=1000), "p", 0
        )


async def delayed(world: World, count: int, size: int = 1) -> list[str]:
    """Due in a second. Their handles."""
    found = []
    for number in range(count):
        message = OutgoingMessage(b"%d" % number + bytes(size))
        due_ms = world.now_ms + 1000
        put = DeferRequest(TOPIC, message, "", timeout_ms=1000)
        found.append((await world.deferred.delay(put, due_ms, 0)).recall_handle)
    return found
