"""Processor for SEND_MESSAGE in all its forms."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from broker_adapter.api import DEFAULT_TOPIC, BrokerApi, DefaultTopic, OutgoingMessage, TopicConfig
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.lists.send_list import LookUp
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.replies import REPLY_TO_CLIENT
from broker_adapter.endpoints.v4.request import RemotingRequest, client_transaction_id
from broker_adapter.endpoints.v4.retries import Retries
from broker_adapter.errors import BrokerError, IllegalMessage, ResponseCode, Status, error_for
from broker_adapter.put.sender import PutResult, Send, SendApi, SubmittedSend
from broker_adapter.remoting.codes import DUPLICATE_FILTER, RequestCode
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.wire.delay_levels import (
    AFTER_MS,
    AFTER_S,
    AT_MS,
    DELAY_LEVEL,
    DELAYS,
    TIMES,
    fitting_level,
    level_ms,
)
from broker_adapter.wire.host import Host
from broker_adapter.wire.message_id import format_offset_id
from broker_adapter.wire.properties import (
    RECONSUME_TIME,
    UNIQ_KEY,
    PropertiesText,
    replaced,
    split_properties,
    text_of,
)
from broker_adapter.wire.sys_flag import (
    COMPRESSED,
    COMPRESSION_MASK,
    MULTI_TAGS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

#: The flags that a producer may set. Only the broker sets host and transaction bits.
_SYS_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_MAX_ID_LENGTH = 255
#: Maximum number of messages in a batch whose response contains their ids, and in any batch. With the entry
#: that records its id, a batch must also fit into one batch of the log (`limits.max_batch_entries`).
_MAX_NAMED, _MAX_BATCH = 4_096, 16_000
_PREPARED = "TRAN_MSG"
_SECOND = 1_000
_MAX_DIGITS = 15
_CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_CLUSTER = "CLUSTER"
_ITEM = struct.Struct(">iiiii")  # total, magic, crc, flag, size of the body
_SHORT = struct.Struct(">h")


class SendRules(NamedTuple):
    """The limits of sends, and the names in their responses.

    `store_host` returns the host:port that becomes part of the ids of messages stored by this node.
    `max_body_bytes`: limit per message. `duplicate_filter`: see DUPLICATE_FILTER, or "" if repeated sends are
    stored again.
    """

    store_host: Callable[[], Host]
    max_body_bytes: int
    node_id: str
    cluster: str
    duplicate_filter: str = ""


class SendTopics(Protocol):
    """The topics of the master."""

    def existing(self, topic: str) -> TopicConfig | None:
        """Return the topic, or None if a send to it must wait for `ensure`. Raises NotMaster."""

    async def make(self, topic: str) -> TopicConfig:
        """Create one of the broker's own topics if it does not exist."""

    async def ensure(self, topic: str, remote: str, like: DefaultTopic) -> TopicConfig:
        """Return the topic. If it is missing, create it for the client at host:port, if the settings permit
        it."""


class PlainSend(NamedTuple):
    """A send that is stored as it is: without delay or transaction. `request`: the request to answer."""

    request: RemotingRequest
    send: Send


class SubmittedPlainSend(NamedTuple):
    """A plain send that was submitted. Implements StartedCall."""

    processor: SendProcessor
    plain: PlainSend
    submitted: SubmittedSend

    @property
    def done(self) -> asyncio.Future[Any]:
        return self.submitted.done

    def response(self) -> bytes | LookUp:
        sent = self.submitted.result()
        answer = self.processor.answer(self.plain, sent)
        return partial(self._look_up, sent) if answer is None else encode(answer)

    async def _look_up(self, sent: PutResult) -> bytes:
        return encode(await self.processor.look_up(self.plain, sent))


class SendProcessor:
    """Handles sends on the master. Implements SendStarter."""

    def __init__(
        self,
        broker: BrokerApi,
        sends: SendApi,
        delivery: DeliveryApi,
        retries: Retries,
        topics: SendTopics,
        rules: SendRules,
    ) -> None:
        self._topics = topics
        self._sends = sends
        self._retries = retries
        self._broker = broker
        self._delivery = delivery
        self._rules = rules

    async def send(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Process a send of any kind."""
        found = request.fields
        topic = read.text(found, "topic")
        if _is_batch(request, found):
            if problem := _batch_problem(found, topic):
                raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)
            config = await self._topics.ensure(topic, context.remote, default_topic(found))
            return await self._store(PlainSend(request, self._batch(config, request, found, context)))
        message, queue_id = self._message(request, found), read.number(found, "queueId", -1)
        default = default_topic(found)
        if topic.startswith(RETRY_PREFIX):
            topic, message, queue_id = await self._retries.retried(topic, message, queue_id, found, context)
            default = DefaultTopic()
        config = await self._topics.ensure(topic, context.remote, default)
        send = _single(config, message, queue_id, context)
        if _is_half(message, found, topic):
            half = await self._store_half(send, context)
            return half.to_command(request, self._rules.duplicate_filter)
        if (delay := self._delay(message)) is not None:
            delayed = await self._store_delayed(send, delay)
            return delayed.to_command(request, self._rules.duplicate_filter)
        return await self._store(PlainSend(request, send))

    def start(self, request: RemotingRequest, context: CallContext) -> SubmittedPlainSend | None:
        """Submit a send that waits for nothing but its append. For another one, return None and do nothing:
        use `send`.

        Raises the error of a send that is rejected.
        """
        found = request.fields
        topic = read.text(found, "topic")
        config = None if _is_sent_back(topic) else self._topics.existing(topic)
        if config is None:
            return None
        if _is_batch(request, found):
            if problem := _batch_problem(found, topic):
                raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)
            send = self._batch(config, request, found, context)
        else:
            message = self._message(request, found)
            if _is_half(message, found, topic) or self._delay(message) is not None:
                return None
            send = _single(config, message, read.number(found, "queueId", -1), context)
        started = self._sends.start(send)
        if isinstance(started, BrokerError):
            raise started
        if not isinstance(started, SubmittedSend):
            return None  # a duplicate
        return SubmittedPlainSend(self, PlainSend(request, send), started)

    def answer(self, plain: PlainSend, sent: PutResult) -> RemotingCommand | None:
        """Return the response to a stored send, or None if `look_up` must find out its physical offsets."""
        places = sent.physical_offsets if plain.send.is_batch else (sent.physical_offset,)
        return self._answer(plain, sent, places) if places and places[0] >= 0 else None

    async def look_up(self, plain: PlainSend, sent: PutResult) -> RemotingCommand:
        """Return the response to a stored send whose physical offsets are unknown."""
        topic, count = plain.send.config.name, min(len(plain.send.messages), _MAX_NAMED)
        places = await self._physical_offsets(topic, sent.queue_id, sent.queue_offset, count)
        return self._answer(plain, sent, places if places or plain.send.is_batch else [0])

    def _answer(self, plain: PlainSend, sent: PutResult, places: Sequence[int]) -> RemotingCommand:
        response = SendResponse(
            ",".join(map(self._offset_id, places[:_MAX_NAMED])),
            sent.queue_id,
            sent.queue_offset,
            "" if plain.send.is_batch else plain.send.message_id,
            entry=self._entry(sent.term, sent.log_index),
            put_status=sent.put_status,
            is_duplicate=sent.is_repeated,
        )
        return response.to_command(plain.request, self._rules.duplicate_filter)

    async def _store(self, plain: PlainSend) -> RemotingCommand:
        sent = await self._sends.send_one(plain.send)
        return self.answer(plain, sent) or await self.look_up(plain, sent)

    async def _store_half(self, send: Send, context: CallContext) -> SendResponse:
        topic, (message,) = send.config.name, send.messages
        half = await self._delivery.send_half(
            topic,
            message,
            message_id=send.message_id,
            client_id=context.client_id,
            check_after_ms=seconds_ms(message.properties.get(_CHECK_IMMUNITY_S)),
            queue_id=send.queue_id,
            born_host=context.remote,
            config=send.config,
        )
        return SendResponse(
            self._offset_id(half.physical_offset),
            max(0, send.queue_id),
            half.queue_offset,
            client_transaction_id(half.transaction_id, topic),
            put_status=half.put_status,
            is_duplicate=half.is_repeated,
        )

    async def _store_delayed(self, send: Send, delay: Delay) -> SendResponse:
        (message,) = send.messages
        if delay.level and not TIMES.isdisjoint(message.properties):
            properties = PropertiesText(replaced(text_of(message.properties), {}, without=TIMES))
            message = message._replace(properties=properties)
        delayed = await self._delivery.send_delayed(
            send.config.name,
            message,
            message_id=send.message_id,
            deliver_at_ms=delay.at_ms,
            level=delay.level,
            queue_id=send.queue_id,
            born_host=send.born_host,
            config=send.config,
        )
        return SendResponse(
            self._offset_id(0),
            max(0, send.queue_id),
            0,
            send.message_id,
            delayed.recall_handle,
            put_status=delayed.put_status,
            is_duplicate=delayed.is_repeated,
        )

    def _delay(self, message: OutgoingMessage) -> Delay | None:
        """Return the delay of a message. One that is due already is stored like any other, in order."""
        if DELAYS.isdisjoint(message.properties):
            return None
        return delay_of(message.properties, self._delivery.now_ms())

    def _message(self, request: RemotingRequest, found: Mapping[str, str]) -> OutgoingMessage:
        # the consumer that replies needs the property
        if f"{REPLY_TO_CLIENT}\x01" in found.get("properties", ""):
            found = {**found, "properties": _and(found["properties"], _CLUSTER, self._rules.cluster)}
        return outgoing(found, request.command.body, self._rules.max_body_bytes)

    def _batch(
        self, config: TopicConfig, request: RemotingRequest, found: Mapping[str, str], context: CallContext
    ) -> Send:
        messages = batch_of(found, request.command.body, self._rules.max_body_bytes)
        queue_id = max(-1, read.number(found, "queueId", -1))
        return Send(config, messages, _batch_id(found, messages), queue_id, context.remote, is_batch=True)

    async def _physical_offsets(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[int]:
        """Return the physical offsets of consecutive earlier messages, up to the first message that can no
        longer be read.
        """
        found: list[int] = []
        if queue_id >= 0:
            # Waits for the ConsumeQueue, which has the physical offsets: a repeated send may arrive earlier.
            await self._broker.queue_stats(topic, queue_id)
        while queue_id >= 0 and len(found) < count:
            at = queue_offset + len(found)
            records = await self._broker.read(topic, queue_id, at, max_messages=count - len(found))
            if not records:
                break
            found += [PHYSICAL_OFFSET.unpack_from(record, 28)[0] for record in records]
        return found

    def _entry(self, term: int, index: int) -> Mapping[str, str]:
        """Return the fields that contain the log entry.

        A duplicate has none, because only its queue position is remembered.
        """
        if index < 0:
            return {}
        return {"nodeId": self._rules.node_id, "term": str(term), "logIndex": str(index)}

    def _offset_id(self, physical_offset: int) -> str:
        return format_offset_id(self._rules.store_host(), physical_offset)


class Delay(NamedTuple):
    """A delay. `at_ms`: delivery time in cluster time, ms since 1970.

    `level`: RocketMQ's delay level, or 0 if the delay is given as a time.
    """

    at_ms: int
    level: int = 0


def delay_of(properties: Mapping[str, str], now_ms: int) -> Delay | None:
    """Return the delay that the properties request, or None for immediate delivery.

    If the time is not after the current cluster time (`now_ms`), the message is also delivered immediately. A
    level overrides all times (RocketMQ's HookUtils.handleScheduleMessage). Raises IllegalMessage
    (FIELD_OUT_OF_RANGE) for an invalid number.
    """
    text = properties.get(DELAY_LEVEL)
    if text is not None and (level := fitting_level(_number(DELAY_LEVEL, text))):
        return Delay(now_ms + level_ms(level), level)
    at_ms = _time_of(properties, now_ms)
    return None if at_ms is None or at_ms <= now_ms else Delay(at_ms)


def _time_of(properties: Mapping[str, str], now_ms: int) -> int | None:
    if (after := properties.get(AFTER_S)) is not None:
        return now_ms + _number(AFTER_S, after) * _SECOND
    if (after := properties.get(AFTER_MS)) is not None:
        return now_ms + _number(AFTER_MS, after)
    found = ((name, properties[name]) for name in AT_MS if name in properties)
    return next((_number(name, at) for name, at in found), None)


def seconds_ms(text: str | None) -> int:
    """Convert seconds in a text into milliseconds. Return 0 if the text is not a number."""
    return int(text) * _SECOND if text and text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"property {name} {text[:32]!r} is not a number")
    return int(text)


PHYSICAL_OFFSET = struct.Struct(">q")


class SendResponse(NamedTuple):
    """The result for a producer.

    `msg_id`: RocketMQ's offsetMsgId; for a batch, several ids separated by commas. `entry`: the storing node
    and the log position, in fields that RocketMQ's clients ignore.
    """

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    entry: Mapping[str, str] = MappingProxyType({})
    put_status: Status | None = None
    is_duplicate: bool = False

    def to_command(self, request: RemotingRequest, duplicate_filter: str) -> RemotingCommand:
        """Build the response.

        It contains the position and ids even if the message is less durable than promised.
        """
        fields = self.fields(duplicate_filter)
        if self.put_status is None:
            return request.command.answer(ResponseCode.SUCCESS, fields=fields)
        error = error_for(self.put_status, "the message is stored here")
        return request.command.answer(error.response_code, str(error), fields=fields)

    def fields(self, duplicate_filter: str) -> dict[str, str]:
        found = {
            "msgId": self.msg_id,
            "queueId": str(max(0, self.queue_id)),
            "queueOffset": str(max(0, self.queue_offset)),
            "transactionId": self.transaction_id,
            "recallHandle": self.recall_handle,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "duplicate": "true" if self.is_duplicate else "",
            DUPLICATE_FILTER: duplicate_filter,
            **self.entry,
        }
        return {name: value for name, value in found.items() if value}


def _is_batch(request: RemotingRequest, found: Mapping[str, str]) -> bool:
    return request.command.code == RequestCode.SEND_BATCH_MESSAGE or read.flag(found, "batch")


def _is_sent_back(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _is_half(message: OutgoingMessage, found: Mapping[str, str], topic: str) -> bool:
    is_prepared = read.number(found, "sysFlag", 0) & TRANSACTION_PREPARED
    return not _is_sent_back(topic) and bool(is_prepared or message.properties.get(_PREPARED) == "true")


def _single(config: TopicConfig, message: OutgoingMessage, queue_id: int, context: CallContext) -> Send:
    message_id = message.properties.get(UNIQ_KEY, "")
    if len(message_id) > _MAX_ID_LENGTH or _is_sent_back(config.name):
        message_id = ""  # a message has the same id each time it is sent back
    return Send(config, [message], message_id, max(-1, queue_id), context.remote)


def default_topic(found: Mapping[str, str]) -> DefaultTopic:
    """Return the template that the producer requests for the creation of its topic."""
    name = found.get("defaultTopic") or DEFAULT_TOPIC
    return DefaultTopic(name, max(0, read.number(found, "defaultTopicQueueNums", 0)))


def outgoing(found: Mapping[str, str], body: bytes, max_body_bytes: int) -> OutgoingMessage:
    """Build a message from the fields of its request. Raises IllegalMessage."""
    if len(body) > max_body_bytes:
        text = f"the body has {len(body)} bytes, more than {max_body_bytes}"
        raise IllegalMessage(Status.BODY_TOO_LARGE, text)
    properties = found.get("properties") or ""
    if _is_sent_back(found.get("topic", "")) and (times := read.number(found, "reconsumeTimes", 0)) > 0:
        properties = replaced(properties, {RECONSUME_TIME: str(times)})
    return OutgoingMessage(
        body,
        PropertiesText(properties),
        flag=read.small_number(found, "flag", 0),
        sys_flag=read.small_number(found, "sysFlag", 0) & _SYS_FLAGS,
        born_timestamp=max(0, read.number(found, "bornTimestamp", 0)),
        producer_group=found.get("producerGroup", ""),
    )


def _batch_problem(found: Mapping[str, str], topic: str) -> str:
    """Return the reason why the header is invalid for a batch, or "" if it is valid.

    The rules are RocketMQ's.
    """
    if topic.startswith(RETRY_PREFIX):
        return "a retry topic does not accept batches"
    if read.number(found, "sysFlag", 0) & TRANSACTION_MASK:
        return "a batch cannot be part of a transaction"
    level = split_properties(found.get("properties") or "").get(DELAY_LEVEL, "")
    return "a batch cannot be delayed" if level.isdecimal() and int(level) > 0 else ""


def _batch_id(found: Mapping[str, str], messages: Sequence[OutgoingMessage]) -> str:
    """Return the id in the header.

    Java clients of version 4.9 send no id; it is then derived from the ids of the messages.
    """
    own = split_properties(found.get("properties") or "").get(UNIQ_KEY, "")
    if own:
        return own if len(own) <= _MAX_ID_LENGTH else ""
    ids = [message.properties.get(UNIQ_KEY, "") for message in messages]
    return ",".join(ids) if all(ids) else ""


def _and(properties: str, name: str, value: str) -> str:
    if properties and not properties.endswith("\x02"):
        properties += "\x02"
    return f"{properties}{name}\x01{value}\x02"


def batch_of(found: Mapping[str, str], body: bytes, max_body_bytes: int) -> list[OutgoingMessage]:
    """Parse the messages of a batch. Each consists of size, magic, crc, flag, body and properties.

    Raises IllegalMessage.
    """
    messages: list[OutgoingMessage] = []
    born = max(0, read.number(found, "bornTimestamp", 0))
    sys_flag = read.number(found, "sysFlag", 0) & _SYS_FLAGS
    group = found.get("producerGroup", "")
    item, short, fixed = _ITEM.unpack_from, _SHORT.unpack_from, _ITEM.size + _SHORT.size
    at, total = 0, len(body)
    while at < total:
        try:
            size, _, _, flag, body_size = item(body, at)
            body_at = at + _ITEM.size
            (properties_size,) = short(body, body_at + body_size)
            body_end, end = body_at + body_size, at + size
            fits = body_size >= 0 <= properties_size and fixed + body_size + properties_size == size
            if not fits or end > total:
                raise ValueError(f"message {len(messages)} of the batch has inconsistent lengths")
            properties = body[body_end + _SHORT.size : end].decode()
        except (struct.error, ValueError) as error:
            raise IllegalMessage(Status.REQUEST_MALFORMED, f"invalid batch: {error}") from None
        if body_size > max_body_bytes:
            text = f"body {len(messages)} has {body_size} bytes, more than {max_body_bytes}"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        messages.append(
            OutgoingMessage(body[body_at:body_end], PropertiesText(properties), flag, sys_flag, born, group)
        )
        if len(messages) > _MAX_BATCH:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the batch has more than {_MAX_BATCH} messages")
        at = end
    if not messages:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "a batch needs at least one message")
    return messages
