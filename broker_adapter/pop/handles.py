"""The texts by which clients name what they were given: receipt handles, recall handles, transaction ids.

A receipt handle says which queue of which topic, which offset and which pop; the group is not in it, as every
request that carries one names its group. The checksum is for what was cut or mistyped, not against forgers.
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
_TOPIC_DIGEST = 6


class Receipt(NamedTuple):
    queue_id: int
    offset: int
    pop: int


def receipt_handle(topic: str, queue_id: int, offset: int, pop: int) -> str:
    return _text(_RECEIPT, crc32(topic.encode()), queue_id, offset, pop)


def parse_receipt(topic: str, handle: str) -> Receipt | None:
    """None for what is no handle of this topic."""
    fields = _fields(_RECEIPT, handle)
    if fields is None or fields[0] != crc32(topic.encode()):
        return None
    return Receipt(*fields[1:4])


def deferred_handle(topic: str, deferred_id: int) -> str:
    """Of a delayed or half message: its recall handle or transaction id."""
    return _text(_DEFERRED, crc32(topic.encode()), deferred_id)


def parse_deferred(topic: str, handle: str) -> int | None:
    """The number of a deferred message; None for what is no handle of this topic."""
    fields = _fields(_DEFERRED, handle)
    return None if fields is None or fields[0] != crc32(topic.encode()) else fields[1]


def half_handle(topic: str, queue_offset: int, physical_offset: int) -> str:
    """The transaction id of a half message that has a place in a queue of such."""
    return _text(_HALF, crc32(topic.encode()), queue_offset, physical_offset)


def parse_half(topic: str, handle: str) -> tuple[int, int] | None:
    """(queue offset, physical offset); None for what is no such transaction id of this topic."""
    fields = _fields(_HALF, handle)
    is_place = fields is not None and fields[0] == crc32(topic.encode()) and min(fields[1:3]) >= 0
    return (fields[1], fields[2]) if fields is not None and is_place else None


@lru_cache(1_024)
def topic_digest(topic: str) -> bytes:
    """What all digests of ids in a topic begin with."""
    return blake2b(topic.encode(), digest_size=_TOPIC_DIGEST).digest()


def id_digest(topic: str, message_id: str) -> bytes:
    """16 bytes that stand for a message id in a topic."""
    pair = blake2b(f"{topic}\0{message_id}".encode(), digest_size=16 - _TOPIC_DIGEST)
    return topic_digest(topic) + pair.digest()


def first_id_digest(topic: str, message_id: str) -> bytes:
    """As digests were first: what was sent before this node was upgraded is known by it for a while."""
    return blake2b(f"{topic}\0{message_id}".encode(), digest_size=16).digest()


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
