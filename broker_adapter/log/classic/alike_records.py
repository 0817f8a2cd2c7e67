"""Finds consecutive records that differ only in numeric fields, body and the text of their properties.

Producers send such records in batches. Comparing their columns costs a fraction of checking each record. All
other records are checked one by one (`record_check`).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from broker_adapter.wire.message import Version
from broker_adapter.wire.sys_flag import HOST_BITS, TRANSACTION_MASK, TRANSACTION_PREPARED

# Fields of a record (V1, IPv4 hosts): magic, sys_flag, size of the body.
_fixed = Struct(">4xI28xi44xi").unpack_from
_SYS_FLAG_END, _BODY_AT = 40, 88
_V1 = int(Version.V1)
_CRC_MASK = 0x7FFFFFFF
# Minimum length of a run. Comparing columns of fewer records costs more than checking each record.
_LEAST = 32
# Number of records in the first comparison. Each further one has four times as many, up to the maximum.
_FIRST, _MOST = 64, 4096

Buffer = bytes | bytearray
Column = npt.NDArray[Any]


def count_alike(data: Buffer, at: int, size: int, physical_offset: int, left: int) -> int:
    """Return the number of complete records from `at` on that have the shape of the first one.

    The first record is valid, has `size` bytes and is at `physical_offset`; `left`: bytes up to the file's
    end. The others are valid, too, if their bodies match their checksums (see `count_intact`). None of them
    is the head of an append unless it is the only one.
    """
    most = min(left, len(data) - at) // size
    if most < _LEAST:
        return 1
    begin, last = data[at : at + 8], at + (_LEAST - 1) * size
    if begin != data[at + size : at + size + 8] or begin != data[last : last + 8]:
        return 1
    magic, sys_flag, body_size = _fixed(data, at)
    if magic != _V1 or sys_flag & HOST_BITS or sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
        return 1
    topic_at = _BODY_AT + body_size
    shape = _shape(size, topic_at, data[at + topic_at])
    first = np.frombuffer(data, shape, 1, at)
    count, longest = 0, _FIRST
    while count < most:
        rows = np.frombuffer(data, shape, min(most - count, longest), at + count * size)
        alike = _leading_alike(rows, first, physical_offset + count * size)
        count += alike
        if alike < len(rows) or data[at + count * size : at + count * size + 8] != begin:
            break
        longest = min(4 * longest, _MOST)
    return count


def _leading_alike(rows: Column, first: Column, physical_offset: int) -> int:
    count = len(rows)
    offsets = physical_offset + rows.itemsize * np.arange(count)
    alike: npt.NDArray[np.bool_] = rows["physical_offset"] == offsets
    for name in ("begin", "sys_flag", "body_size", "topic_size", "properties_size"):
        alike &= rows[name] == first[name]
    return count if alike.all() else int(alike.argmin())


def count_equal_sizes(data: Buffer, at: int, size: int) -> int:
    """Return the number of complete records from `at` on that have the size and magic of the first one.

    The first record has `size` bytes. None of them is the head of an append unless it is the only one.
    """
    most = (len(data) - at) // size
    if most < 2 or data[at : at + 8] != data[at + size : at + size + 8]:
        return 1
    begins = np.ndarray(most, "u8", data, at, (size,))
    kinds = np.ndarray(most, "u1", data, at + _SYS_FLAG_END - 1, (size,)) & TRANSACTION_MASK
    if kinds[0] == TRANSACTION_PREPARED:
        return 1
    equal = (begins == begins[0]) & (kinds != TRANSACTION_PREPARED)
    return most if equal.all() else int(equal.argmin())


def count_intact(data: Buffer, at: int, size: int, count: int) -> int:
    """Return the number of leading records whose bodies match their checksums. `count` records are alike."""
    if count == 1:
        return 1
    _, _, body_size = _fixed(data, at)
    crcs: list[int] = np.ndarray(count, ">u4", data, at + 8, (size,)).tolist()
    with memoryview(data) as view:
        body_at = at + _BODY_AT
        for number, crc in enumerate(crcs):
            if body_size and crc32(view[body_at : body_at + body_size]) & _CRC_MASK != crc:
                return number
            body_at += size
    return count


@lru_cache(maxsize=1024)
def _shape(size: int, topic_at: int, topic_size: int) -> np.dtype[Any]:
    """Return the layout of the compared columns. Fields that must be equal have native byte order."""
    fields = {
        "begin": ("u8", 0),
        "physical_offset": (">i8", 28),
        "sys_flag": ("u4", 36),
        "body_size": ("u4", 84),
        "topic_size": ("u1", topic_at),
        "properties_size": ("u2", topic_at + 1 + topic_size),
    }
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )
