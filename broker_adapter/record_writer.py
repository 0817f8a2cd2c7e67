"""A batch of messages on its way into the log: records whose offsets are written at the last moment.

`encode` of `broker_adapter.message` is for one record of any shape; this is the same layout for many messages
of one queue, as producers send them: sizes first, and the bytes only when the log has assigned positions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeAlias
from zlib import crc32

from broker_adapter.api import OutgoingMessage
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.host import Host
from broker_adapter.message import ENTRY_HEADER_SIZE, Version
from broker_adapter.properties import encode_properties, text_of
from broker_adapter.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6
from broker_adapter.topic_names import MAX_TOPIC_LENGTH

#: Up to born_timestamp.
_HEAD = struct.Struct(">IIIiiqqiq")
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_CRC_MASK = 0x7FFFFFFF
_I4 = range(-(1 << 31), 1 << 31)
_I8 = range(-(1 << 63), 1 << 63)

#: One message, ready but for what the log decides: crc of the body, flag, sys_flag, born_timestamp, body,
#: topic and properties with their lengths.
_Part: TypeAlias = tuple[int, int, int, int, bytes, bytes]


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
        self._born_host, self._store_host = _packed(born_host), _packed(store_host)
        self._host_bits = (BORN_HOST_V6 if born_host.is_v6 else 0) | (
            STORE_HOST_V6 if store_host.is_v6 else 0
        )
        fixed = _HEAD.size + len(self._born_host) + 8 + len(self._store_host) + 12 + 4
        self._parts: list[_Part] = []
        self.sizes: list[int] = []
        properties: Mapping[str, str] | None = None
        tail = b""
        for body, given, flag, sys_flag, born in messages:
            if given is not properties:  # messages of a batch often share them
                tail, properties = self._tail(given), given
            if len(body) > max_body_bytes:
                text = f"the body has {len(body)} bytes, more than {max_body_bytes}"
                raise self._illegal(Status.BODY_TOO_LARGE, text)
            if flag not in _I4 or sys_flag not in _I4 or born not in _I8:
                text = "flag, sys_flag or born_timestamp does not fit into its field"
                raise self._illegal(Status.FIELD_OUT_OF_RANGE, text)
            sys_flag = sys_flag & ~HOST_BITS | self._host_bits
            self.sizes.append(fixed + len(body) + len(tail))
            self._parts.append((crc32(body) & _CRC_MASK, flag, sys_flag, born or now_ms, body, tail))

    def __len__(self) -> int:
        return len(self._parts)

    def fill(self, queue_offset: int, positions: Sequence[int], store_timestamp: int) -> list[bytes]:
        """The records: message i has queue_offset + i and lies in the entry at positions[i]."""
        pack, pack_size, join = _HEAD.pack, _INT.pack, b"".join
        version, queue_id = int(self._version), self._queue_id
        # The same in all: hosts, times of storing and, unused, consumed again, prepared transaction.
        middle = join((self._born_host, _LONG.pack(store_timestamp), self._store_host, bytes(12)))
        records = []
        for offset, size, pos, (crc, flag, sys_flag, born, body, tail) in zip(
            count(queue_offset), self.sizes, positions, self._parts, strict=False
        ):
            head = pack(size, version, crc, queue_id, flag, offset, pos + ENTRY_HEADER_SIZE, sys_flag, born)
            records.append(join((head, middle, pack_size(len(body)), body, tail)))
        return records

    def _tail(self, properties: Mapping[str, str]) -> bytes:
        try:
            raw = encode_properties(text_of(properties))
        except IllegalMessage as error:
            raise self._illegal(error.status, error.message) from None
        return self._topic + _SHORT.pack(len(raw)) + raw

    def _illegal(self, status: Status, problem: str) -> IllegalMessage:
        return IllegalMessage(status, f"message {len(self._parts)}: {problem}")


def _packed(host: Host) -> bytes:
    return host.address + _INT.pack(host.port)
