"""Offsets: of queues, and of groups."""

from __future__ import annotations

from broker_adapter.api import BrokerApi, QueueOffset, QueueStats
from broker_adapter.errors import GroupRefused, ResponseCode, Status
from broker_adapter.processor import fields as read
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.store.queue_reader import store_timestamp_of

#: Consumers that assign queues to themselves.
NO_GENERATION = -1
#: A queue that was not purged, of so few messages, is new: a group that finds it starts at its begin,
#: whatever it would do elsewhere. RocketMQ says so of queues that are in memory as a whole.
_FRESH_MESSAGES = 100_000


class OffsetProcessor:
    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def query(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """QUERY_NOT_FOUND tells a client to begin as its settings say."""
        fields, command = request.fields, request.command
        topic, queue_id = _queue(request)
        try:
            found = await self._broker.offset(read.text(fields, "consumerGroup"), topic, queue_id)
        except GroupRefused as error:
            if error.status is not Status.GROUP_UNKNOWN:
                raise
            found = None
        if found is not None:
            return _told(command, found)
        stats = await self._stats(request, context)
        is_fresh = stats.min_offset == 0 and stats.max_offset <= _FRESH_MESSAGES
        if is_fresh and read.flag(fields, "setZeroIfNotFound", default=True):
            return _told(command, 0)
        text = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return command.answer(ResponseCode.QUERY_NOT_FOUND, text)

    async def update(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """An offset that was committed falls by a reset only."""
        offset = QueueOffset(*_queue(request), max(0, read.number(request.fields, "commitOffset")))
        group = read.text(request.fields, "consumerGroup")
        await self._broker.commit_offsets(group, NO_GENERATION, [offset])
        return request.command.answer(ResponseCode.SUCCESS)

    async def max_offset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _told(request.command, (await self._stats(request, context)).max_offset)

    async def min_offset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _told(request.command, (await self._stats(request, context)).min_offset)

    async def by_time(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        when_ms = max(0, read.number(request.fields, "timestamp"))
        offset = await self._broker.offset_by_time(*_queue(request), when_ms, remote=context.remote)
        return _told(request.command, offset)

    async def earliest_time(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """-1 for an empty queue."""
        stats = await self._stats(request, context)
        begin = stats.min_offset
        found = await self._broker.pull(*_queue(request), begin, max_messages=1, remote=context.remote)
        when_ms = store_timestamp_of(found.records[0]) if found.records else -1
        return request.command.answer(ResponseCode.SUCCESS, fields={"timestamp": str(when_ms)})

    async def _stats(self, request: RemotingRequest, context: CallContext) -> QueueStats:
        return await self._broker.queue_stats(*_queue(request), remote=context.remote)


def _queue(request: RemotingRequest) -> tuple[str, int]:
    return read.text(request.fields, "topic"), read.number(request.fields, "queueId")


def _told(command: RemotingCommand, offset: int) -> RemotingCommand:
    return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})
