"""Append messages to their queues, each once: a duplicate gets the answer of the first send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.commitlog.put_gathering import QueuedRecords
from broker_adapter.errors import PutIndeterminate, Status
from broker_adapter.format.host import known_host
from broker_adapter.format.properties import UNIQ_KEY
from broker_adapter.pop.api import Sent
from broker_adapter.pop.commands import Element
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.duplicate_filter import Position
from broker_adapter.pop.handles import first_id_digest, id_digest
from broker_adapter.pop.state import DeliveryState

T = TypeVar("T")


class First(NamedTuple):
    """Of a message that is sent here already. `queue_id` -1: it is deferred."""

    queue_id: int
    done: Done


class Sender:
    """`sending` are requests whose id the state does not know yet."""

    def __init__(self, state: DeliveryState, committer: Committer, writer: MessageWriter) -> None:
        self._state = state
        self._committer = committer
        self._writer = writer
        self._sending: dict[bytes, Request] = {}
        self._awaited: dict[bytes, asyncio.Future[None]] = {}  # until the id is in `sending` no more

    def clear(self) -> None:
        for digest in list(self._sending):
            self._release(digest)

    async def send(
        self,
        config: TopicConfig,
        message: OutgoingMessage,
        message_id: str,
        queue_id: int,
        born_host: str,
        timeout_ms: int,
    ) -> Sent:
        topic = config.name
        queue_id = self._writer.queue_of(config, queue_id)
        digest = id_digest(topic, message_id) if message_id else b""
        if digest:
            first = await self.outcome(topic, message_id, timeout_ms, digest)
            if first is not None:
                shortfall = await self.shortfall_of(first, timeout_ms)
                return Sent(*queue_place(first), True, shortfall=shortfall)
            message = with_id(message, message_id)
        records = self._writer.records(topic, queue_id, [message], born_host=known_host(born_host))
        request = self.request(digest, queued=[records])
        done = await settled(timeout_ms, request.done)
        if not done.places:
            return Sent(queue_id, done.offsets[0])
        place = done.places[0]
        return Sent(queue_id, place.queue_offset, False, *place[1:], done.shortfall)

    async def outcome(
        self, topic: str, message_id: str, timeout_ms: int, digest: bytes = b""
    ) -> First | Position | None:
        """What became of the message with this id; None: it was not sent before. While that is in doubt it is
        waited for: until the message is applied, or this broker is not master any more. `digest`: that of the
        id, from whoever knows it.

        PutIndeterminate after `timeout_ms`; whatever else the first one ended with."""
        loop, digest = asyncio.get_running_loop(), digest or id_digest(topic, message_id)
        end = loop.time() + timeout_ms / 1000
        while (request := self._sending.get(digest)) is not None:
            left_ms = max(0, int(1000 * (end - loop.time())))
            if request.done.done() and isinstance(request.done.exception(), PutIndeterminate):
                await settled(left_ms, self._awaited.setdefault(digest, loop.create_future()))
                continue
            try:
                done = await settled(left_ms, request.done)
            except PutIndeterminate:
                if not request.done.done():
                    raise
            else:
                return First(request.queued[0].queue_id if request.queued else -1, done)
        with self._state.lock:
            return self._find(topic, message_id, digest)

    async def shortfall_of(self, first: First | Position, timeout_ms: int) -> Status | None:
        """What is short of a message that was sent before, as in SendResult: by now."""
        if isinstance(first, First):
            return first.done.shortfall
        return await self._writer.shortfall_of_all(timeout_ms)

    def _find(self, topic: str, message_id: str, digest: bytes) -> Position | None:
        """Under the lock."""
        ids = self._state.ids
        return ids.find(digest) or ids.find(first_id_digest(topic, message_id))

    def request(
        self,
        digest: bytes,
        *,
        queued: Sequence[QueuedRecords] = (),
        elements: Sequence[Element] = (),
        released: Callable[[Request], None] = lambda _: None,
    ) -> Request:
        """Submitted, known under its id as long as the state does not know it. Then `released` is told."""

        def release() -> None:
            self._release(digest)
            released(request)

        request = Request(queued=queued, elements=elements, digest=digest, release=release)
        self._committer.submit(request)
        if digest:
            self._sending[digest] = request
        return request

    def _release(self, digest: bytes) -> None:
        self._sending.pop(digest, None)
        awaited = self._awaited.pop(digest, None)
        if awaited is not None and not awaited.done():
            awaited.set_result(None)


def queue_place(first: First | Position) -> tuple[int, int]:
    """Queue and offset of a message that was sent before; -1: it is in none."""
    if isinstance(first, Position):
        return first.queue_id, first.queue_offset
    return (first.queue_id, first.done.offsets[0]) if first.done.offsets else (-1, -1)


def with_id(message: OutgoingMessage, message_id: str) -> OutgoingMessage:
    if message.properties.get(UNIQ_KEY) == message_id:
        return message  # as its text came
    return message._replace(properties={**message.properties, UNIQ_KEY: message_id})


async def settled(timeout_ms: int, done: asyncio.Future[T]) -> T:
    """As `within`, of what goes on whoever waits for it: what every message goes through, so without the
    futures and the time-out that `shield` and `asyncio.timeout` would make for it."""
    if not done.done():
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        done.add_done_callback(end)
        timer = loop.call_later(timeout_ms / 1000, end)
        try:
            await over
        finally:
            timer.cancel()
            done.remove_done_callback(end)
        if not done.done():
            raise _unknown_after(timeout_ms)
    return done.result()


async def within(timeout_ms: int, done: Awaitable[T]) -> T:
    """PutIndeterminate (OUTCOME_UNKNOWN) after `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await done
    except TimeoutError:
        raise _unknown_after(timeout_ms) from None


def _unknown_after(timeout_ms: int) -> PutIndeterminate:
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"not known to be committed after {timeout_ms} ms")
