"""Whether bytes are a record of the CommitLog, as quickly as that can be told. Pure.

As strict as RocketMQ's own recovery (checkMessageAndReturnSize) and stricter in one thing: a record has to be
at the physical offset that it names.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.message import BLANK_MAGIC, MIN_RECORD_SIZE, Version, max_record_size
from broker_adapter.format.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6

MAX_RECORD_BYTES = max_record_size(MAX_BODY_BYTES)
#: A record's bytes up to its sys_flag.
HEAD_SIZE = 40
#: ... and up to its store timestamp.
MAX_HEAD_SIZE = 48 + 20 + 8
_SYS_FLAG_AT = 36


def _fixed_part(born: int, store: int) -> struct.Struct:
    """Magic, body crc, physical offset, store timestamp and the size of the body."""
    return struct.Struct(f">4xII16xq4x8x{born + 4}xq{store + 4}x4x8xi")


#: By the host bits of sys_flag, up to the body.
_FIXED = {
    0: _fixed_part(4, 4),
    BORN_HOST_V6: _fixed_part(16, 4),
    STORE_HOST_V6: _fixed_part(4, 16),
    HOST_BITS: _fixed_part(16, 16),
}
_MAGICS = frozenset(version.value for version in Version)
_SIZE_AND_MAGIC = struct.Struct(">II")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_TIMESTAMP = struct.Struct(">q")
_BORN_HOST_AT, _V6_MORE, _CRC_MASK = 48, 12, 0x7FFFFFFF
#: A disk writes so many bytes whole or not at all.
SECTOR = 512

Buffer = bytes | bytearray | memoryview


class Head(NamedTuple):
    """What a record says of itself. `store_timestamp` in ms."""

    size: int
    physical_offset: int
    store_timestamp: int


def is_blank(data: Buffer, at: int, left: int) -> bool:
    """Whether the rest of the file is blank. `left`: up to the file's end; `data` has 8 of these bytes."""
    return left < _SIZE_AND_MAGIC.size or _SIZE_AND_MAGIC.unpack_from(data, at)[1] == BLANK_MAGIC


def claimed_size(data: Buffer, at: int, left: int) -> int:
    """The size that a record at `at` claims to have. StoredDataDamaged if none has it, or not here."""
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic not in _MAGICS:
        raise _damaged(Status.RECORD_MAGIC, f"magic {magic:#010x} is none of a message")
    if not MIN_RECORD_SIZE < size <= MAX_RECORD_BYTES:
        raise _damaged(Status.RECORD_LENGTHS, f"no record has {size} bytes")
    if size > left:
        raise _damaged(Status.RECORD_TRUNCATED, f"a record of {size} bytes, {left} bytes before the end")
    return int(size)


def check_record(data: Buffer, at: int, physical_offset: int, left: int) -> Head:
    """The record at `at` of `data`, where the log has `physical_offset`. `left`: bytes up to the file's end.

    StoredDataDamaged with RECORD_MAGIC, RECORD_LENGTHS, RECORD_TRUNCATED, RECORD_BODY_CRC or RECORD_FIELD."""
    left = min(left, len(data) - at)
    if left < MIN_RECORD_SIZE:
        raise _damaged(Status.RECORD_TRUNCATED, f"{left} bytes are no record")
    size = claimed_size(data, at, left)
    (sys_flag,) = _INT.unpack_from(data, at + _SYS_FLAG_AT)
    fixed = _FIXED[sys_flag & HOST_BITS]
    end, body_at = at + size, at + fixed.size
    if body_at > end:
        raise _damaged(Status.RECORD_LENGTHS, f"{size} bytes leave no room for the hosts")
    magic, body_crc, offset, stamp, body_size = fixed.unpack_from(data, at)
    if offset != physical_offset:
        raise _damaged(Status.RECORD_FIELD, f"a record of offset {offset} at {physical_offset}")
    topic_at = body_at + body_size
    topic_field = 1 if magic == Version.V1.value else 2
    if body_size < 0 or topic_at + topic_field + 2 > end:
        raise _damaged(Status.RECORD_LENGTHS, f"a body of {body_size} bytes in a record of {size}")
    topic_size = data[topic_at] if topic_field == 1 else _SHORT.unpack_from(data, topic_at)[0]
    properties_at = topic_at + topic_field + topic_size
    if properties_at + 2 > end or properties_at + 2 + _SHORT.unpack_from(data, properties_at)[0] != end:
        raise _damaged(Status.RECORD_LENGTHS, f"the parts do not add up to {size} bytes")
    if body_size and crc32(data[body_at:topic_at]) & _CRC_MASK != body_crc:
        raise _damaged(Status.RECORD_BODY_CRC, f"body crc {body_crc:#010x} is not that of the body")
    return Head(size, offset, stamp)


def store_timestamp(record: Buffer) -> int:
    """Of a record that is known to be one; 0: it is too short."""
    try:
        (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
        more = _V6_MORE if sys_flag & BORN_HOST_V6 else 0
        (stamp,) = _TIMESTAMP.unpack_from(record, _BORN_HOST_AT + 8 + more)
    except struct.error:
        return 0
    return int(stamp)


def lacks_sector(data: Buffer, at: int, size: int, within: int) -> bool:
    """Whether a sector behind the body has nothing but zeros, though the record at `at` of `data` looks
    whole: a loss of power has left it out, and no checksum covers topic and properties.

    `within`: where the record lies in its file; `data` has it up to the end of its last sector."""
    (sys_flag,) = _INT.unpack_from(data, at + _SYS_FLAG_AT)
    fixed = _FIXED[sys_flag & HOST_BITS]
    topic_at = fixed.size + fixed.unpack_from(data, at)[4]
    # The size of no properties is zeros in any case.
    end = size if any(data[at + size - 2 : at + size]) else size - 2
    first = (within + topic_at) // SECTOR * SECTOR - within
    for sector in range(first, end, SECTOR):
        low = max(0, sector)
        if not any(data[at + low : at + sector + SECTOR]):
            return True
    return False


def _damaged(status: Status, problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(status, problem)
