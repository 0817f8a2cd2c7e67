"""Broker calls shared by the pull and the push consumer: pulls and group offsets."""

from __future__ import annotations

import logging
from contextlib import suppress
from enum import Enum

from broker_adapter.client.core import requests
from broker_adapter.client.core.pulling import PullResult, pull_request, pull_result
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.client.instance import ClientInstance, is_absent
from broker_adapter.client.steps import run_in_steps
from broker_adapter.errors import AnswerMissing, BrokerError, PutRefused, ReadFailed, Status, error_for
from broker_adapter.remoting.codes import OFFSET_WAS_RESET, RequestCode
from broker_adapter.remoting.command import RemotingCommand

_log = logging.getLogger(__name__)


class ConsumeFromWhere(Enum):
    """Where a group starts in a queue for which it has no committed offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def log_failed_pull(log: logging.Logger, queue: MessageQueue, error: BrokerError) -> None:
    """Log a failed pull that will be retried. No retry succeeds while an optional package is missing or the
    filter is invalid."""
    is_permanent = error.status in (Status.COMPRESSION_UNAVAILABLE, Status.REQUEST_MALFORMED)
    level = logging.ERROR if is_permanent else logging.INFO
    log.log(level, "a pull failed: queue %s, %s", queue, error)


class ConsumerRequests:
    """Broker calls of one group. Not thread-safe: use the object on one event loop."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}  # broker ids

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        *,
        max_messages: int,
        wait_s: float,
    ) -> PullResult:
        """Pull from the broker that the previous response suggested. Logs unreadable messages.

        Raises BrokerError.
        """
        route = await self._client.routes.get(queue.topic)
        address = route.reader(queue.broker_name, self._suggested.get(queue, 0))
        if address is None:
            address = await self._client.master_of(queue.topic, queue.broker_name)
        request = pull_request(
            self._group, queue, offset, subscription, max_messages=max_messages, wait_s=wait_s
        )
        timeout_s = self._client.options.request_timeout + wait_s
        try:
            answer = await self._client.connections.invoke_long(address, request, timeout_s)
        except (AnswerMissing, PutRefused):
            await self._refresh_route(queue)
            raise
        result = await run_in_steps(pull_result(answer, queue, subscription, max_messages))
        for message in result.unreadable:
            _log.error(
                "a message is unreadable: queue %s, offset %s, %s",
                queue,
                message.queue_offset,
                message.body_error,
            )
        self._suggested[queue] = result.suggested_broker
        return result

    def forget(self, queue: MessageQueue) -> None:
        self._suggested.pop(queue, None)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset, or None if it has none."""
        return await self._group_offset(queue, zero_if_absent=False)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset.

        Raises GroupRefused (GENERATION_STALE) if a reset of the group has invalidated it.
        """
        request = requests.of_queue(
            RequestCode.UPDATE_CONSUMER_OFFSET, queue, consumerGroup=self._group, commitOffset=str(offset)
        )
        answer = await self._call(queue, request)
        if answer.remark == OFFSET_WAS_RESET:
            text = f"offset {offset} of {queue} has no effect: group {self._group!r} was reset"
            raise error_for(Status.GENERATION_STALE, text)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MIN_OFFSET, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MAX_OFFSET, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._offset(queue, requests.of_queue(code, queue, timestamp=str(timestamp_ms)))

    async def first_offset(self, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int = 0) -> int:
        """Return the start position: the group's offset, or the result of `start_of`.

        With CONSUME_FROM_LAST_OFFSET, the broker may return an offset for a group that has none: the start of
        a queue that was never purged or was recreated. Consumers therefore do not skip messages in queues
        that are added while they run. RocketMQ's clients behave the same.
        """
        zero_if_absent = where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        offset = await self._group_offset(queue, zero_if_absent=zero_if_absent)
        return await self.start_of(queue, where, timestamp_ms) if offset is None else offset

    async def _group_offset(self, queue: MessageQueue, *, zero_if_absent: bool) -> int | None:
        request = requests.of_queue(
            RequestCode.QUERY_CONSUMER_OFFSET,
            queue,
            consumerGroup=self._group,
            setZeroIfNotFound=str(zero_if_absent).lower(),
        )
        try:
            return await self._offset(queue, request)
        except ReadFailed as error:
            if is_absent(error):
                return None
            raise

    async def start_of(self, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int = 0) -> int:
        """Return the start position according to `where`. `timestamp_ms`: for CONSUME_FROM_TIMESTAMP."""
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return await self.search_offset(queue, timestamp_ms)
        if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return await self.max_offset(queue)
        return await self.min_offset(queue)

    async def _offset(self, queue: MessageQueue, request: RemotingCommand) -> int:
        return requests.number(await self._call(queue, request), "offset")

    async def _call(self, queue: MessageQueue, request: RemotingCommand) -> RemotingCommand:
        try:
            # While its master is down, a slave keeps offsets for it.
            address = await self._client.reader_of(queue.topic, queue.broker_name)
            return await self._client.call(address, request)
        except (AnswerMissing, PutRefused):
            await self._refresh_route(queue)
            raise

    async def _refresh_route(self, queue: MessageQueue) -> None:
        """Refresh the route after a failed call: another broker may have become master."""
        self._suggested.pop(queue, None)
        with suppress(BrokerError):
            await self._client.routes.renewed(queue.topic)
