"""Converts stored messages for RocketMQ 5 clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker_adapter.delivery.api import Delivery
from broker_adapter.endpoints.v5.messages import message_properties as names
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from broker_adapter.wire.sys_flag import COMPRESSED

# Constants, because looking up such a name for each message costs more than using it.
_NORMAL, _FIFO, _DELAY = pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY
_TRANSACTION, _PRIORITY = pb.MessageType.TRANSACTION, pb.MessageType.PRIORITY
_MD5, _GZIP, _IDENTITY = pb.DigestType.MD5, pb.Encoding.GZIP, pb.Encoding.IDENTITY

_DELAYS = (names.DELIVER_AT_MS, "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "DELAY", "__STARTDELIVERTIME")
_MAX_INT = (1 << 31) - 1
#: The end of the year 9999, the maximum Timestamp.
MAX_MS = 253_402_300_799_999
#: 10,000 years, the maximum Duration.
_MAX_DURATION_MS = 315_576_000_000_000


def stored_message(record: bytes, topic: pb.Resource) -> pb.Message:
    """Convert a stored message. `topic`: the name that the client uses for the topic."""
    return _to_pb(decode(record), topic)


def delivered_message(delivery: Delivery, topic: pb.Resource, now_ms: int) -> pb.Message:
    """Convert a delivered message, with the fields of its delivery."""
    message = _to_pb(decode(delivery.record), topic)
    system = message.system_properties
    system.receipt_handle = delivery.handle
    system.delivery_attempt = delivery.attempt
    system.queue_id = delivery.queue_id
    system.queue_offset = delivery.queue_offset
    system.invisible_duration.CopyFrom(duration(max(0, delivery.invisible_until_ms - now_ms)))
    return message


def timestamp(ms: int) -> Timestamp:
    """Convert to a Timestamp, limited to its range.

    Producers of other protocols may store any value. If a Timestamp were invalid, a client would fail each
    time it receives the message, and would also lose all other messages of the same response.
    """
    ms = min(ms, MAX_MS)
    seconds, rest = divmod(ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)


def duration(ms: int) -> Duration:
    """Convert to a Duration, limited to its range."""
    ms = min(ms, _MAX_DURATION_MS)
    seconds, rest = divmod(ms, 1000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)


def _to_pb(message: MessageRecord, topic: pb.Resource) -> pb.Message:
    properties = split_properties(message.properties)
    compressed = message.sys_flag & COMPRESSED
    system = pb.SystemProperties(
        message_id=properties.get(UNIQ_KEY) or message.offset_id,
        # All clients use the same format of this digest, and some clients fail without a digest.
        body_digest=pb.Digest(
            type=_MD5,
            checksum=hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper(),
        ),
        body_encoding=_GZIP if compressed else _IDENTITY,
        message_type=_kind_of(properties),
        born_timestamp=timestamp(message.born_timestamp),
        born_host=properties.get(names.BORN_HOST) or _text_of(message.born_host),
        store_timestamp=timestamp(message.store_timestamp),
        store_host=_text_of(message.store_host),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        keys=properties.get(KEYS, "").split(),
    )
    _optional(system, properties)
    shown = {name: value for name, value in properties.items() if name not in names.RESERVED}
    return pb.Message(topic=topic, user_properties=shown, system_properties=system, body=message.body)


def _optional(system: pb.SystemProperties, properties: Mapping[str, str]) -> None:
    if tag := properties.get(TAGS):
        system.tag = tag
    if group := properties.get(names.SHARDING_KEY):
        system.message_group = group
    if trace := properties.get(names.TRACE_CONTEXT):
        system.trace_context = trace
    if (priority := _number(properties.get(names.PRIORITY), _MAX_INT)) is not None:
        system.priority = priority
    if (due := _number(properties.get(names.DELIVER_AT_MS))) is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due))
    if (seconds := _number(properties.get(names.CHECK_IMMUNITY_S))) is not None:
        system.orphaned_transaction_recovery_duration.CopyFrom(duration(seconds * 1000))
    if origin := properties.get(names.DEAD_LETTER_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(names.DEAD_LETTER_MESSAGE_ID, "")


def _kind_of(properties: Mapping[str, str]) -> pb.MessageType:
    """Return the message type. As in RocketMQ, it is derived from the stored properties."""
    if names.TRANSACTION_PREPARED in properties or names.TRANSACTION_ID in properties:
        return _TRANSACTION
    if any(name in properties for name in _DELAYS):
        return _DELAY
    if names.SHARDING_KEY in properties:
        return _FIFO
    if names.PRIORITY in properties:
        return _PRIORITY
    return _NORMAL


def _number(text: str | None, most: int = MAX_MS) -> int | None:
    """Parse a number. Return None if it is invalid, because properties may contain any text."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    number = int(text)
    return number if number <= most else None


@lru_cache(1_024)
def _text_of(host: Host) -> str:
    """Format a host. Cached, because a few brokers store most messages."""
    return str(host)
