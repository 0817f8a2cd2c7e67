"""Requests with the fields of RocketMQ's request headers, and the decoding of responses. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.client.core.values import MessageQueue, check_queue
from broker_adapter.errors import FrameRefused, IllegalMessage, Status
from broker_adapter.remoting.codes import WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.longs import long_of
from broker_adapter.wire.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    encode_properties,
    join_properties,
)

#: The topic whose route is used for topics that do not exist yet.
DEFAULT_TOPIC: Final = "TBW102"
#: The property that marks a reply, and its value. Replies are not stored.
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
_BATCH_ITEM = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})


class EncodedMessage(NamedTuple):
    """The contents of a send request."""

    body: bytes
    properties: str
    flag: int
    sys_flag: int
    message_ids: tuple[str, ...]
    is_batch: bool = False


def send_message(
    group: str, queue: MessageQueue, message: EncodedMessage, born_ms: int, *, default_topic_queues: int
) -> RemotingCommand:
    """Build SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE, whose fields have single-letter names."""
    fields = {
        "a": group,
        "b": queue.topic,
        "c": DEFAULT_TOPIC,
        "d": str(default_topic_queues),
        "e": str(queue.queue_id),
        "f": str(message.sys_flag),
        "g": str(born_ms),
        "h": str(message.flag),
        "i": message.properties,
        "j": "0",
        "k": "false",
        "m": _bool(message.is_batch),
        "n": queue.broker_name,
    }
    code = RequestCode.SEND_BATCH_MESSAGE if message.is_batch else RequestCode.SEND_MESSAGE_V2
    if f"{MESSAGE_TYPE}{NAME_VALUE_SEPARATOR}{REPLY}{PROPERTY_SEPARATOR}" in message.properties:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    return RemotingCommand(code, fields, message.body)


def batch_body(messages: Iterable[tuple[bytes, Mapping[str, str], int]]) -> bytes:
    """Encode the body, properties and flag of each message for SEND_BATCH_MESSAGE. Raises the errors of
    `join_properties`.
    """
    parts = []
    for body, properties, flag in messages:
        raw = encode_properties(join_properties(properties))
        size = _BATCH_ITEM.size + len(body) + _SHORT.size + len(raw)
        parts += [_BATCH_ITEM.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(raw)), raw]
    return b"".join(parts)


def create_topic(
    config: TopicConfig, attributes: Mapping[str, str] = _NO_CHANGES, *, is_forced: bool = False
) -> RemotingCommand:
    """Build UPDATE_AND_CREATE_TOPIC.

    `attributes`: changes in mqadmin's syntax. {"+message.type": "FIFO"} sets an attribute, {"-message.type":
    ""} removes it. The attributes of `config` are not sent. `is_forced`: hide queues even if they contain
    messages.
    """
    fields = {
        "topic": config.name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(config.read_queues),
        "writeQueueNums": str(config.write_queues),
        "perm": str(config.perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": str(config.sys_flag),
        "order": _bool(config.order),
    }
    if attributes:
        parts = (name if name.startswith("-") else f"{name}={value}" for name, value in attributes.items())
        fields["attributes"] = ",".join(parts)
    if is_forced:
        fields["force"] = "true"
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def query(
    topic: str, key: str, *, max_messages: int, begin_ms: int, end_ms: int, is_unique: bool
) -> RemotingCommand:
    """Build QUERY_MESSAGE. `is_unique`: the key is a producer's message id, which only one message has."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(max_messages),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        "_UNIQUE_KEY_QUERY": _bool(is_unique),
    }
    return RemotingCommand(RequestCode.QUERY_MESSAGE, fields)


def reset_offset(group: str, queue: MessageQueue, offset: int, *, is_import: bool = False) -> RemotingCommand:
    """Build INVOKE_BROKER_TO_RESET_OFFSET for one queue. RocketMQ brokers before version 5 do not support
    this form.

    `is_import`: the offset is from another cluster. Only brokers of this project know this field.
    """
    fields = {
        "topic": queue.topic,
        "group": group,
        "timestamp": "-1",
        "isForce": "true",
        "queueId": str(queue.queue_id),
        "offset": str(offset),
    }
    if is_import:
        fields["isImport"] = "true"
    return RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def route_of(topic: str) -> RemotingCommand:
    """Build a route request.

    NameServers of this project later notify the client of the next change to the route; other NameServers
    ignore the field.
    """
    fields = {"topic": topic, "acceptStandardJsonOnly": "true", WATCH_ROUTE: "true"}
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def of_queue(code: RequestCode, queue: MessageQueue, **more: str) -> RemotingCommand:
    """Build a request that concerns one queue. Raises IllegalMessage (REQUEST_MALFORMED)."""
    check_queue(queue)
    fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "brokerName": queue.broker_name}
    return RemotingCommand(code, {**fields, **more})


def number(answer: RemotingCommand, name: str, default: int | None = None) -> int:
    """Return a numeric field of a response.

    Raises FrameRefused (FRAME_INVALID) if the field is not a number, or if it is missing and `default` is
    None.
    """
    if default is not None and name not in answer.fields:
        return default
    value = long_of(text := answer.fields.get(name, ""))
    if value is None:
        raise FrameRefused(f"the response field {name} is not a number: {text[:50]!r}")
    return value


def check_body(size: int, limit: int, least: int = 1) -> None:
    """Check the size of a body. Raises IllegalMessage: BODY_TOO_LARGE, REQUEST_MALFORMED."""
    if size < least:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "the body is empty")
    if size > limit:
        raise IllegalMessage(Status.BODY_TOO_LARGE, f"the body is {size} bytes long; the limit is {limit}")


def _bool(value: bool) -> str:
    return "true" if value else "false"
