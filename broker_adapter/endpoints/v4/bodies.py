"""Request and response bodies in JSON.

Sources: RocketMQ's HeartbeatData, ConsumerData, SubscriptionData, LockBatchRequestBody,
GetConsumerListByGroupResponseBody. C++ clients write enums as numbers, others as names.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_adapter.endpoints.filters.sql92 import MAX_LENGTH
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.remoting.json_bodies import check_limits, dump
from broker_adapter.wire.longs import LONGS, long_of
from broker_adapter.wire.topic_names import is_group_name

_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BROADCASTING = "BROADCASTING"
_MODELS = (BROADCASTING, "CLUSTERING")
_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
_MOST = 4_096
#: Maximum bytes and values of a body. Bodies are parsed on the event loop, and the number of values bounds
#: the time.
MAX_BODY_BYTES, MAX_BODY_VALUES = 2 << 20, 1 << 16
#: Maximum length of a name or client id.
_MAX_NAME = 512


class SubscriptionData(NamedTuple):
    """A consumer's subscription to a topic. `is_sql`: the expression is SQL92, not tags."""

    topic: str
    expression: str
    is_sql: bool
    version: int


class ConsumerData(NamedTuple):
    """The description of a consumer group by one of its members."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, SubscriptionData]  # by topic

    def with_newer_of(self, before: ConsumerData) -> ConsumerData:
        """Return this data, but keep the earlier version of each subscription unless the new version is
        greater.

        Heartbeats may arrive out of order (RocketMQ's ConsumerGroupInfo).
        """
        kept = {}
        for topic, one in self.subscriptions.items():
            earlier = before.subscriptions.get(topic, one)
            kept[topic] = one if one.version > earlier.version else earlier
        return self._replace(subscriptions=kept)


class HeartbeatData(NamedTuple):
    client_id: str
    producer_groups: Sequence[str]
    consumers: Sequence[ConsumerData]

    def without_invalid_groups(self) -> HeartbeatData:
        """Return this heartbeat with only the consumers whose group names are valid."""
        return self._replace(consumers=[one for one in self.consumers if is_group_name(one.group)])


def parse(body: bytes) -> dict[str, Any]:
    """Parse a JSON object within the limits above. Raises IllegalMessage (REQUEST_MALFORMED)."""
    try:
        check_limits(body, MAX_BODY_BYTES, MAX_BODY_VALUES)
    except ValueError as error:
        raise _malformed(str(error)) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _malformed("the body is not a JSON object")
    return found


def heartbeat(body: bytes) -> HeartbeatData:
    """Parse a heartbeat. Raises IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    producers = [_text(one.get("groupName")) for one in _objects(found, "producerDataSet")]
    consumers = [_consumer(one) for one in _objects(found, "consumerDataSet")]
    return HeartbeatData(_text(found.get("clientID")), producers, consumers)


def _consumer(found: Mapping[str, Any]) -> ConsumerData:
    subscriptions = map(subscription, _objects(found, "subscriptionDataSet"))
    return ConsumerData(
        _text(found.get("groupName")),
        _name(found.get("consumeType"), _TYPES, 1),
        _name(found.get("messageModel"), _MODELS, 1),
        _name(found.get("consumeFromWhere"), _FROM, 0),
        {one.topic: one for one in subscriptions},
    )


def subscription(found: Mapping[str, Any]) -> SubscriptionData:
    version = long_of(str(found.get("subVersion", 0)))
    return SubscriptionData(
        _text(found.get("topic")),
        _text(found.get("subString"), default="*", most=MAX_LENGTH),
        found.get("expressionType") == "SQL92",
        max(0, version or 0),
    )


def checked_subscription(body: bytes) -> tuple[str, str] | None:
    """Return the expression and type in a CheckClientRequestBody, or None if it contains no subscription.

    Raises IllegalMessage (REQUEST_MALFORMED).
    """
    found = parse(body).get("subscriptionData")
    if not isinstance(found, dict):
        return None
    return subscription(found).expression, _text(found.get("expressionType"), default="")


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
    """Parse a lock or unlock request. Raises IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    queues = [_queue(one) for one in _objects(found, "mqSet")]
    return LockRequest(_text(found.get("consumerGroup")), _text(found.get("clientId")), queues)


def _queue(found: Mapping[str, Any]) -> QueueName:
    queue_id = found.get("queueId")
    if type(queue_id) is not int or not 0 <= queue_id < 1 << 31:
        raise _malformed("queueId is not a number within the range")
    return QueueName(_text(found.get("topic")), _text(found.get("brokerName"), default=""), queue_id)


def assignment_request(body: bytes) -> tuple[str, str, str]:
    """Return group, topic and client id. Raises IllegalMessage (REQUEST_MALFORMED)."""
    found = parse(body)
    return _text(found.get("consumerGroup")), _text(found.get("topic")), _text(found.get("clientId"))


class BatchAck(NamedTuple):
    """RocketMQ's BatchAck, which acknowledges messages of one pop in one queue.

    `offsets` are decoded from a bit set; the other numbers are words of the receipt.
    """

    group: str
    topic: str
    start: int
    time: int
    revive: int
    queue_id: int
    offsets: Sequence[int]


def batch_acks(body: bytes) -> list[BatchAck]:
    """Parse batch acknowledgements.

    Raises IllegalMessage (REQUEST_MALFORMED) if the body is invalid or has more than `_MOST` messages in
    total.
    """
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
        raise _malformed("b is not a valid bit set") from None
    if int.from_bytes(bits).bit_count() > most:
        raise _malformed(f"the request lists more than {_MOST} messages")
    # Read byte by byte, because the test of a bit in a large integer costs as much as a copy of the integer.
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
    """Read a long. Return 0 if it is missing, because fastjson may omit zeros."""
    number = found.get(name, 0)
    if type(number) is not int or number not in LONGS:
        raise _malformed(f"{name} is not a number within the range")
    return number


def locked(queues: Iterable[QueueName]) -> bytes:
    return dump({"lockOKMQSet": [queue.to_json() for queue in queues]})


def consumer_list(client_ids: Iterable[str]) -> bytes:
    """Encode the ids one by one, so that other threads can run in between."""
    return b'{"consumerIdList":[' + b",".join(map(dump, client_ids)) + b"]}"


def _objects(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Read a list of objects. A missing list or null counts as empty."""
    value = found.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value) or len(value) > _MOST:
        raise _malformed(f"{name} is not a list of at most {_MOST} objects")
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
        raise _malformed("a string is missing")
    if len(value) > most:
        raise _malformed(f"a string has {len(value)} characters; the limit is {most}")
    # JSON may contain lone surrogates, which cannot be encoded as UTF-8. Java writes a "?" for them.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _malformed(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.REQUEST_MALFORMED, problem)
