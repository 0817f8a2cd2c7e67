"""Processors for offsets of queues and groups."""

from __future__ import annotations

from broker_adapter.api import BrokerApi, QueueOffset, QueueStats
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import GroupRefused, ResponseCode, Status
from broker_adapter.remoting.codes import OFFSET_WAS_RESET, Language
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.store.queue_reader import store_timestamp_of

#: Maximum number of messages in a queue that counts as new, that is, was never purged. A group without an
#: offset starts at the first message of a new queue, whatever its settings. RocketMQ does this for queues
#: that are entirely in memory.
_FRESH_MESSAGES = 100_000


class OffsetProcessor:
    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def query(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Return a group's offset.

        If the response is QUERY_NOT_FOUND, the client starts according to its settings.
        """
        fields, command = request.fields, request.command
        topic, queue_id = _queue(request)
        try:
            found = await self._broker.offset(
                read.text(fields, "consumerGroup"),
                topic,
                queue_id,
                client_id=context.client_id,
                remote=context.remote,
            )
        except GroupRefused as error:
            if error.status is not Status.GROUP_UNKNOWN:
                raise
            found = None
        if found is not None:
            return _offset_response(command, found)
        stats = await self._stats(request, context)
        if _is_fresh(stats) and read.flag(fields, "setZeroIfNotFound", default=True):
            return _offset_response(command, stats.min_offset)
        text = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return command.answer(ResponseCode.QUERY_NOT_FOUND, text)

    async def update(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Commit an offset.

        Only a reset can lower a committed offset. Commits of offsets from before a reset have no effect; as
        in RocketMQ, the response is SUCCESS nevertheless.
        """
        offset = QueueOffset(*_queue(request), max(0, read.number(request.fields, "commitOffset")))
        group = read.text(request.fields, "consumerGroup")
        client_id = _committer(request.command, context)
        try:
            await self._broker.commit_offsets(group, [offset], client_id=client_id)
        except GroupRefused as error:
            if error.status is not Status.GENERATION_STALE:
                raise
            return request.command.answer(ResponseCode.SUCCESS, OFFSET_WAS_RESET)
        return request.command.answer(ResponseCode.SUCCESS)

    async def max_offset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _offset_response(request.command, (await self._stats(request, context)).max_offset)

    async def min_offset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _offset_response(request.command, (await self._stats(request, context)).min_offset)

    async def by_time(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        when_ms = max(0, read.number(request.fields, "timestamp"))
        is_upper = request.fields.get("boundaryType", "").upper() == "UPPER"
        offset = await self._broker.offset_by_time(
            *_queue(request), when_ms, is_upper=is_upper, remote=context.remote
        )
        return _offset_response(request.command, offset)

    async def earliest_time(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Return the store timestamp of the first message, or -1 if the queue is empty."""
        stats = await self._stats(request, context)
        found = await self._broker.read(*_queue(request), stats.min_offset, remote=context.remote)
        when_ms = store_timestamp_of(found[0]) if found else -1
        return request.command.answer(ResponseCode.SUCCESS, fields={"timestamp": str(when_ms)})

    async def _stats(self, request: RemotingRequest, context: CallContext) -> QueueStats:
        return await self._broker.queue_stats(*_queue(request), remote=context.remote)


def _is_fresh(stats: QueueStats) -> bool:
    """Return True if all messages since the creation of the topic still exist.

    In a topic that was deleted and recreated, offsets continue after the offsets of the deleted messages.
    """
    if stats.min_offset != stats.initial_offset:
        return False
    return stats.min_offset > 0 or stats.max_offset <= _FRESH_MESSAGES


def _committer(command: RemotingCommand, context: CallContext) -> str:
    """Return the id of the client that commits, or "" for a tool.

    RocketMQ's tools are Java programs that send no heartbeats and wait for the response, whereas its Java
    consumers never wait for it.
    """
    has_told_its_id = context.client_id != context.remote
    is_tool = command.language == Language.JAVA and not command.is_oneway and not has_told_its_id
    return "" if is_tool else context.client_id


def _queue(request: RemotingRequest) -> tuple[str, int]:
    return read.text(request.fields, "topic"), read.number(request.fields, "queueId")


def _offset_response(command: RemotingCommand, offset: int) -> RemotingCommand:
    return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})
