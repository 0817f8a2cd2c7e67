"""Requests with the fields that RocketMQ's request headers have, and what their answers say. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import FrameRefused, IllegalMessage, Status
from broker_adapter.format.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    encode_properties,
    join_properties,
)
from broker_adapter.remoting.codes import WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.longs import long_of

#: The topic whose route new topics get.
DEFAULT_TOPIC: Final = "TBW102"
#: The property of an answer to a message, and its value: such a message is not stored.
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
_BATCH_ITEM = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")


class OutgoingMessage(NamedTuple):
    """What a send request carries. `count`: messages in the body."""

    body: bytes
    properties: str
    flag: int
    sys_flag: int
    message_ids: tuple[str, ...]
    is_batch: bool = False


def send_message(
    group: str, queue: MessageQueue, message: OutgoingMessage, born_ms: int, *, default_topic_queues: int
) -> RemotingCommand:
    """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE: fields have names of one letter."""
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
    """(body, properties, flag) of each message, as SEND_BATCH_MESSAGE has them. IllegalMessage as from
    `join_properties`."""
    parts = []
    for body, properties, flag in messages:
        raw = encode_properties(join_properties(properties))
        size = _BATCH_ITEM.size + len(body) + _SHORT.size + len(raw)
        parts += [_BATCH_ITEM.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(raw)), raw]
    return b"".join(parts)


def create_topic(
    topic: str, *, read_queues: int, write_queues: int, permission: int, attributes: Mapping[str, str]
) -> RemotingCommand:
    """UPDATE_AND_CREATE_TOPIC. `attributes`: as mqadmin names them, e.g. {"+message.type": "FIFO"}."""
    fields = {
        "topic": topic,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(read_queues),
        "writeQueueNums": str(write_queues),
        "perm": str(permission),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        fields["attributes"] = ",".join(f"{name}={value}" for name, value in attributes.items())
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def query(topic: str, key: str, *, most: int, begin_ms: int, end_ms: int, is_unique: bool) -> RemotingCommand:
    """QUERY_MESSAGE. `is_unique`: by the producer's id, of which there is one."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        "_UNIQUE_KEY_QUERY": _bool(is_unique),
    }
    return RemotingCommand(RequestCode.QUERY_MESSAGE, fields)


def reset_offset(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    """INVOKE_BROKER_TO_RESET_OFFSET of one queue: brokers of RocketMQ 5 take it so, older ones do not."""
    fields = {
        "topic": queue.topic,
        "group": group,
        "timestamp": "-1",
        "isForce": "true",
        "queueId": str(queue.queue_id),
        "offset": str(offset),
    }
    return RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def route_of(topic: str) -> RemotingCommand:
    """NameServers of ours tell of the next change of the route, too; others pass over that."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true", WATCH_ROUTE: "true"}
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def of_queue(code: RequestCode, queue: MessageQueue, **more: str) -> RemotingCommand:
    """A request about one queue."""
    fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "brokerName": queue.broker_name}
    return RemotingCommand(code, {**fields, **more})


def number(answer: RemotingCommand, name: str, default: int | None = None) -> int:
    """A field of an answer. FrameRefused (FRAME_INVALID) if it is no number, or is missing without
    `default`."""
    if default is not None and name not in answer.fields:
        return default
    found = long_of(text := answer.fields.get(name, ""))
    if found is None:
        raise FrameRefused(f"an answer without a number {name}: {text[:50]!r}")
    return found


def check_body(size: int, limit: int, least: int = 1) -> None:
    """IllegalMessage (BODY_TOO_LARGE, REQUEST_MALFORMED)."""
    if size < least:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "an empty body")
    if size > limit:
        raise IllegalMessage(Status.BODY_TOO_LARGE, f"a body of {size} bytes; {limit} may be")


def _bool(value: bool) -> str:
    return "true" if value else "false"
