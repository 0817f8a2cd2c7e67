"""Handles for clients: receipt handles, recall handles, transaction ids.

A receipt handle encodes topic, queue, offset and pop, but not the group, which each request with a handle
names. The checksum detects truncation and typing errors, not forgery.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

_RECEIPT = struct.Struct(">IiqqI")
_HALF = struct.Struct(">IqqI")
_DEFERRED = struct.Struct(">IqI")
_CRC_SIZE = 4
_RECALL_VERSION = "v1"
TOPIC_DIGEST_SIZE = 6


class Receipt(NamedTuple):
    queue_id: int
    offset: int
    pop: int


def receipt_handle(topic: str, queue_id: int, offset: int, pop: int) -> str:
    return _text(_RECEIPT, crc32(topic.encode()), queue_id, offset, pop)


def parse_receipt(topic: str, handle: str) -> Receipt | None:
    """Parse a receipt handle. Return None if it is not a receipt handle of this topic."""
    fields = _fields(_RECEIPT, handle)
    if fields is None or fields[0] != crc32(topic.encode()):
        return None
    return Receipt(*fields[1:4])


def deferred_handle(topic: str, deferred_id: int) -> str:
    """Return the transaction id of a half message, or the part of a recall handle that names the message."""
    return _text(_DEFERRED, crc32(topic.encode()), deferred_id)


def parse_deferred(topic: str, handle: str) -> int | None:
    """Parse the handle of a deferred message into its number.

    Return None if it is not a handle of this topic.
    """
    fields = _fields(_DEFERRED, handle)
    return None if fields is None or fields[0] != crc32(topic.encode()) else fields[1]


def recall_handle(topic: str, broker_name: str, due_ms: int, message_id: str, deferred_id: int) -> str:
    """Return the recall handle of a delayed message in RocketMQ's format (RecallMessageHandle.HandleV1).

    Java clients decode it before they send it, to find the broker. RocketMQ ignores the last word, which is
    this project's handle.
    """
    handle = deferred_handle(topic, deferred_id)
    words = (_RECALL_VERSION, topic, broker_name, str(due_ms), message_id, handle)
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def parse_recall(topic: str, handle: str) -> int | None:
    """Parse the number of a delayed message; None if the handle is not one of this topic.

    Also accepts the last word alone: handles of releases before 0.2.
    """
    try:
        words = urlsafe_b64decode(handle).decode().split(" ")
    except ValueError:
        words = []
    return parse_deferred(topic, words[-1] if words[:2] == [_RECALL_VERSION, topic] else handle)


def half_handle(topic: str, queue_offset: int, physical_offset: int) -> str:
    """Return the transaction id of a half message in RocketMQ's queue of half messages."""
    return _text(_HALF, crc32(topic.encode()), queue_offset, physical_offset)


def parse_half(topic: str, handle: str) -> tuple[int, int] | None:
    """Parse a transaction id into (queue offset, physical offset).

    Return None if it is not an id of this topic.
    """
    fields = _fields(_HALF, handle)
    is_place = fields is not None and fields[0] == crc32(topic.encode()) and min(fields[1:3]) >= 0
    return (fields[1], fields[2]) if fields is not None and is_place else None


@lru_cache(1_024)
def topic_digest(topic: str) -> bytes:
    """Return the common prefix of all id digests of a topic."""
    return blake2b(topic.encode(), digest_size=TOPIC_DIGEST_SIZE).digest()


def _text(form: struct.Struct, *fields: int) -> str:
    raw = form.pack(*fields, 0)[:-_CRC_SIZE]
    return urlsafe_b64encode(raw + crc32(raw).to_bytes(_CRC_SIZE, "big")).decode().rstrip("=")


def _fields(form: struct.Struct, text: str) -> tuple[int, ...] | None:
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (NotBase64, ValueError):
        return None
    if len(raw) != form.size:
        return None
    fields: tuple[int, ...] = form.unpack(raw)
    return fields if crc32(raw[:-_CRC_SIZE]) == fields[-1] else None
