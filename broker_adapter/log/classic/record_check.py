"""Fast validation of CommitLog records. Pure functions.

The checks are the same as in RocketMQ's recovery (checkMessageAndReturnSize). In addition, a record must be
at the physical offset that it states.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.wire.message import BLANK_MAGIC, MIN_RECORD_SIZE, Version, max_record_size
from broker_adapter.wire.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6

MAX_RECORD_BYTES = max_record_size(MAX_BODY_BYTES)
# Size of a record up to its sys_flag.
HEAD_SIZE = 40
# Maximum size up to its store timestamp.
MAX_HEAD_SIZE = 48 + 20 + 8
_SYS_FLAG_AT = 36


def _fixed_part(born: int, store: int) -> struct.Struct:
    """Build the struct that reads magic, body CRC, physical offset, store timestamp and body size."""
    return struct.Struct(f">4xII16xq4x8x{born + 4}xq{store + 4}x4x8xi")


# Fields before the body, by the host bits of sys_flag.
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
# Unit of atomic disk writes, in bytes.
SECTOR = 512

Buffer = bytes | bytearray | memoryview


class RecordHead(NamedTuple):
    """Fields of a record. `store_timestamp` in ms."""

    size: int
    physical_offset: int
    store_timestamp: int


def is_blank(data: Buffer, at: int, left: int) -> bool:
    """True if a blank starts at `at`.

    `left`: number of bytes up to the end of the file. `data` has at least 8 of them.
    """
    return left < _SIZE_AND_MAGIC.size or _SIZE_AND_MAGIC.unpack_from(data, at)[1] == BLANK_MAGIC


def claimed_size(data: Buffer, at: int, left: int) -> int:
    """Return the size field of the record at `at`.

    Raises StoredDataDamaged if its size or magic is impossible.
    """
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic not in _MAGICS:
        raise _damaged(Status.RECORD_MAGIC, f"magic {magic:#010x} is not the magic of a message")
    if not MIN_RECORD_SIZE < size <= MAX_RECORD_BYTES:
        raise _damaged(Status.RECORD_LENGTHS, f"invalid record size {size}")
    if size > left:
        raise _damaged(
            Status.RECORD_TRUNCATED, f"the record is {size} bytes long, but only {left} bytes remain"
        )
    return int(size)


def check_record(data: Buffer, at: int, physical_offset: int, left: int) -> RecordHead:
    """Check the record at `at` in `data`, which must state `physical_offset`. `left`: bytes up to the file's
    end.

    Raises StoredDataDamaged: RECORD_MAGIC, RECORD_LENGTHS, RECORD_TRUNCATED, RECORD_BODY_CRC or RECORD_FIELD.
    """
    left = min(left, len(data) - at)
    if left < MIN_RECORD_SIZE:
        raise _damaged(Status.RECORD_TRUNCATED, f"the remaining {left} bytes are too short for a record")
    size = claimed_size(data, at, left)
    (sys_flag,) = _INT.unpack_from(data, at + _SYS_FLAG_AT)
    fixed = _FIXED[sys_flag & HOST_BITS]
    end, body_at = at + size, at + fixed.size
    if body_at > end:
        raise _damaged(Status.RECORD_LENGTHS, f"the record size {size} is too small for the hosts")
    magic, body_crc, offset, stamp, body_size = fixed.unpack_from(data, at)
    if offset != physical_offset:
        raise _damaged(Status.RECORD_FIELD, f"the record at offset {physical_offset} states offset {offset}")
    topic_at = body_at + body_size
    topic_field = 1 if magic == Version.V1.value else 2
    if body_size < 0 or topic_at + topic_field + 2 > end:
        raise _damaged(
            Status.RECORD_LENGTHS, f"a body of {body_size} bytes does not fit in a record of {size}"
        )
    topic_size = data[topic_at] if topic_field == 1 else _SHORT.unpack_from(data, topic_at)[0]
    properties_at = topic_at + topic_field + topic_size
    if properties_at + 2 > end or properties_at + 2 + _SHORT.unpack_from(data, properties_at)[0] != end:
        raise _damaged(Status.RECORD_LENGTHS, f"the parts of the record do not add up to {size} bytes")
    if body_size and crc32(data[body_at:topic_at]) & _CRC_MASK != body_crc:
        raise _damaged(Status.RECORD_BODY_CRC, f"the body does not match its CRC {body_crc:#010x}")
    return RecordHead(size, offset, stamp)


def store_timestamp(record: Buffer) -> int:
    """Read the store timestamp of a valid record. Return 0 if the data is too short."""
    try:
        (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
        more = _V6_MORE if sys_flag & BORN_HOST_V6 else 0
        (stamp,) = _TIMESTAMP.unpack_from(record, _BORN_HOST_AT + 8 + more)
    except struct.error:
        return 0
    return int(stamp)


def lacks_sector(data: Buffer, at: int, size: int, within: int) -> bool:
    """True if a sector after the body of a valid record contains only zeros.

    A power failure can lose such a sector, and no checksum covers topic and properties. `within`: position of
    the record in its file. `data` must extend to the end of the record's last sector.
    """
    (sys_flag,) = _INT.unpack_from(data, at + _SYS_FLAG_AT)
    fixed = _FIXED[sys_flag & HOST_BITS]
    topic_at = fixed.size + fixed.unpack_from(data, at)[4]
    # The length of empty properties is zero anyway.
    end = size if any(data[at + size - 2 : at + size]) else size - 2
    first = (within + topic_at) // SECTOR * SECTOR - within
    for sector in range(first, end, SECTOR):
        low = max(0, sector)
        if not any(data[at + low : at + sector + SECTOR]):
            return True
    return False


def _damaged(status: Status, problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(status, problem)
