"""A batch of messages on its way into the log: records whose offsets are written at the last moment.

`encode` of `broker_adapter.format.message` is for one record of any shape; this is the same layout for many
messages of one queue, as producers send them: sizes first, and the bytes only when the log has assigned
positions.
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
from broker_adapter.format.host import Host
from broker_adapter.format.message import Version, patch_offsets
from broker_adapter.format.properties import encode_properties, text_of
from broker_adapter.format.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6, TRANSACTION_MASK
from broker_adapter.format.topic_names import MAX_TOPIC_LENGTH

#: Up to born_timestamp.
_HEAD = struct.Struct(">IIIiiqqiq")
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_TIMES_AND_PREPARED = struct.Struct(">iq")
_CRC_MASK = 0x7FFFFFFF
_I4 = range(-(1 << 31), 1 << 31)
_I8 = range(-(1 << 63), 1 << 63)


class BrokerFields(NamedTuple):
    """What of a record the broker itself says. `sys_flag`: bits that it adds. `prepared_offset`: the physical
    offset of the half message that a committed message was."""

    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


NO_FIELDS = BrokerFields()


class RecordBatch:
    """Messages of one queue. `sizes` are those of their records; `fill` makes the records.

    Messages are kept in columns and records made with as few steps of Python as can be: on the master all
    messages pass here, and those of a batch differ in little but their bodies.

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
        own: BrokerFields = NO_FIELDS,
    ) -> None:
        """`own`: of each of them."""
        raw = topic.encode()
        self._version = Version.V1 if len(raw) <= MAX_TOPIC_LENGTH else Version.V2
        self._topic = (
            bytes((len(raw),)) if self._version is Version.V1 else struct.pack(">h", len(raw))
        ) + raw
        self._queue_id = queue_id
        self._born_host, self._store_host = _packed(born_host), _packed(store_host)
        host_bits = (BORN_HOST_V6 if born_host.is_v6 else 0) | (STORE_HOST_V6 if store_host.is_v6 else 0)
        bodies, properties, flags, sys_flags, borns = zip(*messages, strict=True)
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
        """The records: message i has queue_offset + i and lies at physical_offsets[i]."""
        # Between head and body: hosts, times of storing and consumed again, prepared transaction; the length
        # of the body.
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
        """Topic and properties of each with their lengths; messages of a batch often share them. None: one of
        them is wrong."""
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
        for number, (body, properties, flag, sys_flag, born) in enumerate(messages):
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
                # A message with a place in a queue is no half message and none that was rolled back.
                text = f"sys_flag {sys_flag:#x}: the bits of transactions are not for clients"
                return _illegal(number, Status.FIELD_OUT_OF_RANGE, text)
        raise AssertionError("no message of the batch is wrong")


class StoredRecords:
    """Records of one queue that another broker has stored: all of them stays as it is but their offsets."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self.sizes = list(map(len, records))
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def fill(self, queue_offset: int, physical_offsets: Sequence[int], store_timestamp: int) -> list[bytes]:
        """As of RecordBatch, but with the times at which they were stored there."""
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
