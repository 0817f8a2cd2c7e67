"""Reading queues that one assigns to oneself, for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from broker_adapter.api import PullResult, PullStatus, QueueOffset, QueueStats
from broker_adapter.client.directory import REPEATABLE, Directory, pause
from broker_adapter.client.routes import RouteSource, readable_queues
from broker_adapter.client.values import Message, MessageQueue, PullBatch, message_of, parse_tags
from broker_adapter.errors import BrokerError, IllegalMessage, ReadFailed, Status
from broker_adapter.rpc.broker_client import BrokerClient, NoAnswer
from dledger import TlsFiles

DEFAULT_TIMEOUT = 10.0
#: In one answer of a stream: few enough to be quick, enough to be cheap.
_STREAM_BYTES = 1 << 20
_STREAM_MESSAGES = 1024
#: An idle stream hears so often that it lives (ms).
_STREAM_WAIT_MS = 5_000
#: The generation of offsets that are committed by no member.
_NO_GENERATION = -1


class PullConsumer:
    """Pulls messages from queues that it is told. Use it with `async with`, in one event loop.

    Args:
        routes: a NameServer client or `StaticRoutes`.
        group: whose offsets `commit` and `committed` are; it must have no members (see `Consumer`).
        timeout: seconds until a call is given up, unless it says otherwise.
        tls: PEM files for TLS, read again when they change; None: plain text.

    `broker` is a broker name, and needed only for topics that several of them have. Reads are repeated
    through failures and changes of the master until the time is over; then the last error is raised.
    """

    def __init__(
        self,
        routes: RouteSource,
        *,
        group: str = "",
        timeout: float = DEFAULT_TIMEOUT,
        tls: TlsFiles | None = None,
    ) -> None:
        self._directory = Directory(routes, tls)
        self._group = group
        self._timeout = timeout

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted. TopicRefused if there is no such topic."""
        return readable_queues(await self._directory.existing(topic))

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        broker: str = "",
        max_messages: int = 32,
        max_bytes: int = 1 << 20,
        tags: str = "*",
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> PullBatch:
        """Messages from an offset on, at most so many; `wait` seconds for one if there is none.

        An offset outside of the queue is answered with OFFSET_ILLEGAL and the nearest one inside. `tags`:
        "*" or "a || b".
        """
        wanted = parse_tags(tags)

        async def ask(client: BrokerClient) -> PullResult:
            return await client.pull(
                topic,
                queue_id,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                tags=wanted,
                wait_ms=int(wait * 1000),
                group=self._group,
                timeout=self._timeout,
            )

        seconds = wait + (self._timeout if timeout is None else timeout)
        name = await self.broker_of(topic, broker)
        return _batch(await self._directory.on_master(name, topic, ask, seconds))

    def reader(
        self, topic: str, queue_id: int, offset: int, *, broker: str = "", tags: str = "*"
    ) -> QueueReader:
        """A reader of one queue, from an offset on."""
        return QueueReader(self, self._directory, MessageQueue(topic, broker, queue_id), offset, tags)

    async def bounds(self, topic: str, queue_id: int, *, broker: str = "") -> QueueStats:
        """Least offset of a queue, and the one behind its last message."""
        name = await self.broker_of(topic, broker)
        stats = await self._directory.on_master(
            name, topic, lambda client: client.topic_stats(topic, self._timeout), self._timeout
        )
        found = next((queue for queue in stats if queue.queue_id == queue_id), None)
        if found is None:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"{topic} has no queue {queue_id}")
        return found

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, broker: str = "") -> int:
        """The offset of the first message stored at this time or later; one behind the last without one."""
        name = await self.broker_of(topic, broker)
        return await self._directory.on_master(
            name,
            topic,
            lambda client: client.offset_by_time(topic, queue_id, timestamp_ms, self._timeout),
            self._timeout,
        )

    async def commit(self, topic: str, queue_id: int, offset: int, *, broker: str = "") -> None:
        """Commit that all before `offset` was consumed. It survives failovers once this has returned.

        Raises GroupRefused if the group has members: they have their own generation.
        """
        name = await self.broker_of(topic, broker)
        offsets = [QueueOffset(topic, queue_id, offset)]
        await self._directory.on_master(
            name,
            topic,
            lambda c: c.commit_offsets(self._group, _NO_GENERATION, offsets, self._timeout),
            self._timeout,
        )

    async def committed(self, topic: str, queue_id: int, *, broker: str = "") -> int | None:
        """What the group has committed of a queue; None: nothing yet."""
        name = await self.broker_of(topic, broker)
        _, offsets = await self._directory.on_master(
            name, topic, lambda client: client.offsets(self._group, self._timeout), self._timeout
        )
        return next((o.offset for o in offsets if (o.topic, o.queue_id) == (topic, queue_id)), None)

    async def broker_of(self, topic: str, broker: str = "") -> str:
        """The broker name, or the only one that has the topic. IllegalMessage if there are several."""
        if broker:
            return broker
        names = sorted((await self._directory.find(topic, self._timeout)).queues)
        if len(names) > 1:
            raise IllegalMessage(
                Status.FIELD_OUT_OF_RANGE, f"{topic} is on several brokers ({', '.join(names)}): name one"
            )
        return names[0]

    @property
    def timeout(self) -> float:
        return self._timeout

    async def close(self) -> None:
        """End every call."""
        await self._directory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class QueueReader:
    """One queue, read in order over a stream, through changes of the master, without a gap or a repeat."""

    def __init__(
        self, consumer: PullConsumer, directory: Directory, queue: MessageQueue, offset: int, tags: str
    ) -> None:
        self._consumer = consumer
        self._directory = directory
        self._queue = queue
        self._tags = parse_tags(tags)
        self._offset = offset
        self._seeks = 0

    @property
    def offset(self) -> int:
        """Where it goes on: behind the last messages that it gave, once it was asked for more."""
        return self._offset

    def seek(self, offset: int) -> None:
        """Go on from another offset. What is read ahead is forgotten."""
        self._offset = offset
        self._seeks += 1

    async def seek_to_time(self, timestamp_ms: int) -> None:
        """Go on from the first message that was stored at this time or later."""
        topic, broker, queue_id = self._queue
        self.seek(await self._consumer.offset_by_time(topic, queue_id, timestamp_ms, broker=broker))

    async def commit(self) -> None:
        """Commit `offset` for the consumer's group."""
        topic, broker, queue_id = self._queue
        await self._consumer.commit(topic, queue_id, self._offset, broker=broker)

    async def messages(self, *, follow: bool = False) -> AsyncGenerator[Message, None]:
        """Message after message up to the present end; with `follow` without end, waiting for new ones.

        Raises ReadFailed if the offset is outside of the queue: nothing is skipped silently.
        """
        async with aclosing(self.batches(follow=follow)) as batches:
            async for batch in batches:
                seeks = self._seeks
                for message in batch:
                    self._offset = message.queue_offset + 1
                    yield message
                    if self._seeks != seeks:
                        break

    async def batches(self, *, follow: bool = False) -> AsyncGenerator[list[Message], None]:
        """Like `messages`, in lists as they arrive: cheaper for bulk."""
        name = await self._consumer.broker_of(self._queue.topic, self._queue.broker)
        failures, failed_since = 0, 0.0
        seeks = self._seeks - 1
        while True:
            if self._seeks != seeks:
                seeks, served = self._seeks, False
            client: BrokerClient | None = None
            try:
                client = await self._directory.master(name, self._queue.topic)
                async with aclosing(self._results(client, follow)) as results:
                    async for result in results:
                        failures, served = 0, True
                        at = self._offset = result.next_offset
                        if result.records:
                            yield [message_of(record) for record in result.records]
                        if self._seeks != seeks:
                            break
                        self._offset = at
                        if at >= result.max_offset and not follow:
                            return
                    else:
                        raise NoAnswer(f"{client.address}: the server ended the stream")
            except BrokerError as error:
                # Where there were messages there are still: a broker that knows less of them lags behind.
                lags = served and error.status is Status.OFFSET_ABOVE_MAXIMUM
                now = asyncio.get_running_loop().time()
                failed_since = failed_since if failures else now
                out_of_time = now - failed_since > self._consumer.timeout
                if out_of_time or not (lags or isinstance(error, REPEATABLE)):
                    raise
                if client is not None:
                    self._directory.failed(name, client, error)
                failures += 1
                await asyncio.sleep(pause(failures))

    async def _results(self, client: BrokerClient, follow: bool) -> AsyncGenerator[PullResult, None]:
        """What a broker has from the offset on. A stream says nothing for seconds where there is nothing yet:
        who only reads to the present end first asks whether that is reached."""
        topic, _, queue_id = self._queue
        at = self._offset
        if not follow:
            found = await client.pull(
                topic,
                queue_id,
                at,
                max_messages=_STREAM_MESSAGES,
                max_bytes=_STREAM_BYTES,
                tags=self._tags,
                timeout=self._consumer.timeout,
            )
            at = _inside(at, found).next_offset
            yield found
        async with aclosing(
            client.pull_stream(
                topic,
                queue_id,
                at,
                max_messages=_STREAM_MESSAGES,
                max_bytes=_STREAM_BYTES,
                tags=self._tags,
                wait_ms=_STREAM_WAIT_MS,
            )
        ) as results:
            async for result in results:
                at = _inside(at, result).next_offset
                yield result


def _batch(result: PullResult) -> PullBatch:
    status, next_offset, min_offset, max_offset, records = result
    messages = [message_of(record) for record in records]
    return PullBatch(status, next_offset, min_offset, max_offset, messages)


def _inside(offset: int, result: PullResult) -> PullResult:
    if result.status is PullStatus.OFFSET_ILLEGAL:
        raise _outside(offset, result)
    return result


def _outside(offset: int, result: PullResult) -> ReadFailed:
    bounds = f"the queue has {result.min_offset} to {result.max_offset}"
    if offset < result.min_offset:
        return ReadFailed(Status.OFFSET_BELOW_MINIMUM, f"offset {offset} is gone; {bounds}")
    return ReadFailed(Status.OFFSET_ABOVE_MAXIMUM, f"offset {offset} is yet to come; {bounds}")
