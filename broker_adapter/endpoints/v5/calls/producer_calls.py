"""Calls of producers: SendMessage, EndTransaction, RecallMessage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.lists.send_list import StartedCall
from broker_adapter.endpoints.names import topic_of
from broker_adapter.endpoints.rejected import Code, Rejected, ok, status_of
from broker_adapter.endpoints.v5.calls.results import joint, status_or_raise
from broker_adapter.endpoints.v5.calls.routes import accepts
from broker_adapter.endpoints.v5.messages.message_in import Incoming, incoming
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, IllegalMessage, ReadFailed, Status, error_for
from broker_adapter.put.sender import PutResult, Send, SendApi, SubmittedSend
from broker_adapter.scheduled.deferring import Resolution
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.java_hash import java_hash

_ANY_QUEUE = -1
#: The text of the OK status for a message that was stored earlier.
_DUPLICATE = "OK, duplicate=true"
_MAX_HANDLE_LENGTH = 4_096
_MAX_TRANSACTION_ID_LENGTH = 255
#: The part of a deadline that is reserved for the response (ms).
_WAY_BACK_MS = 200

_DELAY, _TRANSACTION = pb.MessageType.DELAY, pb.MessageType.TRANSACTION
_DEFERRED = frozenset({_DELAY, _TRANSACTION})
_RESOLUTIONS = {
    pb.TransactionResolution.COMMIT: Resolution.COMMIT,
    pb.TransactionResolution.ROLLBACK: Resolution.ROLLBACK,
}


class ProducerCalls:
    """Handles producer calls. Implements SendStarter.

    `max_body_bytes`: limit per message. `on_sent` is called with (client id, topic) for each send.
    """

    def __init__(
        self,
        sends: SendApi,
        delivery: DeliveryApi,
        directory: Directory,
        *,
        max_body_bytes: int,
        max_batch_messages: int,
        on_sent: Callable[[str, str], None],
    ) -> None:
        self._sends = sends
        self._delivery = delivery
        self._directory = directory
        self._max_body_bytes = max_body_bytes
        self._max_batch_messages = max_batch_messages
        self._on_sent = on_sent

    async def send_message(
        self, request: calls.SendMessageRequest, context: CallContext
    ) -> calls.SendMessageResponse:
        topic, judged = self._checked(request, context)
        # Wait even if the topic exists, because earlier sends may still be waiting for its creation.
        config = await self._directory.ensure_topic(topic, context.remote)
        for message in judged:
            _check_kind(config, message.kind)
        self._on_sent(context.client_id, topic)
        if len(judged) == 1:
            entries = await self._send_together(config, judged, context, {})
        else:
            entries = await self._send_in_order(config, judged, context)
        return _response(entries)

    def start(self, request: Request, context: CallContext) -> StartedCall | None:
        send = request.parsed()
        assert isinstance(send, calls.SendMessageRequest)
        topic, judged = self._checked(send, context)
        if len(judged) > 1 or judged[0].kind in _DEFERRED:
            return None
        if (config := self._directory.existing_topic(topic)) is None:
            return None
        (message,) = judged
        _check_kind(config, message.kind)
        self._on_sent(context.client_id, topic)
        started = self._sends.start(_send_of(config, message, context))
        if isinstance(started, SubmittedSend):
            return _StartedMessage(message, started.done, started.result)
        if isinstance(started, BrokerError):
            refused: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
            refused.set_exception(started)
            refused.exception()  # mark the exception as retrieved
            return _StartedMessage(message, refused, refused.result)
        return None  # a duplicate

    def _checked(self, request: calls.SendMessageRequest, context: CallContext) -> tuple[str, list[Incoming]]:
        """Return topic and messages of a request. Raises Rejected."""
        messages = request.messages
        if not messages or len(messages) > self._max_batch_messages:
            text = f"{len(messages)} messages in a request; the range is 1 to {self._max_batch_messages}"
            raise Rejected(Code.BAD_REQUEST, text)
        topics = {topic_of(message.topic, context.namespace) for message in messages}
        if len(topics) > 1:
            raise Rejected(Code.BAD_REQUEST, "all messages of a request must have the same topic")
        return topics.pop(), [incoming(message, self._max_body_bytes) for message in messages]

    async def end_transaction(
        self, request: calls.EndTransactionRequest, context: CallContext
    ) -> calls.EndTransactionResponse:
        topic = topic_of(request.topic, context.namespace)
        transaction_id = request.transaction_id
        if not 0 < len(transaction_id) <= _MAX_TRANSACTION_ID_LENGTH:
            text = f"a transaction id must have 1 to {_MAX_TRANSACTION_ID_LENGTH} characters"
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
            text = f"a recall handle must have 1 to {_MAX_HANDLE_LENGTH} characters"
            raise Rejected(Code.BAD_REQUEST, text)
        try:
            message_id = await self._delivery.recall(topic, handle)
        except ReadFailed as error:
            # Not MESSAGE_NOT_FOUND, which some clients treat as success.
            return calls.RecallMessageResponse(status=status_or_raise(error, Code.NOT_FOUND))
        return calls.RecallMessageResponse(status=ok(), message_id=message_id)

    async def _send_in_order(
        self, config: TopicConfig, messages: Sequence[Incoming], context: CallContext
    ) -> list[calls.SendResultEntry]:
        """Send messages concurrently, but in order within a message group.

        After a rejected message, no further messages of its group are sent. Otherwise, when the client sends
        this message again, it would be stored after the later ones.
        """
        lanes: dict[object, list[int]] = {}
        for i, message in enumerate(messages):
            lanes.setdefault(message.group or i, []).append(i)
        entries: dict[int, calls.SendResultEntry] = {}
        refused: dict[str, BrokerError] = {}  # by message group
        for wave in zip_longest(*lanes.values()):
            numbers = [i for i in wave if i is not None]
            for i in numbers:
                if (error := refused.get(messages[i].group)) is not None:
                    entries[i] = _behind(messages[i], error)
            numbers = [i for i in numbers if i not in entries]
            found = await self._send_together(config, [messages[i] for i in numbers], context, refused)
            entries.update(zip(numbers, found, strict=True))
        return [entries[i] for i in range(len(messages))]

    async def _send_together(
        self,
        config: TopicConfig,
        messages: Sequence[Incoming],
        context: CallContext,
        refused: dict[str, BrokerError],
    ) -> list[calls.SendResultEntry]:
        """Send messages, at most one per message group. Adds the groups of rejected messages to `refused`."""
        plain = [message for message in messages if message.kind not in _DEFERRED]
        sends = [_send_of(config, message, context) for message in plain]
        others = [message for message in messages if message.kind in _DEFERRED]
        if not others:
            sent = await self._sends.send(sends)
            refused |= _refused(plain, sent)
            return [_settled(one, _entry_of(one, found)) for one, found in zip(messages, sent, strict=True)]
        deferring = asyncio.gather(*(self._defer(config, message, context) for message in others))
        sent, deferred = await asyncio.gather(self._sends.send(sends), deferring)
        refused |= _refused(plain, sent)
        by_id = dict(zip(map(id, plain), map(_entry_of, plain, sent), strict=True))
        by_id.update(zip(map(id, others), deferred, strict=True))
        return [_settled(message, by_id[id(message)]) for message in messages]

    async def _defer(
        self, config: TopicConfig, message: Incoming, context: CallContext
    ) -> calls.SendResultEntry | Exception:
        """Store a message that waits for its delivery time or for the end of its transaction."""
        delivery = self._delivery
        topic, message_id, timeout_ms = config.name, message.message_id, _timeout_ms(context)
        entry = calls.SendResultEntry(status=ok(), message_id=message_id)
        try:
            if message.kind == _DELAY:
                delayed = await delivery.send_delayed(
                    topic,
                    message.message,
                    message_id=message_id,
                    deliver_at_ms=message.deliver_at_ms,
                    born_host=context.remote,
                    timeout_ms=timeout_ms,
                    config=config,
                )
                _check_put_status(delayed.put_status)
                entry.transaction_id, entry.recall_handle = message_id, delayed.recall_handle
                is_duplicate = delayed.is_repeated
            else:
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
                _check_put_status(half.put_status)
                entry.transaction_id = half.transaction_id
                is_duplicate = half.is_repeated
        except IllegalMessage as error:
            return _of_delivery_time(error) if message.kind == _DELAY else error
        except Exception as error:
            return error
        if is_duplicate:
            entry.status.message = _DUPLICATE
        return entry


class _StartedMessage(NamedTuple):
    """A message that was submitted, or whose error is known. Implements StartedCall."""

    message: Incoming
    done: asyncio.Future[Any]
    result: Callable[[], PutResult]

    def response(self) -> bytes:
        sent: PutResult | BrokerError
        try:
            sent = self.result()
        except BrokerError as error:
            sent = error
        entry = _settled(self.message, _entry_of(self.message, sent))
        return _response([entry]).SerializeToString()


def _response(entries: Sequence[calls.SendResultEntry]) -> calls.SendMessageResponse:
    return calls.SendMessageResponse(status=joint([entry.status for entry in entries]), entries=entries)


def _send_of(config: TopicConfig, message: Incoming, context: CallContext) -> Send:
    return Send(
        config,
        [message.message],
        message.message_id,
        _queue_of(config, message),
        context.remote,
        _timeout_ms(context),
    )


def _refused(messages: Sequence[Incoming], sent: Sequence[PutResult | BrokerError]) -> dict[str, BrokerError]:
    """Return the errors of rejected messages by message group."""
    return {
        message.group: found
        for message, found in zip(messages, sent, strict=True)
        if message.group and isinstance(found, BrokerError)
    }


def _behind(message: Incoming, error: BrokerError) -> calls.SendResultEntry:
    """Return the entry for a message that was not sent because an earlier message of its group failed."""
    status = status_or_raise(error)
    status.message = f"not stored, because an earlier message of its message group was not: {status.message}"
    return calls.SendResultEntry(status=status, message_id=message.message_id)


def _entry_of(message: Incoming, sent: PutResult | BrokerError) -> calls.SendResultEntry | Exception:
    if isinstance(sent, BrokerError):
        return sent
    if sent.put_status is not None:
        return _put_status_error(sent.put_status)
    entry = calls.SendResultEntry(status=ok(), message_id=message.message_id)
    # Without a transaction, clients expect both ids to be equal.
    entry.transaction_id, entry.offset = message.message_id, sent.queue_offset
    if sent.is_repeated:
        entry.status.message = _DUPLICATE
    return entry


def _settled(message: Incoming, entry: calls.SendResultEntry | Exception) -> calls.SendResultEntry:
    """Return the result entry. Raises errors that concern the whole request."""
    if isinstance(entry, Exception):
        return calls.SendResultEntry(status=status_or_raise(entry), message_id=message.message_id)
    return entry


def _put_status_error(put_status: Status) -> BrokerError:
    """Return the error for a message that was stored with less durability than promised.

    Its response contains no position.
    """
    return error_for(put_status, "the message is stored on the master")


def _check_put_status(put_status: Status | None) -> None:
    if put_status is not None:
        raise _put_status_error(put_status)


def _queue_of(config: TopicConfig, message: Incoming) -> int:
    return queue_of(message.group, config.write_queues) if message.group else _ANY_QUEUE


def queue_of(message_group: str, write_queues: int) -> int:
    """Return the queue of a message group. Like the selector for sharding keys, uses Java's hash of the name.

    A group remains in order while the number of queues of the topic does not change.
    """
    return java_hash(message_group) % write_queues


def _check_kind(config: TopicConfig, kind: pb.MessageType) -> None:
    if not accepts(config, kind):
        text = f"topic {config.name} does not accept messages of the type {pb.MessageType.Name(kind)}"
        raise Rejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _of_delivery_time(error: IllegalMessage) -> Exception:
    """Map an error of a delayed message to ILLEGAL_DELIVERY_TIME, unless it has a more specific code."""
    status = status_of(error, Code.BAD_REQUEST)
    return Rejected(Code.ILLEGAL_DELIVERY_TIME, status.message) if status.code == Code.BAD_REQUEST else error


def _timeout_ms(context: CallContext) -> int:
    """Return the timeout of the append, or 0 if the call has no deadline and the default timeout applies."""
    if context.timeout_s is None:
        return 0
    return max(1, int(context.timeout_s * 1000) - _WAY_BACK_MS)
