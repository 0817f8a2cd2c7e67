"""Calls of push and simple consumers: receive, acknowledge, change visibility, dead-letter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import closing
from functools import partial

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.delivery.api import AckStatus, Delivery, DeliveryApi, ReceivedBatch
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.filters.filters import filter_of
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected, ok
from broker_adapter.endpoints.v5.calls.results import joint, status_or_raise
from broker_adapter.endpoints.v5.messages.message_in import duration_ms
from broker_adapter.endpoints.v5.messages.message_out import delivered_message, timestamp
from broker_adapter.errors import ReadFailed
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.loops.turns import LARGE_BYTES, large_turns
from dledger.infra.quotas import client_of

MAX_RECEIVED = 1_024
_MAX_ACKS = 1_024
_MAX_HANDLE_LENGTH = 4_096
_MAX_ATTEMPT_ID_LENGTH = 255
#: The part of a deadline that is reserved for the response, and the minimum reserve (ms).
_WAY_BACK_MS, _LATE_MS = 300, 50


class ConsumerCalls:
    """Handles consumer calls. `now_ms` is cluster time."""

    def __init__(
        self,
        delivery: DeliveryApi,
        directory: Directory,
        settings: ClientServiceSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._delivery = delivery
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms

    async def receive_message(
        self, request: calls.ReceiveMessageRequest, context: CallContext
    ) -> AsyncGenerator[calls.ReceiveMessageResponse, None]:
        """Receive messages from any queue of the topic, regardless of the queue in the request.

        Consumers request one queue at a time, and some always request the same queue.
        """
        group = group_of(request.group, context.namespace)
        topic = topic_of(request.message_queue.topic, context.namespace)
        with closing(await self._receive(group, topic, request, context)) as deliveries:
            if deliveries and context.response_delivery is not None:
                # Drop the records to save memory.
                given = [one._replace(record=b"") for one in deliveries]
                context.response_delivery.then(partial(self._passed_on, group, topic, given))
            if deliveries:
                yield calls.ReceiveMessageResponse(status=ok())
            else:
                nothing = pb.Status(code=Code.MESSAGE_NOT_FOUND, message="no message within the time to wait")
                yield calls.ReceiveMessageResponse(status=nothing)
            now_ms = self._now_ms()
            for delivery in deliveries:
                if len(delivery.record) >= LARGE_BYTES:
                    await large_turns().turn(client_of(context.remote))
                message = delivered_message(delivery, request.message_queue.topic, now_ms)
                yield calls.ReceiveMessageResponse(message=message)
            yield calls.ReceiveMessageResponse(delivery_timestamp=timestamp(now_ms))

    def _passed_on(self, group: str, topic: str, deliveries: Sequence[Delivery], is_passed_on: bool) -> None:
        (self._delivery.passed_on if is_passed_on else self._delivery.give_back)(group, topic, deliveries)

    async def ack_message(
        self, request: calls.AckMessageRequest, context: CallContext
    ) -> calls.AckMessageResponse:
        group, topic = _names(request, context)
        timeout_ms = 0 if context.timeout_s is None else max(1, int(context.timeout_s * 1000) - _LATE_MS)
        results = await self._delivery.ack(group, topic, _handles(request), timeout_ms=timeout_ms)
        return _ack_response(request, results)

    async def change_invisible_duration(
        self, request: calls.ChangeInvisibleDurationRequest, context: CallContext
    ) -> calls.ChangeInvisibleDurationResponse:
        group, topic = _names(request, context)
        handle = _handle(request.receipt_handle)
        settings = self._settings
        wanted_ms = duration_ms(request.invisible_duration)
        if not 0 <= wanted_ms <= settings.max_invisible_ms:
            text = f"{wanted_ms} ms is not within 0 to {settings.max_invisible_ms}"
            raise Rejected(Code.ILLEGAL_INVISIBLE_TIME, text)
        invisible_ms = max(wanted_ms, settings.min_retry_ms, 1)
        try:
            renewed = await self._delivery.change_invisible(group, topic, handle, invisible_ms)
        except ReadFailed as error:
            # Clients adopt the handle in a response, so an error response contains the old one.
            return calls.ChangeInvisibleDurationResponse(
                status=status_or_raise(error, Code.INVALID_RECEIPT_HANDLE), receipt_handle=handle
            )
        return calls.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=renewed)

    async def forward_message_to_dead_letter_queue(
        self, request: calls.ForwardMessageToDeadLetterQueueRequest, context: CallContext
    ) -> calls.ForwardMessageToDeadLetterQueueResponse:
        group, topic = _names(request, context)
        status = ok()
        try:
            await self._delivery.dead_letter(group, topic, _handle(request.receipt_handle))
        except ReadFailed as error:
            status = status_or_raise(error, Code.INVALID_RECEIPT_HANDLE)
        return calls.ForwardMessageToDeadLetterQueueResponse(status=status)

    async def _receive(
        self, group: str, topic: str, request: calls.ReceiveMessageRequest, context: CallContext
    ) -> ReceivedBatch:
        if len(request.attempt_id) > _MAX_ATTEMPT_ID_LENGTH:
            raise Rejected(
                Code.BAD_REQUEST, f"the attempt id is too long: {len(request.attempt_id)} characters"
            )
        if request.batch_size < 1:
            raise Rejected(Code.BAD_REQUEST, f"batch size {request.batch_size} is less than 1")
        wait_ms = self._wait_ms(duration_ms(request.long_polling_timeout), context)
        receive = partial(
            self._delivery.receive,
            group,
            topic,
            client_id=context.holder,
            wanted=filter_of(request.filter_expression),
            max_messages=min(request.batch_size, MAX_RECEIVED),
            invisible_ms=self._invisible_ms(request),
            attempt_id=request.attempt_id,
            remote=context.remote,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        if self._directory.topic_or_default(topic) != self._directory.topic(topic):
            # No send has created the topic yet, so it counts as empty.
            if not await self._directory.topic_comes(topic, wait_ms / 1000):
                return ReceivedBatch()
            wait_ms = max(0, int((deadline - loop.time()) * 1000))
        return await receive(wait_ms=wait_ms)

    def _invisible_ms(self, request: calls.ReceiveMessageRequest) -> int:
        """Return the invisible time.

        Return 0 for push consumers, because the server renews their messages.
        """
        if request.auto_renew:
            return 0
        settings, wanted = self._settings, duration_ms(request.invisible_duration)
        if not settings.min_invisible_ms <= wanted <= settings.max_invisible_ms:
            least, most = settings.min_invisible_ms, settings.max_invisible_ms
            raise Rejected(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible duration {wanted} ms is not between {least} and {most}",
            )
        return wanted

    def _wait_ms(self, wanted: int, context: CallContext) -> int:
        if wanted < 0:
            raise Rejected(Code.ILLEGAL_POLLING_TIME, f"long polling timeout {wanted} ms is negative")
        settings = self._settings
        wait_ms = min(max(wanted, settings.min_polling_ms), settings.max_polling_ms)
        if context.timeout_s is not None:
            wait_ms = min(wait_ms, int(context.timeout_s * 1000) - _WAY_BACK_MS)
        return max(0, wait_ms)


def _names(
    request: calls.AckMessageRequest
    | calls.ChangeInvisibleDurationRequest
    | calls.ForwardMessageToDeadLetterQueueRequest,
    context: CallContext,
) -> tuple[str, str]:
    return group_of(request.group, context.namespace), topic_of(request.topic, context.namespace)


def _handle(text: str) -> str:
    if not 0 < len(text) <= _MAX_HANDLE_LENGTH:
        text = f"a receipt handle must have 1 to {_MAX_HANDLE_LENGTH} characters"
        raise Rejected(Code.INVALID_RECEIPT_HANDLE, text)
    return text


def _ack_status(result: AckStatus) -> pb.Status:
    if result is AckStatus.OK:
        return ok()
    return pb.Status(code=Code.INVALID_RECEIPT_HANDLE, message="the handle is invalid or expired")


def _handles(request: calls.AckMessageRequest) -> list[str]:
    """Return the handles of a request. Raises Rejected (BAD_REQUEST)."""
    if not 0 < (count := len(request.entries)) <= _MAX_ACKS:
        raise Rejected(Code.BAD_REQUEST, f"the request has {count} entries; 1 to {_MAX_ACKS} are allowed")
    handles = [entry.receipt_handle for entry in request.entries]
    # A text that is too long cannot be a handle and is not parsed.
    return [handle if len(handle) <= _MAX_HANDLE_LENGTH else "" for handle in handles]


def _ack_response(request: calls.AckMessageRequest, results: Sequence[AckStatus]) -> calls.AckMessageResponse:
    entries = [
        calls.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=_ack_status(result)
        )
        for entry, result in zip(request.entries, results, strict=True)
    ]
    return calls.AckMessageResponse(status=joint([entry.status for entry in entries]), entries=entries)
