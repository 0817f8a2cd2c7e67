"""Bodies of requests and answers, which are JSON.

Facts: HeartbeatData, ConsumerData, SubscriptionData, LockBatchRequestBody, GetConsumerListByGroupResponseBody
of RocketMQ. Clients in C++ write numbers where others write names.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.remoting.json_bodies import dump
from broker_adapter.remoting.longs import LONGS

_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MODELS = ("BROADCASTING", "CLUSTERING")
_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
_MOST = 4_096
_MAX_DIGITS = 19
#: A body is parsed on the event loop: 10 ms at worst.
MAX_BODY_BYTES = 256 << 10
#: Of a name or client id; of an expression, which its parser bounds further.
_MAX_NAME, _MAX_EXPRESSION = 512, 8_192


class Subscription(NamedTuple):
    """What a consumer wants of a topic. `is_sql`: the expression is one of SQL92, not of tags."""

    topic: str
    expression: str
    is_sql: bool
    version: int


class ConsumerData(NamedTuple):
    """What a member says of its group."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription]  # by topic


class Heartbeat(NamedTuple):
    client_id: str
    producer_groups: Sequence[str]
    consumers: Sequence[ConsumerData]


def parse(body: bytes) -> dict[str, Any]:
    """IllegalMessage (REQUEST_MALFORMED) unless it is a JSON object, of MAX_BODY_BYTES at most."""
    if len(body) > MAX_BODY_BYTES:
        raise _malformed(f"a body of {len(body)} bytes; {MAX_BODY_BYTES} may be")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _malformed("the body is no JSON object")
    return found


def heartbeat(body: bytes) -> Heartbeat:
    """IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    producers = [_text(one.get("groupName")) for one in _objects(found, "producerDataSet")]
    consumers = [_consumer(one) for one in _objects(found, "consumerDataSet")]
    return Heartbeat(_text(found.get("clientID")), producers, consumers)


def _consumer(found: Mapping[str, Any]) -> ConsumerData:
    subscriptions = map(subscription, _objects(found, "subscriptionDataSet"))
    return ConsumerData(
        _text(found.get("groupName")),
        _name(found.get("consumeType"), _TYPES, 1),
        _name(found.get("messageModel"), _MODELS, 1),
        _name(found.get("consumeFromWhere"), _FROM, 0),
        {one.topic: one for one in subscriptions},
    )


def subscription(found: Mapping[str, Any]) -> Subscription:
    version = str(found.get("subVersion", 0))
    return Subscription(
        _text(found.get("topic")),
        _text(found.get("subString"), default="*", most=_MAX_EXPRESSION),
        found.get("expressionType") == "SQL92",
        int(version) if version.isdecimal() and len(version) <= _MAX_DIGITS else 0,
    )


class QueueName(NamedTuple):
    """RocketMQ's MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


class LockRequest(NamedTuple):
    group: str
    client_id: str
    queues: Sequence[QueueName]


def lock_request(body: bytes) -> LockRequest:
    """IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    queues = [_queue(one) for one in _objects(found, "mqSet")]
    return LockRequest(_text(found.get("consumerGroup")), _text(found.get("clientId")), queues)


def _queue(found: Mapping[str, Any]) -> QueueName:
    queue_id = found.get("queueId")
    if type(queue_id) is not int or not 0 <= queue_id < 1 << 31:
        raise _malformed("queueId is no number, or too large")
    return QueueName(_text(found.get("topic")), _text(found.get("brokerName"), default=""), queue_id)


def assignment_request(body: bytes) -> tuple[str, str, str]:
    """Group, topic, client id. IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    return _text(found.get("consumerGroup")), _text(found.get("topic")), _text(found.get("clientId"))


class BatchAck(NamedTuple):
    """RocketMQ's BatchAck: messages of one pop in one queue. The other numbers are those of the receipt."""

    group: str
    topic: str
    start: int
    time: int
    revive: int
    queue_id: int
    offsets: Sequence[int]


def batch_acks(body: bytes) -> list[BatchAck]:
    """IllegalMessage (REQUEST_MALFORMED): also for more than `_MOST` messages in all."""
    acks: list[BatchAck] = []
    left = _MOST
    for one in _objects(parse(body), "acks") if body else ():
        acks.append(_batch_ack(one, left))
        left -= len(acks[-1].offsets)
    return acks


def _batch_ack(found: Mapping[str, Any], most: int) -> BatchAck:
    start = _long(found, "so")
    try:
        bits = b64decode(_text(found.get("b"), most=_MOST), validate=True)
    except ValueError:
        raise _malformed("b is no set of bits") from None
    if int.from_bytes(bits).bit_count() > most:
        raise _malformed(f"more than {_MOST} messages")
    # Byte by byte: to look at one bit of a large number costs as much as to copy it.
    offsets = [
        start + 8 * at + place
        for at, byte in enumerate(bits)
        if byte
        for place in range(8)
        if byte >> place & 1
    ]
    time, revive, queue_id = (_long(found, name) for name in ("pt", "rq", "q"))
    return BatchAck(_text(found.get("c")), _text(found.get("t")), start, time, revive, queue_id, offsets)


def _long(found: Mapping[str, Any], name: str) -> int:
    """RocketMQ leaves no number out, but fastjson may leave out what is 0."""
    number = found.get(name, 0)
    if type(number) is not int or number not in LONGS:
        raise _malformed(f"{name} is no number, or too large")
    return number


def locked(queues: Iterable[QueueName]) -> bytes:
    return dump({"lockOKMQSet": [queue.to_json() for queue in queues]})


def consumer_list(client_ids: Iterable[str]) -> bytes:
    """Row by row: of tens of thousands a thread makes it, and lets others work meanwhile."""
    return b'{"consumerIdList":[' + b",".join(map(dump, client_ids)) + b"]}"


def _objects(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Left out, or null: none."""
    value = found.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value) or len(value) > _MOST:
        raise _malformed(f"{name} is no list of objects, or has more than {_MOST}")
    return value


def _name(value: object, names: Sequence[str], default: int) -> str:
    if isinstance(value, str) and value in names:
        return value
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    return names[default]


def _text(value: object, default: str | None = None, *, most: int = _MAX_NAME) -> str:
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _malformed("a text is missing")
    if len(value) > most:
        raise _malformed(f"a text of {len(value)} characters; {most} may be")
    # JSON may name halves of characters, which nobody can be told. Java writes a "?" for them.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _malformed(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.REQUEST_MALFORMED, problem)
