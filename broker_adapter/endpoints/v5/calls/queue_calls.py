"""PullMessage and group offsets, for consumers that track their own position."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from functools import partial

from broker_adapter.api import BrokerApi, GetMessageResult, GetMessageStatus, QueueOffset
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.delivery.api import MAX_FILTER_STEPS, Filter
from broker_adapter.endpoints.calls import large_request
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.filters.filters import filter_of
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected, ok
from broker_adapter.endpoints.v5.messages.message_in import duration_ms, timestamp_ms
from broker_adapter.endpoints.v5.messages.message_out import stored_message
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import split_properties
from dledger.infra.loops.turns import LARGE_BYTES
from dledger.infra.quotas import Quota, client_of

_MAX_PULLED = 1_024
_WAY_BACK_MS = 300


class QueueCalls:
    def __init__(self, broker: BrokerApi, settings: ClientServiceSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._large = Quota(settings.max_request_bytes, "bytes of responses are in progress")

    async def pull_message(
        self, request: calls.PullMessageRequest, context: CallContext
    ) -> AsyncGenerator[calls.PullMessageResponse, None]:
        group = group_of(request.group, context.namespace)
        topic, queue_id = _queue(request.message_queue, context)
        if request.offset < 0:
            raise Rejected(Code.ILLEGAL_OFFSET, f"offset {request.offset} is negative")
        if request.batch_size < 1:
            raise Rejected(Code.BAD_REQUEST, f"batch size {request.batch_size} is less than 1")
        wanted = filter_of(request.filter_expression)
        result = await self._broker.pull(
            topic,
            queue_id,
            request.offset,
            max_messages=min(request.batch_size, _MAX_PULLED),
            tags=tuple(sorted(wanted.tags)),
            wait_ms=self._wait_ms(request, context),
            group=group,
            remote=context.remote,
        )
        if result.status is GetMessageStatus.OFFSET_ILLEGAL:
            text = f"offset {request.offset} is not within {result.min_offset} to {result.max_offset}"
            yield calls.PullMessageResponse(status=pb.Status(code=Code.ILLEGAL_OFFSET, message=text))
            yield calls.PullMessageResponse(next_offset=result.next_offset)
        else:
            records, next_offset = result.records, result.next_offset
            if wanted.matches is not None:
                work = partial(matching, result, wanted)
                records, next_offset = await self._broker.filter(work, context.remote)
            nothing = pb.Status(code=Code.MESSAGE_NOT_FOUND, message="no message within the time to wait")
            size = sum(map(len, records))
            async with (
                nullcontext()
                if size < LARGE_BYTES
                else large_request(self._large, size, client_of(context.remote))
            ):
                yield calls.PullMessageResponse(status=ok() if records else nothing)
                for record in records:
                    message = stored_message(record, request.message_queue.topic)
                    yield calls.PullMessageResponse(message=message)
                yield calls.PullMessageResponse(next_offset=next_offset)

    async def query_offset(
        self, request: calls.QueryOffsetRequest, context: CallContext
    ) -> calls.QueryOffsetResponse:
        topic, queue_id = _queue(request.message_queue, context)
        if request.query_offset_policy not in pb.QueryOffsetPolicy.values():
            raise Rejected(Code.BAD_REQUEST, f"query offset policy {request.query_offset_policy} is unknown")
        if request.query_offset_policy == pb.QueryOffsetPolicy.TIMESTAMP:
            when_ms = timestamp_ms(request.timestamp)
            offset = await self._broker.offset_by_time(topic, queue_id, when_ms, remote=context.remote)
            return calls.QueryOffsetResponse(status=ok(), offset=offset)
        for stats in await self._broker.topic_stats(topic, remote=context.remote):
            if stats.queue_id == queue_id:
                is_end = request.query_offset_policy == pb.QueryOffsetPolicy.END
                offset = stats.max_offset if is_end else stats.min_offset
                return calls.QueryOffsetResponse(status=ok(), offset=offset)
        raise _no_queue(topic, queue_id)

    async def update_offset(
        self, request: calls.UpdateOffsetRequest, context: CallContext
    ) -> calls.UpdateOffsetResponse:
        group = group_of(request.group, context.namespace)
        topic, queue_id = _queue(request.message_queue, context)
        try:
            offset = QueueOffset(topic, queue_id, request.offset)
            await self._broker.commit_offsets(group, [offset])
        except IllegalMessage as error:
            if error.status is Status.OFFSET_OUT_OF_RANGE:
                raise Rejected(Code.ILLEGAL_OFFSET, error.message) from error
            raise
        return calls.UpdateOffsetResponse(status=ok())

    async def get_offset(
        self, request: calls.GetOffsetRequest, context: CallContext
    ) -> calls.GetOffsetResponse:
        group = group_of(request.group, context.namespace)
        topic, queue_id = _queue(request.message_queue, context)
        for found in await self._broker.offsets(group, remote=context.remote):
            if (found.topic, found.queue_id) == (topic, queue_id):
                return calls.GetOffsetResponse(status=ok(), offset=found.offset)
        text = f"group {group} has no offset in queue {queue_id} of {topic}"
        raise Rejected(Code.OFFSET_NOT_FOUND, text)

    def _wait_ms(self, request: calls.PullMessageRequest, context: CallContext) -> int:
        wanted = duration_ms(request.long_polling_timeout)
        if wanted < 0:
            raise Rejected(Code.ILLEGAL_POLLING_TIME, f"long polling timeout {wanted} ms is negative")
        wait_ms = min(wanted, self._settings.max_polling_ms)
        if context.timeout_s is not None:
            wait_ms = min(wait_ms, int(context.timeout_s * 1000) - _WAY_BACK_MS)
        return max(0, wait_ms)


def _queue(queue: pb.MessageQueue, context: CallContext) -> tuple[str, int]:
    topic = topic_of(queue.topic, context.namespace)
    if queue.id < 0:
        raise _no_queue(topic, queue.id)
    return topic, queue.id


def _no_queue(topic: str, queue_id: int) -> Rejected:
    return Rejected(Code.BAD_REQUEST, f"topic {topic} has no queue {queue_id}")


def matching(result: GetMessageResult, wanted: Filter) -> tuple[Sequence[bytes], int]:
    """Return the matching records and the offset of the next pull. Call from a reader thread."""
    assert wanted.matches is not None
    found: list[bytes] = []
    steps_left = MAX_FILTER_STEPS
    for record in result.records:
        message = decode(record)
        if steps_left <= 0:
            return found, message.queue_offset
        steps_left -= wanted.work(record)
        if wanted.matches(split_properties(message.properties)):
            found.append(record)
    return found, result.next_offset
