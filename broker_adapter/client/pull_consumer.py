"""The pull consumer, with which a program reads messages from positions that it controls."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Sequence

from broker_adapter.client.consumer_calls import ConsumeFromWhere, ConsumerRequests, log_failed_pull
from broker_adapter.client.core.checks import check_offset, check_type
from broker_adapter.client.core.pulling import PullResult
from broker_adapter.client.core.subscription import ALL, Expression, Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue, check_queue
from broker_adapter.client.instance import ClientInstance, RemotingClient, now_ms
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import BrokerError
from broker_adapter.wire.topic_names import check_group_name

_log = logging.getLogger(__name__)

_WAIT_S = 15.0  # maximum wait of the broker for a message; RocketMQ's brokerSuspendMaxTimeMillis
_RETRY_S = 1.0  # after a failed pull


class PullConsumer(RemotingClient):
    """RocketMQ's DefaultMQPullConsumer (`pull`) and DefaultLitePullConsumer (`assign`, `seek`, `poll`) for
    asyncio.

    Use `async with`, or `start` and `close`. Offsets are committed only by explicit calls.
    """

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str] | str,
        *,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        expression: Expression = ALL,
        batch: int = 32,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`consume_from`: start position in assigned queues for which the group has no committed offset.
        `batch`: maximum number of messages per pull, and in memory per assigned queue. `expression`: filter
        for assigned queues.

        Raises IllegalMessage if the group name is invalid or an argument has another type.
        """
        check_group_name(group)
        check_type("consume_from", consume_from, ConsumeFromWhere)
        check_type("batch", batch, int)
        Subscription("", expression)  # checks it
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._calls = ConsumerRequests(self._client, group)
        self._consume_from = consume_from
        self._expression = expression
        self._batch = batch
        self._version = now_ms()
        self._positions: dict[MessageQueue, int | None] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[PullResult | None]] = {}

    async def close(self) -> None:
        """Disconnect without committing positions."""
        self.assign(())
        await self._client.close()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues (fetchSubscribeMessageQueues). Raises TopicRefused (TOPIC_UNKNOWN)."""
        return (await self._client.routes.get(topic)).subscribe_queues(topic)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: Expression = ALL,
        max_messages: int = 32,
        timeout: float = 0.0,
    ) -> PullResult:
        """Pull messages starting at `offset`. `timeout`: how long the broker waits if none is available
        (seconds).

        Messages whose compressed body is invalid or too large are in `PullResult.unreadable`. Raises
        BrokerErrors, for example AnswerMissing (ANSWER_MISSING), TopicRefused, or CompressionUnavailable.
        """
        check_queue(queue)
        check_offset(offset)
        subscription = Subscription(queue.topic, expression, self._version)
        return await self._calls.pull(queue, offset, subscription, max_messages=max_messages, wait_s=timeout)

    # -- the group's offsets

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset, or None if it has none."""
        return await self._calls.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset, which is the offset of the next message to read.

        A lower offset than the stored one has no effect; only a reset (`Admin.reset_offset`) lowers it. This
        consumer is not a member of the group, so a reset does not change its positions, and a later commit
        may replace the reset offset. Raises GroupRefused (GENERATION_STALE) if a reset took effect while this
        commit was in progress.
        """
        check_offset(offset)
        await self._calls.commit(queue, offset)

    async def commit_positions(self) -> None:
        """Commit the positions of all assigned queues, after the messages that `poll` has returned."""
        for queue, position in list(self._positions.items()):
            if position is not None:
                await self._calls.commit(queue, position)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest available message."""
        return await self._calls.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message."""
        return await self._calls.max_offset(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (ms since 1970)."""
        return await self._calls.search_offset(queue, timestamp_ms)

    # -- assign, seek, poll

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Replace the queues that `poll` reads. Queues that remain assigned keep their positions."""
        assigned = dict.fromkeys(queues)
        for queue in assigned:
            check_queue(queue)
        for queue in list(self._positions):
            if queue not in assigned:
                self._stop(queue)
                del self._positions[queue]
        for queue in assigned:
            self._positions.setdefault(queue, None)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset. Raises KeyError if the queue is not assigned."""
        self.position(queue)
        check_offset(offset)
        self._stop(queue)
        self._positions[queue] = offset

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        self.seek(queue, await self.max_offset(queue))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that `poll` returns; None before the first pull.

        Raises KeyError if the queue is not assigned.
        """
        if queue not in self._positions:
            raise KeyError(f"{queue} is not assigned")
        return self._positions[queue]

    async def poll(self, timeout: float = 5.0) -> list[MessageExt]:
        """Return messages from assigned queues, or an empty list after the timeout. The messages are from at
        most one pull per queue.

        Failed pulls are logged and retried. Messages whose compressed body is invalid or too large are logged
        and skipped.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            for queue in self._positions:
                if queue not in self._pulls:
                    self._pulls[queue] = loop.create_task(self._fetch(queue))
            remaining = deadline - loop.time()
            if not self._pulls:
                await asyncio.sleep(0)  # the program may poll again immediately
                return []
            await asyncio.wait(
                self._pulls.values(), timeout=max(0.0, remaining), return_when=asyncio.FIRST_COMPLETED
            )
            messages: list[MessageExt] = []
            for queue, pull in list(self._pulls.items()):
                if pull.done():
                    del self._pulls[queue]
                    if (result := pull.result()) is not None:
                        self._positions[queue] = result.next_offset
                        messages += result.messages
            if messages or remaining <= 0:
                return messages

    async def _fetch(self, queue: MessageQueue) -> PullResult | None:
        """Pull once. After a failure, pause and return None."""
        try:
            position = self._positions[queue]
            if position is None:
                position = await self._calls.first_offset(queue, self._consume_from)
            return await self.pull(
                queue, position, expression=self._expression, max_messages=self._batch, timeout=_WAIT_S
            )
        except BrokerError as error:
            log_failed_pull(_log, queue, error)
            await asyncio.sleep(_RETRY_S)
            return None

    def _stop(self, queue: MessageQueue) -> None:
        """Cancel the pull of a queue."""
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.cancel()
        self._calls.forget(queue)
