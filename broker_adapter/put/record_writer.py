"""Batches of messages for the log. The offsets of their records are filled in last.

`broker_adapter.wire.message.encode` handles one record of any shape. This module writes the same layout for
many messages of one queue. It computes the sizes first, and the bytes once the log has assigned positions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import count, repeat
from operator import or_
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.api import OutgoingMessage
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import Version, patch_offsets
from broker_adapter.wire.properties import RECONSUME_TIME, encode_properties, text_of
from broker_adapter.wire.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6, TRANSACTION_MASK
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, MAX_TOPIC_LENGTH, RETRY_PREFIX

#: Fields up to born_timestamp.
_HEAD = struct.Struct(">IIIiiqqiq")
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_TIMES_AND_PREPARED = struct.Struct(">iq")
_CRC_MASK = 0x7FFFFFFF
_I4 = range(-(1 << 31), 1 << 31)
_I8 = range(-(1 << 63), 1 << 63)


class BrokerFields(NamedTuple):
    """Record fields that the broker sets itself.

    `sys_flag`: bits to add. `prepared_offset`: the physical offset of the half message of a committed
    transaction.
    """

    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


NO_FIELDS = BrokerFields()


def is_sent_back(topic: str) -> bool:
    """Return True for a retry or dead-letter topic, which contains messages that consumers sent back."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def retry_fields(topic: str, properties: Mapping[str, str]) -> BrokerFields:
    """Return the record field with the reconsume count, which RocketMQ reads."""
    times = properties.get(RECONSUME_TIME, "") if is_sent_back(topic) else ""
    is_number = times.isascii() and times.isdecimal() and len(times) < 10
    return BrokerFields(reconsume_times=int(times)) if is_number else NO_FIELDS


class RecordBatch:
    """Messages of one queue. `sizes` contains the sizes of their records, and `fill` builds the records.

    This code runs on the master for every message. It stores the messages of a batch by column and builds the
    records in as few Python steps as possible.

    Raises IllegalMessage with BODY_TOO_LARGE, PROPERTIES_INVALID, PROPERTIES_TOO_LONG or FIELD_OUT_OF_RANGE.
    Its text names the first invalid message, and no message of the batch is stored.
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
        own: BrokerFields = NO_FIELDS,
    ) -> None:
        """`own` applies to every message."""
        raw = topic.encode()
        self._version = Version.V1 if len(raw) <= MAX_TOPIC_LENGTH else Version.V2
        self._topic = (
            bytes((len(raw),)) if self._version is Version.V1 else struct.pack(">h", len(raw))
        ) + raw
        self._queue_id = queue_id
        self._born_host, self._store_host = _packed(born_host), _packed(store_host)
        host_bits = (BORN_HOST_V6 if born_host.is_v6 else 0) | (STORE_HOST_V6 if store_host.is_v6 else 0)
        bodies, properties, flags, sys_flags, borns, _ = zip(*messages, strict=True)
        self._lengths = list(map(len, bodies))
        in_range = (
            max(self._lengths) <= max_body_bytes
            and min(flags) in _I4
            and max(flags) in _I4
            and min(sys_flags) in _I4
            and max(sys_flags) in _I4
            and not reduce(or_, sys_flags) & TRANSACTION_MASK
            and min(borns) in _I8
            and max(borns) in _I8
        )
        tails = self._tails_of(properties) if in_range else None
        if tails is None:
            raise self._first_problem(messages, max_body_bytes)
        self._tails = tails
        fixed = _HEAD.size + len(self._born_host) + 8 + len(self._store_host) + 12 + 4
        self.sizes = [fixed + body + len(tail) for body, tail in zip(self._lengths, tails, strict=True)]
        self._bodies: Sequence[bytes] = bodies
        self._crcs = [crc32(body) & _CRC_MASK for body in bodies]
        self._flags: Sequence[int] = flags
        own_bits = host_bits | own.sys_flag
        self._sys_flags = [sys_flag & ~HOST_BITS | own_bits for sys_flag in sys_flags]
        self._times_and_prepared = _TIMES_AND_PREPARED.pack(own.reconsume_times, own.prepared_offset)
        self._borns = [born or now_ms for born in borns]

    def __len__(self) -> int:
        return len(self._bodies)

    def fill(self, queue_offset: int, physical_offsets: Sequence[int], store_timestamp: int) -> list[bytes]:
        """Build the records.

        Message i gets the offset queue_offset + i and the position physical_offsets[i].
        """
        # The fields between head and body: hosts, store timestamp, reconsume count, prepared transaction
        # offset and body length.
        stamp = _LONG.pack(store_timestamp)
        middle = b"".join((self._born_host, stamp, self._store_host, self._times_and_prepared))
        middles = {length: middle + _INT.pack(length) for length in set(self._lengths)}
        heads = map(
            _HEAD.pack,
            self.sizes,
            repeat(int(self._version)),
            self._crcs,
            repeat(self._queue_id),
            self._flags,
            count(queue_offset),
            physical_offsets,
            self._sys_flags,
            self._borns,
        )
        parts = zip(heads, map(middles.__getitem__, self._lengths), self._bodies, self._tails, strict=True)
        return list(map(b"".join, parts))

    def _tails_of(self, properties: Sequence[Mapping[str, str]]) -> list[bytes] | None:
        """Return the encoded topic and properties of each message, or None if a message is invalid.

        Messages of a batch often share their properties.
        """
        tails: list[bytes] = []
        tail, of = b"", None
        try:
            for given in properties:
                if given is not of:
                    tail, of = self._tail(given), given
                tails.append(tail)
        except IllegalMessage:
            return None
        return tails

    def _tail(self, properties: Mapping[str, str]) -> bytes:
        raw = encode_properties(text_of(properties))
        return self._topic + _SHORT.pack(len(raw)) + raw

    def _first_problem(self, messages: Sequence[OutgoingMessage], max_body_bytes: int) -> IllegalMessage:
        for number, (body, properties, flag, sys_flag, born, _) in enumerate(messages):
            try:
                self._tail(properties)
            except IllegalMessage as error:
                return _illegal(number, error.status, error.message)
            if len(body) > max_body_bytes:
                text = f"the body has {len(body)} bytes, more than {max_body_bytes}"
                return _illegal(number, Status.BODY_TOO_LARGE, text)
            if flag not in _I4 or sys_flag not in _I4 or born not in _I8:
                text = "flag, sys_flag or born_timestamp does not fit into its field"
                return _illegal(number, Status.FIELD_OUT_OF_RANGE, text)
            if sys_flag & TRANSACTION_MASK:
                # A message in a queue is neither a half message nor a rollback.
                text = f"sys_flag {sys_flag:#x}: clients may not set the transaction bits"
                return _illegal(number, Status.FIELD_OUT_OF_RANGE, text)
        raise AssertionError("the batch has no invalid message")


class StoredRecords:
    """Records of one queue that another broker has stored. Only their offsets change."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self.sizes = list(map(len, records))
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def fill(self, queue_offset: int, physical_offsets: Sequence[int], store_timestamp: int) -> list[bytes]:
        """Build the records as RecordBatch does, but keep their original store timestamps."""
        filled = []
        for number, (record, offset) in enumerate(zip(self._records, physical_offsets, strict=True)):
            copy = bytearray(record)
            patch_offsets(copy, queue_offset + number, offset)
            filled.append(bytes(copy))
        return filled


def _illegal(number: int, status: Status, problem: str) -> IllegalMessage:
    return IllegalMessage(status, f"message {number}: {problem}")


def _packed(host: Host) -> bytes:
    return host.address + _INT.pack(host.port)
