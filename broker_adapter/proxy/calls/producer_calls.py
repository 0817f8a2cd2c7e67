"""What producers call: SendMessage, EndTransaction, RecallMessage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker_adapter.api import TopicConfig
from broker_adapter.errors import IllegalMessage, ReadFailed, Status, error_for
from broker_adapter.format.java_hash import java_hash
from broker_adapter.pop.api import DeliveryApi, Resolution
from broker_adapter.proxy.calls.results import joint, status_or_raise
from broker_adapter.proxy.calls.routes import accepts
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.proxy.messages.message_in import Incoming, incoming
from broker_adapter.proxy.messages.names import topic_of
from broker_adapter.proxy.messages.rejected import Code, Rejected, ok, status_of
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls

_ANY_QUEUE = -1
_MAX_HANDLE_LENGTH = 4_096
_MAX_TRANSACTION_ID_LENGTH = 255
#: What is left of a deadline for the way back.
_WAY_BACK_MS = 200

_DELAY, _TRANSACTION = pb.MessageType.DELAY, pb.MessageType.TRANSACTION
_RESOLUTIONS = {
    pb.TransactionResolution.COMMIT: Resolution.COMMIT,
    pb.TransactionResolution.ROLLBACK: Resolution.ROLLBACK,
}


class ProducerCalls:
    """`max_body_bytes`: of one message; `on_sent` is told (client id, topic)."""

    def __init__(
        self,
        delivery: DeliveryApi,
        directory: Directory,
        *,
        max_body_bytes: int,
        max_batch_messages: int,
        on_sent: Callable[[str, str], None],
    ) -> None:
        self._delivery = delivery
        self._directory = directory
        self._max_body_bytes = max_body_bytes
        self._max_batch_messages = max_batch_messages
        self._on_sent = on_sent

    async def send_message(
        self, request: calls.SendMessageRequest, context: CallContext
    ) -> calls.SendMessageResponse:
        messages = request.messages
        if not messages or len(messages) > self._max_batch_messages:
            text = f"{len(messages)} messages in a request; 1 to {self._max_batch_messages} are allowed"
            raise Rejected(Code.BAD_REQUEST, text)
        topics = {topic_of(message.topic, context.namespace) for message in messages}
        if len(topics) > 1:
            raise Rejected(Code.BAD_REQUEST, "the messages of a request are of one topic")
        judged = [incoming(message, self._max_body_bytes) for message in messages]
        topic = topics.pop()
        # Also of a topic that is there: others may still wait for it, and were sent before.
        config = await self._directory.ensure_topic(topic, context.remote)
        for message in judged:
            _check_kind(config, message.kind)
        self._on_sent(context.client_id, topic)
        if len(judged) == 1:
            entries = [await self._send(config, judged[0], context)]
        else:
            entries = await self._send_all(config, judged, context)
        return calls.SendMessageResponse(status=joint([entry.status for entry in entries]), entries=entries)

    async def end_transaction(
        self, request: calls.EndTransactionRequest, context: CallContext
    ) -> calls.EndTransactionResponse:
        topic = topic_of(request.topic, context.namespace)
        transaction_id = request.transaction_id
        if not 0 < len(transaction_id) <= _MAX_TRANSACTION_ID_LENGTH:
            text = f"a transaction id has 1 to {_MAX_TRANSACTION_ID_LENGTH} characters"
            raise Rejected(Code.INVALID_TRANSACTION_ID, text)
        resolution = _RESOLUTIONS.get(request.resolution, Resolution.UNKNOWN)
        try:
            await self._delivery.end_transaction(topic, transaction_id, resolution)
        except ReadFailed as error:
            return calls.EndTransactionResponse(status=status_or_raise(error, Code.INVALID_TRANSACTION_ID))
        return calls.EndTransactionResponse(status=ok())

    async def recall_message(
        self, request: calls.RecallMessageRequest, context: CallContext
    ) -> calls.RecallMessageResponse:
        topic = topic_of(request.topic, context.namespace)
        handle = request.recall_handle
        if not 0 < len(handle) <= _MAX_HANDLE_LENGTH:
            text = f"a recall handle has 1 to {_MAX_HANDLE_LENGTH} characters"
            raise Rejected(Code.BAD_REQUEST, text)
        try:
            message_id = await self._delivery.recall(topic, handle)
        except ReadFailed as error:
            # Not MESSAGE_NOT_FOUND, which some clients take for a success.
            return calls.RecallMessageResponse(status=status_or_raise(error, Code.NOT_FOUND))
        return calls.RecallMessageResponse(status=ok(), message_id=message_id)

    async def _send_all(
        self, config: TopicConfig, messages: Sequence[Incoming], context: CallContext
    ) -> list[calls.SendResultEntry]:
        """At once, but those of one message group one after the other."""
        lanes: dict[object, list[int]] = {}
        for i, message in enumerate(messages):
            lanes.setdefault(message.group or i, []).append(i)
        entries: dict[int, calls.SendResultEntry] = {}

        async def send_lane(lane: Sequence[int]) -> None:
            for i in lane:
                entries[i] = await self._send(config, messages[i], context)

        results = await asyncio.gather(*map(send_lane, lanes.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [entries[i] for i in range(len(messages))]

    async def _send(
        self, config: TopicConfig, message: Incoming, context: CallContext
    ) -> calls.SendResultEntry:
        entry = calls.SendResultEntry(message_id=message.message_id)
        try:
            await self._store(config, message, context, entry)
        except Exception as error:
            return calls.SendResultEntry(status=status_or_raise(error), message_id=message.message_id)
        entry.status.CopyFrom(ok())
        return entry

    async def _store(
        self, config: TopicConfig, message: Incoming, context: CallContext, entry: calls.SendResultEntry
    ) -> None:
        """Fills in where the message is."""
        delivery = self._delivery
        topic, message_id, timeout_ms = config.name, message.message_id, _timeout_ms(context)
        if message.kind == _DELAY:
            try:
                delayed = await delivery.send_delayed(
                    topic,
                    message.message,
                    message_id=message_id,
                    deliver_at_ms=message.deliver_at_ms,
                    born_host=context.remote,
                    timeout_ms=timeout_ms,
                    config=config,
                )
            except IllegalMessage as error:
                raise _of_delivery_time(error) from error
            _refuse_shortfall(delayed.shortfall)
            entry.transaction_id, entry.recall_handle = message_id, delayed.recall_handle
        elif message.kind == _TRANSACTION:
            half = await delivery.send_half(
                topic,
                message.message,
                message_id=message_id,
                client_id=context.client_id,
                check_after_ms=message.check_after_ms,
                born_host=context.remote,
                timeout_ms=timeout_ms,
                config=config,
            )
            _refuse_shortfall(half.shortfall)
            entry.transaction_id = half.transaction_id
        else:
            sent = await delivery.send(
                topic,
                message.message,
                message_id=message_id,
                queue_id=_queue_of(config, message),
                born_host=context.remote,
                timeout_ms=timeout_ms,
                config=config,
            )
            _refuse_shortfall(sent.shortfall)
            # Clients take it that these two are one for messages outside of transactions.
            entry.transaction_id, entry.offset = message_id, sent.queue_offset


def _refuse_shortfall(shortfall: Status | None) -> None:
    """A message that is stored with less than was promised has an error, and no place."""
    if shortfall is not None:
        raise error_for(shortfall, "it is stored on the master")


def _queue_of(config: TopicConfig, message: Incoming) -> int:
    return queue_of(message.group, config.write_queues) if message.group else _ANY_QUEUE


def queue_of(message_group: str, write_queues: int) -> int:
    """The queue of a message group: Java's hash of its name, as for the sharding keys of this broker's own
    producers. The order of a group holds as long as the topic keeps its number of queues."""
    return java_hash(message_group) % write_queues


def _check_kind(config: TopicConfig, kind: pb.MessageType) -> None:
    if not accepts(config, kind):
        text = f"topic {config.name} takes no messages of the type {pb.MessageType.Name(kind)}"
        raise Rejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _of_delivery_time(error: IllegalMessage) -> Exception:
    """What is wrong with a delayed message, and has no code of its own, is its time."""
    status = status_of(error, Code.BAD_REQUEST)
    return Rejected(Code.ILLEGAL_DELIVERY_TIME, status.message) if status.code == Code.BAD_REQUEST else error


def _timeout_ms(context: CallContext) -> int:
    """What the log may take; 0, its own limit, without a deadline."""
    if context.timeout_s is None:
        return 0
    return max(1, int(context.timeout_s * 1000) - _WAY_BACK_MS)
