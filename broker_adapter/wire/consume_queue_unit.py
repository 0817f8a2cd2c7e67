"""The units of a ConsumeQueue: 20 bytes for each message of a queue, in the queue's order.

    0    8    physical offset of the message's record
    8    4    size of that record
    12   8    tag code: hash of the tag (`tag_code`), 0 without one; for scheduled messages the time when they
              are due, in milliseconds

(big endian, signed; RocketMQ's ConsumeQueue). The message with queue offset n is unit n, which starts at byte
n * 20 of the queue's files, read as one stream. Bytes that were never written are zeros. No record has size
0, so a unit of zeros is not a message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged

UNIT_SIZE = 20
#: Units in one file of RocketMQ, which has 6,000,000 bytes.
UNITS_PER_FILE = 300_000

_UNIT = struct.Struct(">qiq")
_pack = _UNIT.pack

Buffer = bytes | bytearray | memoryview


class ConsumeQueueUnit(NamedTuple):
    """The position of one message of a queue in the CommitLog, and its tag code."""

    physical_offset: int
    size: int
    tag_code: int

    def is_message(self) -> bool:
        """Return True if the unit can point to a message, that is, if it was written, is no filler, and has
        neither a negative offset nor a negative size.
        """
        return self.physical_offset >= 0 and 0 < self.size < FILLER_SIZE


FILLER_SIZE = 0x7FFFFFFF
#: Maximum number of consecutive offsets without a message. A larger gap counts as damage.
MAX_FILLERS = 65_536
#: The unit that fills a queue up to its first message, if that is not at queue offset 0.
FILLER = ConsumeQueueUnit(0, FILLER_SIZE, 0)


def encode_unit(unit: ConsumeQueueUnit) -> bytes:
    """Return the 20 bytes of a unit.

    Raises ValueError if a field is out of range, which is a bug.
    """
    return encode_units((unit,))


def encode_units(units: Iterable[ConsumeQueueUnit | tuple[int, int, int]]) -> bytes:
    """Return the bytes of consecutive units, 20 each.

    Also accepts tuples of the three fields. Raises ValueError if a field is out of range.
    """
    try:
        return b"".join(starmap(_pack, units))
    except struct.error as error:
        raise ValueError(f"a unit does not fit into {UNIT_SIZE} bytes: {error}") from None


def decode_unit(data: Buffer, at: int = 0) -> ConsumeQueueUnit:
    """Decode the unit at byte `at` without validation.

    Raises StoredDataDamaged (UNIT_DAMAGED) if bytes are missing.
    """
    if not 0 <= at <= len(data) - UNIT_SIZE:
        raise StoredDataDamaged(Status.UNIT_DAMAGED, f"no complete unit starts at byte {at} of {len(data)}")
    return ConsumeQueueUnit._make(_UNIT.unpack_from(data, at))


def decode_units(data: Buffer) -> list[ConsumeQueueUnit]:
    """Decode all units in `data` without validation.

    Raises StoredDataDamaged (UNIT_DAMAGED) unless `data` consists of whole units.
    """
    if len(data) % UNIT_SIZE:
        raise StoredDataDamaged(
            Status.UNIT_DAMAGED, f"{len(data)} bytes are not a multiple of the unit size {UNIT_SIZE}"
        )
    return list(map(ConsumeQueueUnit._make, _UNIT.iter_unpack(data)))


def position_of(queue_offset: int) -> int:
    """Return the byte position, in the queue's stream, of the unit for a queue offset.

    Raises ValueError if the offset is negative.
    """
    if queue_offset < 0:
        raise ValueError(f"queue offset {queue_offset} is negative")
    return queue_offset * UNIT_SIZE


def queue_offset_at(position: int) -> int:
    """Return the queue offset of the unit that starts at this byte.

    Raises ValueError if no unit starts there.
    """
    if position < 0 or position % UNIT_SIZE:
        raise ValueError(f"no unit starts at byte {position}")
    return position // UNIT_SIZE


def locate(queue_offset: int, units_per_file: int = UNITS_PER_FILE) -> tuple[int, int]:
    """Return (start of the file, byte within the file) of a unit. The name of a file is its start, in 20
    digits.

    Raises ValueError if the offset is negative or the number of units per file is not positive.
    """
    if units_per_file < 1:
        raise ValueError(f"a file cannot contain {units_per_file} units")
    start, within = divmod(position_of(queue_offset), units_per_file * UNIT_SIZE)
    return start * units_per_file * UNIT_SIZE, within
