"""SEND_MESSAGE in its forms: what a producer sends, as the put pipeline takes it."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_adapter.api import BrokerApi, OutgoingMessage
from broker_adapter.errors import IllegalMessage, ResponseCode, Status, error_for
from broker_adapter.format.host import Host
from broker_adapter.format.message_id import format_offset_id
from broker_adapter.format.properties import UNIQ_KEY, PropertiesText
from broker_adapter.format.sys_flag import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS, TRANSACTION_PREPARED
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.pop.api import DeliveryApi
from broker_adapter.processor import fields as read
from broker_adapter.processor.delays import delay_of, seconds_ms
from broker_adapter.processor.replies import REPLY_TO_CLIENT
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.transactions import told_id
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

#: What a producer may say of its message; hosts and transactions are the broker's own.
_SYS_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_MAX_ID_LENGTH = 255
_MAX_BATCH = 1_024
_PREPARED = "TRAN_MSG"
_CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_CLUSTER = "CLUSTER"
RECONSUME_TIME = "RECONSUME_TIME"
_ITEM = struct.Struct(">iiiii")  # total, magic, crc, flag, size of the body
_SHORT = struct.Struct(">h")


class SendProcessor:
    """On the master. `store_host` is in the ids of messages that this node stores."""

    def __init__(
        self,
        broker: BrokerApi,
        delivery: DeliveryApi,
        store_host: Host,
        max_body_bytes: int,
        node_id: str,
        cluster: str,
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._broker = broker
        self._delivery = delivery
        self._store_host = store_host
        self._max_body_bytes = max_body_bytes

    async def send(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        found = request.fields
        topic, queue_id = read.text(found, "topic"), read.number(found, "queueId", -1)
        is_batch = request.command.code == RequestCode.SEND_BATCH_MESSAGE or read.flag(found, "batch")
        if is_batch:
            return await self._send_batch(request, found, topic, context)
        if f"{REPLY_TO_CLIENT}\x01" in found.get("properties", ""):  # whoever answers needs to know it
            found = {**found, "properties": _and(found["properties"], _CLUSTER, self._cluster)}
        message = outgoing(found, request.command.body, self._max_body_bytes)
        stored = await self.store(topic, message, max(-1, queue_id), found, context)
        return stored.answer(request)

    async def store(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_id: int,
        found: Mapping[str, str],
        context: CallContext,
    ) -> Stored:
        """Now, later, or when its transaction commits. `found`: fields of the request."""
        delivery, properties = self._delivery, message.properties
        message_id = properties.get(UNIQ_KEY, "")
        if len(message_id) > _MAX_ID_LENGTH or topic.startswith(RETRY_PREFIX):
            message_id = ""  # the same message is sent back again and again under its one id
        if properties.get(_PREPARED) == "true" or read.number(found, "sysFlag", 0) & TRANSACTION_PREPARED:
            half = await delivery.send_half(
                topic,
                message,
                message_id=message_id,
                client_id=context.client_id,
                check_after_ms=seconds_ms(properties.get(_CHECK_IMMUNITY_S)),
                queue_id=queue_id,
                born_host=context.remote,
            )
            return Stored(
                self._offset_id(half.physical_offset),
                max(0, queue_id),
                half.queue_offset,
                told_id(half.transaction_id, topic),
                shortfall=half.shortfall,
            )
        delay = delay_of(properties, time.time_ns() // 1_000_000)
        if delay is not None:
            delayed = await delivery.send_delayed(
                topic,
                message,
                message_id=message_id,
                deliver_at_ms=delay.at_ms,
                level=delay.level,
                queue_id=queue_id,
                born_host=context.remote,
            )
            return Stored(
                self._offset_id(0),
                max(0, queue_id),
                0,
                message_id,
                delayed.recall_handle,
                shortfall=delayed.shortfall,
            )
        sent = await delivery.send(
            topic, message, message_id=message_id, queue_id=queue_id, born_host=context.remote
        )
        place = sent.physical_offset
        if place < 0:
            place = await self._physical_offset(topic, sent.queue_id, sent.queue_offset)
        return Stored(
            self._offset_id(max(0, place)),
            sent.queue_id,
            sent.queue_offset,
            message_id,
            entry=self._entry(sent.term, sent.log_index),
            shortfall=sent.shortfall,
        )

    async def _physical_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Of a message that was sent before; -1 if it cannot be read any more."""
        if queue_id < 0:
            return -1
        found = await self._broker.pull(topic, queue_id, queue_offset, max_messages=1)
        return PHYSICAL_OFFSET.unpack_from(found.records[0], 28)[0] if found.records else -1

    async def _send_batch(
        self, request: RemotingRequest, found: Mapping[str, str], topic: str, context: CallContext
    ) -> RemotingCommand:
        messages = batch_of(found, request.command.body, self._max_body_bytes)
        queue_id = max(-1, read.number(found, "queueId", -1))
        sent = await self._broker.send(topic, messages, queue_id=queue_id, born_host=context.remote)
        entry = self._entry(sent.term, sent.index)
        ids = ",".join(sent.offset_ids)
        stored = Stored(ids, sent.queue_id, sent.queue_offset, entry=entry, shortfall=sent.shortfall)
        return stored.answer(request)

    def _entry(self, term: int, index: int) -> Mapping[str, str]:
        """Nothing for a duplicate: only where it is in its queue is remembered."""
        if index < 0:
            return {}
        return {"nodeId": self._node_id, "term": str(term), "logIndex": str(index)}

    def _offset_id(self, physical_offset: int) -> str:
        return format_offset_id(self._store_host, physical_offset)


PHYSICAL_OFFSET = struct.Struct(">q")


class Stored(NamedTuple):
    """What a producer is told. `msg_id`: RocketMQ's offsetMsgId, of a batch several with commas. `entry`: who
    has stored it, and where in the log: fields that RocketMQ's clients pass over."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    entry: Mapping[str, str] = MappingProxyType({})
    shortfall: Status | None = None

    def answer(self, request: RemotingRequest) -> RemotingCommand:
        """A message that is stored with less than was promised has a place and ids, too."""
        if self.shortfall is None:
            return request.command.answer(ResponseCode.SUCCESS, fields=self.fields())
        error = error_for(self.shortfall, "it is stored here")
        return request.command.answer(error.response_code, str(error), fields=self.fields())

    def fields(self) -> dict[str, str]:
        found = {
            "msgId": self.msg_id,
            "queueId": str(max(0, self.queue_id)),
            "queueOffset": str(max(0, self.queue_offset)),
            "transactionId": self.transaction_id,
            "recallHandle": self.recall_handle,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            **self.entry,
        }
        return {name: value for name, value in found.items() if value}


def outgoing(found: Mapping[str, str], body: bytes, max_body_bytes: int) -> OutgoingMessage:
    """A message from the fields of its request. IllegalMessage."""
    if len(body) > max_body_bytes:
        text = f"the body has {len(body)} bytes, more than {max_body_bytes}"
        raise IllegalMessage(Status.BODY_TOO_LARGE, text)
    properties = found.get("properties") or ""
    if (times := read.number(found, "reconsumeTimes", 0)) > 0 and f"{RECONSUME_TIME}\x01" not in properties:
        properties = _and(properties, RECONSUME_TIME, str(times))
    return OutgoingMessage(
        body,
        PropertiesText(properties),
        flag=read.number(found, "flag", 0),
        sys_flag=read.number(found, "sysFlag", 0) & _SYS_FLAGS,
        born_timestamp=max(0, read.number(found, "bornTimestamp", 0)),
    )


def _and(properties: str, name: str, value: str) -> str:
    if properties and not properties.endswith("\x02"):
        properties += "\x02"
    return f"{properties}{name}\x01{value}\x02"


def batch_of(found: Mapping[str, str], body: bytes, max_body_bytes: int) -> list[OutgoingMessage]:
    """Messages of a batch: size, magic, crc, flag, body and properties of each. IllegalMessage."""
    messages: list[OutgoingMessage] = []
    born = max(0, read.number(found, "bornTimestamp", 0))
    sys_flag = read.number(found, "sysFlag", 0) & _SYS_FLAGS
    view, at = memoryview(body), 0
    while at < len(view):
        try:
            size, _, _, flag, body_size = _ITEM.unpack_from(view, at)
            body_at = at + _ITEM.size
            (properties_size,) = _SHORT.unpack_from(view, body_at + body_size)
            properties_at = body_at + body_size + _SHORT.size
            fits = body_size >= 0 <= properties_size and properties_at + properties_size == at + size
            if not fits or at + size > len(view):
                raise ValueError(f"item {len(messages)} has other lengths than it says")
            properties = bytes(view[properties_at : properties_at + properties_size]).decode()
        except (struct.error, ValueError) as error:
            raise IllegalMessage(Status.REQUEST_MALFORMED, f"no batch of messages: {error}") from None
        if body_size > max_body_bytes:
            text = f"body {len(messages)} has {body_size} bytes, more than {max_body_bytes}"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        messages.append(
            OutgoingMessage(
                bytes(view[body_at : body_at + body_size]), PropertiesText(properties), flag, sys_flag, born
            )
        )
        if len(messages) > _MAX_BATCH:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"more than {_MAX_BATCH} messages in a batch")
        at += size
    if not messages:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "a batch has at least one message")
    return messages
