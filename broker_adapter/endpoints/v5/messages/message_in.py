"""Validates messages from producers and converts them for the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker_adapter.api import OutgoingMessage
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages import message_properties as names
from broker_adapter.endpoints.v5.messages.message_out import MAX_MS
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.wire.properties import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, TAGS
from broker_adapter.wire.sys_flag import COMPRESSED

MAX_PROPERTIES = 128
#: Maximum total of names and values of user properties, tag and keys (bytes).
MAX_PROPERTIES_BYTES = 16 << 10
MAX_MESSAGE_GROUP_BYTES = 64
MAX_MESSAGE_ID_LENGTH = 255
_MAX_SHORT_TEXT = 1024  # for system properties: trace context, born host
_KEY_SEPARATOR = " "

# Constants, because looking up such a name for each message costs more than using it.
_UNSPECIFIED, _NORMAL = pb.MessageType.MESSAGE_TYPE_UNSPECIFIED, pb.MessageType.NORMAL
_FIFO, _DELAY, _TRANSACTION = pb.MessageType.FIFO, pb.MessageType.DELAY, pb.MessageType.TRANSACTION
_LITE, _PRIORITY = pb.MessageType.LITE, pb.MessageType.PRIORITY
_GZIP = pb.Encoding.GZIP
_ILLEGAL_ID, _BAD_REQUEST = Code.ILLEGAL_MESSAGE_ID, Code.BAD_REQUEST
_SERVED = frozenset({_NORMAL, _FIFO, _DELAY, _TRANSACTION, _PRIORITY})

_DIGESTS = {pb.DigestType.MD5: hashlib.md5, pb.DigestType.SHA1: hashlib.sha1}


class Incoming(NamedTuple):
    """A validated message. Times are in ms; 0 means not set."""

    message: OutgoingMessage
    message_id: str
    kind: pb.MessageType
    group: str = ""  # for type FIFO
    deliver_at_ms: int = 0
    check_after_ms: int = 0


def incoming(message: pb.Message, max_body_bytes: int) -> Incoming:
    """Validate and convert a message. Raises Rejected with the code for the problem."""
    system = message.system_properties
    _check_body(message, max_body_bytes)
    message_id = _check_text(system.message_id, MAX_MESSAGE_ID_LENGTH, _ILLEGAL_ID, "message id", needed=True)
    kind = _kind_of(system)
    deliver_at_ms = check_after_ms = 0
    properties = _user_properties(message)
    if system.tag:
        properties[TAGS] = _tag_of(system.tag)
    if system.keys:
        properties[KEYS] = _keys_of(system.keys)
    if kind == _FIFO:
        properties[names.SHARDING_KEY] = system.message_group
    elif kind == _PRIORITY:
        properties[names.PRIORITY] = str(system.priority)
    elif kind == _DELAY:
        at_ms = timestamp_ms(system.delivery_timestamp)
        deliver_at_ms = max(1, _time(at_ms, Code.ILLEGAL_DELIVERY_TIME, "delivery timestamp"))
        properties[names.DELIVER_AT_MS] = str(deliver_at_ms)
    elif kind == _TRANSACTION:
        properties[names.TRANSACTION_PREPARED] = "true"
        after_ms = duration_ms(system.orphaned_transaction_recovery_duration)
        check_after_ms = _time(after_ms, Code.BAD_REQUEST, "orphaned transaction recovery duration")
        if check_after_ms:
            properties[names.CHECK_IMMUNITY_S] = str(-(-check_after_ms // 1000))
    if system.trace_context:
        properties[names.TRACE_CONTEXT] = _check_text(
            system.trace_context, _MAX_SHORT_TEXT, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "trace context"
        )
    if system.born_host:
        properties[names.BORN_HOST] = _check_text(
            system.born_host, _MAX_SHORT_TEXT, _BAD_REQUEST, "born host"
        )
    made = OutgoingMessage(
        message.body,
        properties,
        sys_flag=COMPRESSED if system.body_encoding == _GZIP else 0,
        born_timestamp=_time(timestamp_ms(system.born_timestamp), _BAD_REQUEST, "born timestamp"),
    )
    return Incoming(made, message_id, kind, system.message_group, deliver_at_ms, check_after_ms)


def timestamp_ms(stamp: Timestamp) -> int:
    return int(stamp.seconds) * 1000 + int(stamp.nanos) // 1_000_000


def duration_ms(duration: Duration) -> int:
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def _check_body(message: pb.Message, most: int) -> None:
    body, system = message.body, message.system_properties
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > most:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body is {len(body)} bytes long; the limit is {most}"
        )
    digest = system.body_digest
    # CRC32 is not checked, because clients use different formats.
    make = _DIGESTS.get(digest.type) if digest.checksum else None
    if make is not None and make(body, usedforsecurity=False).hexdigest() != digest.checksum.lower():
        raise Rejected(Code.MESSAGE_CORRUPTED, "the body does not match its digest")


def _kind_of(system: pb.SystemProperties) -> pb.MessageType:
    """Return the message type. Raises Rejected if the type does not match the fields that are set."""
    # the type of message that each field belongs to, for fields that are set
    fields: list[pb.MessageType] = []
    if system.message_group:
        fields.append(_FIFO)
    if system.HasField("delivery_timestamp"):
        fields.append(_DELAY)
    if system.HasField("priority"):
        fields.append(_PRIORITY)
    if system.HasField("lite_topic"):
        fields.append(_LITE)
    kind = system.message_type
    if kind == _UNSPECIFIED:
        kind = fields[0] if fields else _NORMAL
    if kind not in _SERVED:
        raise Rejected(Code.UNSUPPORTED, f"message type {_name_of(kind)} is not supported")
    if kind == _FIFO:
        _check_group(system.message_group)
    elif kind == _DELAY and kind not in fields:
        raise Rejected(Code.ILLEGAL_DELIVERY_TIME, "a delayed message needs a delivery timestamp")
    elif kind == _PRIORITY and system.priority < 0:
        raise Rejected(Code.BAD_REQUEST, f"priority {system.priority} is negative")
    for found in fields:
        if found != kind:
            text = f"a message of the type {_name_of(kind)} has a field of the type {_name_of(found)}"
            raise Rejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    return kind


def _name_of(kind: pb.MessageType) -> str:
    return pb.MessageType.Name(kind) if kind in pb.MessageType.values() else str(kind)


def _user_properties(message: pb.Message) -> dict[str, str]:
    given, system = message.user_properties, message.system_properties
    if len(given) > MAX_PROPERTIES:
        text = f"{len(given)} properties, more than {MAX_PROPERTIES}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    if len(system.keys) > MAX_PROPERTIES_BYTES:
        text = f"{len(system.keys)} keys have more than {MAX_PROPERTIES_BYTES} bytes"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    size = len(system.tag.encode()) + sum(len(key.encode()) + 1 for key in system.keys)
    kept: dict[str, str] = {}
    for name, value in given.items():
        size += len(name.encode()) + len(value.encode())
        if name in names.RESERVED:
            text = f"the property {name!r} is reserved"
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        if not name or not value or _has_separator(name) or _has_separator(value):
            text = f"property {name[:64]!r}: name and value must not be empty or contain 0x01 or 0x02"
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        if name not in names.SHOWN:
            kept[name] = value
    if size > MAX_PROPERTIES_BYTES:
        text = f"properties, tag and keys have {size} bytes, more than {MAX_PROPERTIES_BYTES}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return kept


def _tag_of(tag: str) -> str:
    if "|" in tag or not tag.strip() or _has_separator(tag):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:64]!r}: must not be blank or contain '|', 0x01 or 0x02"
        )
    return tag


def _keys_of(keys: Iterable[str]) -> str:
    kept = list(keys)
    for key in kept:
        if not key.strip() or _has_separator(key):
            raise Rejected(
                Code.ILLEGAL_MESSAGE_KEY, f"key {key[:64]!r}: must not be blank or contain 0x01 or 0x02"
            )
    return _KEY_SEPARATOR.join(kept)


def _check_group(group: str) -> None:
    size = len(group.encode())
    if not group.strip() or size > MAX_MESSAGE_GROUP_BYTES or _has_separator(group):
        limit = f"not blank, at most {MAX_MESSAGE_GROUP_BYTES} bytes (it has {size})"
        text = f"message group {group[:64]!r}: {limit}"
        raise Rejected(Code.ILLEGAL_MESSAGE_GROUP, text)


def _check_text(text: str, most: int, code: Code, what: str, *, needed: bool = False) -> str:
    if len(text) > most or _has_separator(text) or (needed and not text):
        least = "1 to " if needed else "at most "
        raise Rejected(
            code, f"{what} {text[:64]!r} must have {least}{most} characters, without 0x01 and 0x02"
        )
    return text


def _time(ms: int, code: Code, what: str) -> int:
    """Check a time. Return 0 for times before 1970 and negative durations."""
    if ms > MAX_MS:
        raise Rejected(code, f"{what}: {ms} ms is after the year 9999")
    return max(0, ms)


def _has_separator(text: str) -> bool:
    return NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text
