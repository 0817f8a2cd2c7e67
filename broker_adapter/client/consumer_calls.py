"""What consumers of both kinds ask brokers: pulls and offsets of a group."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

from broker_adapter.client.core import requests
from broker_adapter.client.core.pulling import PullResult, pull_request, pull_result
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.client.instance import ClientInstance, is_absent
from broker_adapter.errors import AnswerMissing, BrokerError, PutRefused, ReadFailed, Status, TopicRefused
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


class ConsumeFromWhere(Enum):
    """Where a group begins that has no offset of a queue yet."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumerCalls:
    """Of one group. On one event loop."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}  # ids of brokers

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, *, most: int, wait_s: float
    ) -> PullResult:
        """From the broker that the one before has suggested. Errors are BrokerError's."""
        route = await self._client.routes.get(queue.topic)
        address = route.reader(queue.broker_name, self._suggested.get(queue, 0))
        if address is None:
            address = await self._client.master_of(queue.topic, queue.broker_name)
        request = pull_request(self._group, queue, offset, subscription, most=most, wait_s=wait_s)
        timeout_s = self._client.options.request_timeout_s + wait_s
        try:
            answer = await self._client.connections.invoke_long(address, request, timeout_s)
        except (AnswerMissing, PutRefused):
            await self._look_again(queue)
            raise
        result = pull_result(answer, queue, subscription)
        self._suggested[queue] = result.suggested_broker
        return result

    def forget(self, queue: MessageQueue) -> None:
        self._suggested.pop(queue, None)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset; None: it has none."""
        # Brokers of RocketMQ 5, and ours, would say 0 of a queue that is new.
        request = requests.of_queue(
            RequestCode.QUERY_CONSUMER_OFFSET, queue, consumerGroup=self._group, setZeroIfNotFound="false"
        )
        try:
            return await self._offset(queue, request)
        except ReadFailed as error:
            if is_absent(error):
                return None
            raise

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        request = requests.of_queue(
            RequestCode.UPDATE_CONSUMER_OFFSET, queue, consumerGroup=self._group, commitOffset=str(offset)
        )
        await self._ask(queue, request)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MIN_OFFSET, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MAX_OFFSET, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._offset(queue, requests.of_queue(code, queue, timestamp=str(timestamp_ms)))

    async def first_offset(self, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int = 0) -> int:
        """Where to begin: the group's offset, or what `begin_of` says."""
        offset = await self.committed(queue)
        return await self.begin_of(queue, where, timestamp_ms) if offset is None else offset

    async def begin_of(self, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int = 0) -> int:
        """`timestamp_ms`: for CONSUME_FROM_TIMESTAMP."""
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return await self.search_offset(queue, timestamp_ms)
        if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return await self.max_offset(queue)
        return await self.min_offset(queue)

    async def _offset(self, queue: MessageQueue, request: RemotingCommand) -> int:
        return requests.number(await self._ask(queue, request), "offset")

    async def _ask(self, queue: MessageQueue, request: RemotingCommand) -> RemotingCommand:
        try:
            return await self._client.call(await self._address(queue), request)
        except (AnswerMissing, PutRefused):
            await self._look_again(queue)
            raise

    async def _look_again(self, queue: MessageQueue) -> None:
        """Whom a route named did not answer: another one may be master by now."""
        self._suggested.pop(queue, None)
        with suppress(BrokerError):
            await self._client.routes.renewed(queue.topic)

    async def _address(self, queue: MessageQueue) -> str:
        """The master; without one a slave, which keeps offsets for it."""
        try:
            return await self._client.master_of(queue.topic, queue.broker_name)
        except TopicRefused as error:
            route = await self._client.routes.get(queue.topic)
            slave = route.reader(queue.broker_name, 1)
            if error.status is not Status.QUEUE_UNKNOWN or slave is None:
                raise
            return slave
