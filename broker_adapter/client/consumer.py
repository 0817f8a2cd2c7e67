"""The consumer that shares its topics' queues with the other members of its group, for asyncio programs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from broker_adapter.client.directory import Directory
from broker_adapter.client.listening import GroupListener
from broker_adapter.client.member import Member, MemberConfig, Start
from broker_adapter.client.queue_feed import QueueFeed
from broker_adapter.client.routes import RouteSource
from broker_adapter.client.values import Message, MessageQueue, parse_tags
from dledger import TlsFiles

_log = logging.getLogger(__name__)

#: Consumes one message; an exception has it delivered again, after a pause.
Handler = Callable[[Message], Awaitable[None] | None]


class Consumer:
    """A member of a group. Each queue of its topics is consumed by one member, in order, at least once.

    Use it with `async with`, in one event loop. With a `handler`, messages of one queue are handed to it one
    after the other, those of several queues beside each other. Without one, iterate: `async for message in
    consumer`; a message counts as consumed when the next one is asked for.

    Offsets are committed every `commit_interval`, when members come and go, and at `close`. They are in the
    log: an acknowledged one is never forgotten. What was consumed but not committed when a queue moves to
    another member, or this one dies, is delivered again.

    Args:
        routes: a NameServer client or `StaticRoutes`.
        group: the name of the group.
        topics: the topics, or a mapping from them to tag expressions, "*" or "a || b".
        handler: see above; a function or a coroutine function.
        start: where to begin with a queue of which the group has committed nothing: "earliest", "latest", or
            milliseconds since 1970.
        lease: seconds without a sign of life after which the queues go to other members.
        commit_interval: seconds.
        prefetch_bytes: messages that wait here at most, of all queues.
        retry_pause: seconds until a message whose handler has failed is handed in again.
        member_id: default: random.
        listener: is told what this member is assigned, and what it commits.
        tls: PEM files for TLS, read again when they change; None: plain text.
    """

    def __init__(
        self,
        routes: RouteSource,
        group: str,
        topics: str | Sequence[str] | Mapping[str, str],
        *,
        handler: Handler | None = None,
        start: Start = "earliest",
        lease: float = 10.0,
        commit_interval: float = 1.0,
        prefetch_bytes: int = 32 << 20,
        retry_pause: float = 1.0,
        member_id: str = "",
        listener: GroupListener | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise ValueError(f'start is "earliest", "latest" or a time in milliseconds, not {start!r}')
        self._directory = Directory(routes, tls)
        self._config = MemberConfig(
            group=group,
            member_id=member_id or secrets.token_hex(8),
            subscription=_subscription(topics),
            start=start,
            lease=lease,
            commit_interval=commit_interval,
            prefetch_bytes=prefetch_bytes,
        )
        self._handler = handler
        self._listener = listener or GroupListener()
        self._retry_pause = retry_pause
        self._members: list[Member] = []
        self._ready: deque[QueueFeed] = deque()
        self._something = asyncio.Event()
        self._workers: set[asyncio.Task[None]] = set()
        self._wakes: dict[QueueFeed, asyncio.Event] = {}
        self._closed = False

    @property
    def member_id(self) -> str:
        return self._config.member_id

    @property
    def assignment(self) -> dict[MessageQueue, int]:
        """The queues that this member owns now, and what it has consumed of each."""
        return {queue: feed.position for member in self._members for queue, feed in member.feeds.items()}

    @property
    def generations(self) -> list[int]:
        """The generation of the group at each broker name."""
        return [member.generation for member in self._members]

    @property
    def buffered_bytes(self) -> int:
        return sum(feed.buffered_bytes for member in self._members for feed in member.feeds.values())

    async def start(self) -> None:
        """Join the group. Raises TopicRefused, GroupRefused, IllegalMessage; REPEATABLE if nobody answers."""
        topics_of: dict[str, list[str]] = {}
        for topic in sorted(self._config.subscription):
            route = await self._directory.find(topic, 2 * self._config.call_timeout)
            self._directory.watch(topic)
            for broker in sorted(route.queues):
                topics_of.setdefault(broker, []).append(topic)
        for broker, topics in topics_of.items():
            member = Member(
                self._directory,
                broker,
                topics,
                self._config,
                self._on_ready,
                self._on_feeds,
                self._listener,
            )
            self._members.append(member)
            await member.start()

    async def commit(self) -> None:
        """Commit now what was consumed. Raises NotMaster, Busy, PutIndeterminate if that failed."""
        for member in self._members:
            await member.commit()

    async def close(self) -> None:
        """Finish the messages in the handlers' hands, commit, leave the group, disconnect."""
        if self._closed:
            return
        self._close_hands()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in self._members))
        await self._directory.close()

    async def abandon(self) -> None:
        """Disconnect as if this program had died: what is under way is cancelled, nothing is committed; the
        group gives its queues to others when the lease is over."""
        if self._closed:
            return
        self._close_hands()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await asyncio.gather(*(member.abandon() for member in self._members))
        await self._directory.close()

    def _close_hands(self) -> None:
        self._closed = True
        self._something.set()
        for wake in self._wakes.values():
            wake.set()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- iterating

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self.messages()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Messages of all owned queues in turn, until the consumer is closed."""
        if self._handler is not None:
            raise RuntimeError("this consumer has a handler")
        while not self._closed:
            while not self._ready:
                self._something.clear()
                if self._closed:
                    return
                await self._something.wait()
            feed = self._ready.popleft()
            if not feed.is_ready:
                continue
            message = feed.take()
            try:
                yield message
            except BaseException:  # left by break, return or an error: it was not consumed
                feed.put_back(message)
                raise
            feed.done(message)

    # -- handling

    def _on_ready(self, feed: QueueFeed) -> None:
        if self._handler is None:
            self._ready.append(feed)
            self._something.set()
        elif (wake := self._wakes.get(feed)) is not None:
            wake.set()

    def _on_feeds(self, feeds: Sequence[QueueFeed]) -> None:
        if self._handler is None:
            return
        for feed in feeds:
            self._wakes[feed] = asyncio.Event()
            worker = asyncio.create_task(self._work(feed, self._handler))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self, feed: QueueFeed, handler: Handler) -> None:
        """Hand the messages of one queue to the handler, one after the other."""
        wake = self._wakes[feed]
        try:
            while not (self._closed or feed.stopped):
                if not feed.is_ready:
                    wake.clear()
                    await wake.wait()
                    continue
                message = feed.take()
                while not await self._handled(message, handler):
                    wake.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._retry_pause):
                            await wake.wait()
                    if self._closed or feed.stopped:
                        return
                feed.done(message)
        finally:
            del self._wakes[feed]

    async def _handled(self, message: Message, handler: Handler) -> bool:
        try:
            result = handler(message)
            if inspect.isawaitable(result):
                await result
        except Exception:
            _log.exception("the handler failed with %s of %s", message.offset_id, message.topic)
            return False
        return True


def _subscription(topics: str | Sequence[str] | Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    if isinstance(topics, Mapping):
        found = {topic: parse_tags(expression) for topic, expression in topics.items()}
    else:
        found = dict.fromkeys([topics] if isinstance(topics, str) else topics, ())
    if not found:
        raise ValueError("a consumer has at least one topic")
    return found
