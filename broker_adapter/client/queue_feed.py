"""One queue of a group's member: long polls ahead of its user, and knows what has been consumed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from broker_adapter.api import PullResult, PullStatus
from broker_adapter.client.directory import Directory, pause
from broker_adapter.client.values import Message, MessageQueue, message_of
from broker_adapter.errors import BrokerError
from broker_adapter.rpc.broker_client import BrokerClient

_log = logging.getLogger(__name__)

_MAX_PULL_MESSAGES = 1024
_MAX_PULL_BYTES = 1 << 20
#: An error that is none of the network's is not asked about more often than this, in seconds.
_SLOW_PAUSE = 1.0


class QueueFeed:
    """Messages of one queue in order. One of them at most is in the user's hands.

    Args:
        position: the first offset to deliver.
        acknowledged: what the broker has as the group's offset; None: nothing.
        room: bytes that may wait here.
        on_ready: called when there is something to take again.
        on_trouble: called when the master seems to have changed.
    """

    def __init__(
        self,
        directory: Directory,
        queue: MessageQueue,
        *,
        group: str,
        tags: Sequence[str],
        position: int,
        acknowledged: int | None,
        room: int,
        wait_ms: int,
        on_ready: Callable[[QueueFeed], None],
        on_trouble: Callable[[], None],
    ) -> None:
        self.queue = queue
        #: All before it was consumed.
        self.position = position
        self.acknowledged = acknowledged
        #: What the last commit tried to acknowledge; its answer may have been lost.
        self.attempted = acknowledged
        self.room = room
        self.stopped = False
        self._directory = directory
        self._group = group
        self._tags = tags
        self._wait_ms = wait_ms
        self._on_ready = on_ready
        self._on_trouble = on_trouble
        self._next = position  # to pull
        self._buffer: deque[tuple[Message, int]] = deque()  # with the sizes of their records
        self._bytes = 0
        self._in_hand = False
        self._has_room = asyncio.Event()
        self._poller = asyncio.create_task(self._poll())

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to commit."""
        return self.acknowledged is None or self.position > self.acknowledged

    @property
    def is_ready(self) -> bool:
        return bool(self._buffer) and not self._in_hand and not self.stopped

    @property
    def buffered_bytes(self) -> int:
        return self._bytes

    def take(self) -> Message:
        """The next message. The one before must be done."""
        message, size = self._buffer.popleft()
        self._in_hand = True
        self._bytes -= size
        if self._bytes < self.room:
            self._has_room.set()
        return message

    def put_back(self, message: Message) -> None:
        """It was taken, but not consumed: it is next again."""
        self._buffer.appendleft((message, len(message.body)))
        self._bytes += len(message.body)
        self._in_hand = False
        if self.is_ready:
            self._on_ready(self)

    def done(self, message: Message) -> None:
        """The message that was taken is consumed."""
        self._in_hand = False
        self.position = message.queue_offset + 1
        self._settle()
        if self.is_ready:
            self._on_ready(self)

    async def stop(self) -> None:
        """Deliver no more. A message in hand may be finished, but counts no more."""
        self.stopped = True
        self._on_ready(self)  # so that whoever waits for messages looks again
        self._poller.cancel()
        await asyncio.gather(self._poller, return_exceptions=True)

    def _settle(self) -> None:
        """Behind the last message there may have been others, without the wanted tags."""
        if not self._buffer and not self._in_hand:
            self.position = max(self.position, self._next)

    async def _poll(self) -> None:
        failures = 0
        while True:
            while self._bytes >= self.room:
                self._has_room.clear()
                await self._has_room.wait()
            client: BrokerClient | None = None
            try:
                client = await self._directory.master(self.queue.broker, self.queue.topic)
                result = await self._pull(client)
                failures = 0 if self._accept(result) else failures + 1
            except BrokerError as error:
                failures += 1
                if client is not None:
                    self._directory.failed(self.queue.broker, client, error)
                self._on_trouble()
                _log.info("pull of %s: %s", self.queue, error)
            if failures:
                await asyncio.sleep(pause(failures) if failures < 20 else _SLOW_PAUSE)

    async def _pull(self, client: BrokerClient) -> PullResult:
        return await client.pull(
            self.queue.topic,
            self.queue.queue_id,
            self._next,
            max_messages=_MAX_PULL_MESSAGES,
            max_bytes=max(1, min(_MAX_PULL_BYTES, self.room - self._bytes)),
            tags=self._tags,
            wait_ms=self._wait_ms,
            group=self._group,
        )

    def _accept(self, result: PullResult) -> bool:
        """Take what a pull has found. False if the broker knows less of the queue than we do."""
        if result.status is PullStatus.OFFSET_ILLEGAL:
            if self._next > result.max_offset:
                # Acknowledged messages do not vanish: this broker lags behind, or is no master any more.
                self._on_trouble()
                return False
            _log.warning(
                "%s: offsets %d to %d are gone, going on at %d",
                self.queue,
                self._next,
                result.min_offset - 1,
                result.next_offset,
            )
        was_ready = self.is_ready
        for record in result.records:
            message = message_of(record)
            if message.queue_offset >= self._next:
                self._buffer.append((message, len(record)))
                self._bytes += len(record)
                self._next = message.queue_offset + 1
        self._next = max(self._next, result.next_offset)
        self._settle()
        if self.is_ready and not was_ready:
            self._on_ready(self)
        return True
