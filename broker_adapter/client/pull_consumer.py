"""PullConsumer: a program takes messages at its own pace, and says where it reads."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Sequence

from broker_adapter.client.consumer_calls import ConsumeFromWhere, ConsumerCalls
from broker_adapter.client.core.pulling import PullResult
from broker_adapter.client.core.subscription import ALL, Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue
from broker_adapter.client.instance import ClientInstance, RemotingClient, now_ms
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import BrokerError

_log = logging.getLogger(__name__)

_WAIT_S = 15.0  # a broker waits so long for a message; RocketMQ's brokerSuspendMaxTimeMillis
_RETRY_S = 1.0  # after a pull has failed


class PullConsumer(RemotingClient):
    """RocketMQ's DefaultMQPullConsumer (`pull`) and DefaultLitePullConsumer (`assign`, `seek`, `poll`) for
    asyncio. Use it with `async with`, or `start` and `close`. Only calls commit offsets."""

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str] | str,
        *,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        expression: str = ALL,
        batch: int = 32,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`consume_from`: of assigned queues that the group has no offset of. `batch`: messages of one pull;
        each assigned queue keeps so many in memory. `expression`: of assigned queues."""
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._calls = ConsumerCalls(self._client, group)
        self._consume_from = consume_from
        self._expression = expression
        self._batch = batch
        self._version = now_ms()
        self._positions: dict[MessageQueue, int | None] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[PullResult | None]] = {}

    async def close(self) -> None:
        """Disconnect. Positions are not committed."""
        self.assign(())
        await self._client.close()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that can be read (fetchSubscribeMessageQueues). TopicRefused (TOPIC_UNKNOWN)."""
        return (await self._client.routes.get(topic)).subscribe_queues(topic)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = ALL,
        max_messages: int = 32,
        wait_s: float = 0.0,
    ) -> PullResult:
        """Messages from `offset` on. `wait_s`: how long the broker waits if there is none.

        Raises BrokerError: AnswerMissing (ANSWER_MISSING), TopicRefused, ...
        """
        subscription = Subscription(queue.topic, expression, self._version)
        return await self._calls.pull(queue, offset, subscription, most=max_messages, wait_s=wait_s)

    # -- the group's offsets

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset; None: it has none."""
        return await self._calls.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset: the next message to read."""
        await self._calls.commit(queue, offset)

    async def commit_positions(self) -> None:
        """Store the positions of all assigned queues: behind what `poll` has returned."""
        for queue, position in list(self._positions.items()):
            if position is not None:
                await self._calls.commit(queue, position)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Of the first message that is still there."""
        return await self._calls.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The one after the last message."""
        return await self._calls.max_offset(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Of the first message that was stored then or later (ms since 1970)."""
        return await self._calls.search_offset(queue, timestamp_ms)

    # -- assign, seek, poll

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues with `poll`, and no others. Positions of queues that stay are kept."""
        wanted = dict.fromkeys(queues)
        for queue in list(self._positions):
            if queue not in wanted:
                self._stop(queue)
                del self._positions[queue]
        for queue in wanted:
            self._positions.setdefault(queue, None)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on there. KeyError if the queue is not assigned."""
        self._positions[queue]
        self._stop(queue)
        self._positions[queue] = offset

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        self.seek(queue, await self.max_offset(queue))

    def position(self, queue: MessageQueue) -> int | None:
        """Of the next message of `poll`; None: not known before the first one. KeyError."""
        return self._positions[queue]

    async def poll(self, timeout_s: float = 5.0) -> list[MessageExt]:
        """Messages of assigned queues, of at most one pull of each; empty if none came in time.

        Pulls that fail are repeated, and the log says so.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            for queue in self._positions:
                if queue not in self._pulls:
                    self._pulls[queue] = loop.create_task(self._fetch(queue))
            left = deadline - loop.time()
            if not self._pulls:
                await asyncio.sleep(0)  # a program may ask again at once
                return []
            await asyncio.wait(
                self._pulls.values(), timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
            )
            found: list[MessageExt] = []
            for queue, pull in list(self._pulls.items()):
                if pull.done():
                    del self._pulls[queue]
                    if (result := pull.result()) is not None:
                        self._positions[queue] = result.next_offset
                        found += result.messages
            if found or left <= 0:
                return found

    async def _fetch(self, queue: MessageQueue) -> PullResult | None:
        """None: it failed, and some time has passed."""
        try:
            position = self._positions[queue]
            if position is None:
                position = await self._calls.first_offset(queue, self._consume_from)
            return await self.pull(
                queue, position, expression=self._expression, max_messages=self._batch, wait_s=_WAIT_S
            )
        except BrokerError as error:
            _log.info("a pull failed: queue %s, %s", queue, error)
            await asyncio.sleep(_RETRY_S)
            return None

    def _stop(self, queue: MessageQueue) -> None:
        """What is being pulled there is not wanted any more."""
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.cancel()
        self._calls.forget(queue)
