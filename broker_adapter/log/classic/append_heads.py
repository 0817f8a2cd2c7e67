"""Heads of appends in a classic log. Pure functions.

An append of several records is atomic. After a crash, or if a master fails during a transfer, the log may
nevertheless end with only the first records of an append. An append therefore starts with an additional
record, its head, which lists the checksums of the other records. If some of them are missing at the end of
the log, the append is incomplete; it was never acknowledged.

A head is a record of the topic `DLEDGER_SYS_APPEND`, marked as a prepared half like all internal records of
this broker, so that no broker delivers it to consumers. Its body:

    0   4   "DLAH"
    4   1   version, 1
    5   4   size of the whole append, including the head; an append never crosses files
    9   4n  CRC32 of each further record, as stored
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, decode, encode, record_size
from broker_adapter.wire.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED

APPEND_TOPIC = "DLEDGER_SYS_APPEND"
# Size of one checksum in a head, in bytes.
SUM_SIZE = 4
_FIXED = struct.Struct(">4sBI")
_MAGIC, _VERSION = b"DLAH", 1
# Last bytes of a head's record: the topic with its length, and the length of empty properties.
_TAIL = bytes((len(APPEND_TOPIC),)) + APPEND_TOPIC.encode() + bytes(2)
# Position of the last byte of sys_flag in a record.
_SYS_FLAG_AT = 39

Buffer = bytes | bytearray | memoryview


class AppendHead(NamedTuple):
    """`size`: bytes of the whole append. `sums`: CRC32 of each record after the head."""

    size: int
    sums: tuple[int, ...]


def head_size(records: int, store_host: Host) -> int:
    """Return the size of the head's record for `records` further records."""
    body_size = _FIXED.size + SUM_SIZE * records
    return record_size(body_size, len(APPEND_TOPIC), 0, v6_hosts=2 if store_host.is_v6 else 0)


def encode_head(records: Sequence[Buffer], store_host: Host, physical_offset: int, stamp_ms: int) -> bytes:
    """Encode the head of these records, which precedes them at `physical_offset` with
    timestamp `stamp_ms`.
    """
    size = head_size(len(records), store_host) + sum(map(len, records))
    sums = struct.pack(f">{len(records)}I", *map(crc32, records))
    message = MessageRecord(
        APPEND_TOPIC,
        _FIXED.pack(_MAGIC, _VERSION, size) + sums,
        physical_offset=physical_offset,
        sys_flag=TRANSACTION_PREPARED,
        born_timestamp=stamp_ms,
        born_host=store_host,
        store_timestamp=stamp_ms,
        store_host=store_host,
    )
    return bytes(encode(message))


def decode_head(record: Buffer) -> AppendHead | None:
    """Decode the head in a complete record. Return None if the record is not a head.

    RocketMQ clients may send to this topic, too. A record is therefore a head only if its born host equals
    its store host (see `RawRecords.is_command`).
    """
    if record[_SYS_FLAG_AT] & TRANSACTION_MASK != TRANSACTION_PREPARED or record[-len(_TAIL) :] != _TAIL:
        return None
    try:
        message = decode(record)
        magic, version, size = _FIXED.unpack_from(message.body)
    except (StoredDataDamaged, struct.error):
        return None
    count, rest = divmod(len(message.body) - _FIXED.size, SUM_SIZE)
    if (magic, version, rest) != (_MAGIC, _VERSION, 0) or message.born_host != message.store_host:
        return None
    return AppendHead(size, struct.unpack_from(f">{count}I", message.body, _FIXED.size)) if count else None


def head_at(data: Buffer, at: int, size: int) -> AppendHead | None:
    """Decode the head in the complete record of `size` bytes at `at`.

    Return None if the record is not a head.
    """
    if data[at + _SYS_FLAG_AT] & TRANSACTION_MASK == TRANSACTION_PREPARED:  # rare
        return decode_head(memoryview(data)[at : at + size])
    return None


class AppendTracker:
    """Follows the records of a log to detect an incomplete append at its end.

    `begin`: physical offset of the head of the incomplete append, or -1 if the last append is complete. If a
    record has a checksum that the head does not list, or if the file ends, another broker has continued the
    log after the incomplete append. The append then counts as complete, because that broker serves its
    records.
    """

    __slots__ = ("_next", "_sums", "begin")

    def __init__(self, before: AppendTracker | None = None) -> None:
        """Create a tracker. It starts with a copy of another tracker's state if one is given."""
        self.begin: int = -1 if before is None else before.begin
        self._sums: tuple[int, ...] = () if before is None else before._sums
        self._next: int = 0 if before is None else before._next

    def add(self, data: Buffer, at: int, size: int, physical_offset: int) -> None:
        """Add the next record of the log: `size` bytes at `at` of `data`."""
        head = head_at(data, at, size)
        if head is not None:
            self.begin, self._sums, self._next = physical_offset, head.sums, 0
        else:
            self.add_plain(data, at, size, 1)

    def add_plain(self, data: Buffer, at: int, size: int, count: int) -> None:
        """Add the next `count` records of the log, of `size` bytes each. None of them is a head."""
        if self._next + count >= len(self._sums):
            self.close()  # either they complete the append, or one of them does not belong to it
        while count and self.begin >= 0:
            matches = crc32(memoryview(data)[at : at + size]) == self._sums[self._next]
            self._next += 1
            if not matches:
                self.close()
            at, count = at + size, count - 1

    def close(self) -> None:
        """End the current append, because it is complete or can no longer be completed."""
        self.begin, self._sums = -1, ()
