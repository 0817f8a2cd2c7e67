"""A batch of messages on its way into the log: records whose offsets are written at the last moment.

`encode` of `broker_adapter.message` is for one record of any shape; this is the same layout for many messages
of one queue, as producers send them: sizes first, and the bytes only when the log has assigned positions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from broker_adapter.api import OutgoingMessage
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.host import Host
from broker_adapter.message import ENTRY_HEADER_SIZE, Version
from broker_adapter.properties import encode_properties, join_properties
from broker_adapter.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6
from broker_adapter.topic_names import MAX_TOPIC_LENGTH

_CRC_MASK = 0x7FFFFFFF
_I4 = range(-(1 << 31), 1 << 31)
_I8 = range(-(1 << 63), 1 << 63)


class _Part(NamedTuple):
    """One message, ready but for what the log decides."""

    size: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    body: bytes
    tail: bytes  # topic and properties with their lengths


class RecordBatch:
    """Messages of one queue. `sizes` are those of their records; `fill` makes the records.

    IllegalMessage with BODY_TOO_LARGE, PROPERTIES_INVALID, PROPERTIES_TOO_LONG or FIELD_OUT_OF_RANGE names
    the first message that is wrong: then none of the batch is stored.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[OutgoingMessage],
        *,
        born_host: Host,
        store_host: Host,
        now_ms: int,
        max_body_bytes: int,
    ) -> None:
        raw = topic.encode()
        self._version = Version.V1 if len(raw) <= MAX_TOPIC_LENGTH else Version.V2
        self._topic = (
            bytes((len(raw),)) if self._version is Version.V1 else struct.pack(">h", len(raw))
        ) + raw
        self._queue_id = queue_id
        self._born_host, self._store_host = born_host, store_host
        self._host_bits = (BORN_HOST_V6 if born_host.is_v6 else 0) | (
            STORE_HOST_V6 if store_host.is_v6 else 0
        )
        born, store = len(born_host.address), len(store_host.address)
        self._fixed = struct.Struct(f">IIIiiqqiq{born}siq{store}siiqi")
        self._tails: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._parts = [self._part(i, m, now_ms, max_body_bytes) for i, m in enumerate(messages)]
        self.sizes = [part.size for part in self._parts]

    def __len__(self) -> int:
        return len(self._parts)

    def fill(self, queue_offset: int, positions: Sequence[int], store_timestamp: int) -> list[bytes]:
        """The records: message i has queue_offset + i and lies in the entry at positions[i]."""
        pack, version, queue_id = self._fixed.pack, self._version, self._queue_id
        born_address, born_port = self._born_host
        store_address, store_port = self._store_host
        join = b"".join
        records = []
        offset = queue_offset
        for part, pos in zip(self._parts, positions, strict=True):
            size, crc, flag, sys_flag, born, body, tail = part
            head = pack(
                size,
                version,
                crc,
                queue_id,
                flag,
                offset,
                pos + ENTRY_HEADER_SIZE,
                sys_flag,
                born,
                born_address,
                born_port,
                store_timestamp,
                store_address,
                store_port,
                0,
                0,
                len(body),
            )
            records.append(join((head, body, tail)))
            offset += 1
        return records

    def _part(self, number: int, message: OutgoingMessage, now_ms: int, max_body_bytes: int) -> _Part:
        body = message.body
        if len(body) > max_body_bytes:
            text = f"message {number}: the body has {len(body)} bytes, more than {max_body_bytes}"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        born = message.born_timestamp or now_ms
        if message.flag not in _I4 or message.sys_flag not in _I4 or born not in _I8:
            text = f"message {number}: flag, sys_flag or born_timestamp does not fit into its field"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        tail = self._tail(message)
        size = self._fixed.size + len(body) + len(tail)
        sys_flag = message.sys_flag & ~HOST_BITS | self._host_bits
        return _Part(size, crc32(body) & _CRC_MASK, message.flag, sys_flag, born, body, tail)

    def _tail(self, message: OutgoingMessage) -> bytes:
        """Messages of a batch often differ in nothing but their bodies."""
        key = tuple(message.properties.items())
        tail = self._tails.get(key)
        if tail is None:
            properties = encode_properties(join_properties(message.properties))
            tail = self._topic + struct.pack(">h", len(properties)) + properties
            if len(self._tails) < 64:
                self._tails[key] = tail
        return tail
