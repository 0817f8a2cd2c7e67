"""The units of a ConsumeQueue: 20 bytes for each message of a queue, in the queue's order.

    0    8    physical offset of the message's record
    8    4    size of that record
    12   8    tag code: hash of the tag (`tag_code`), 0 without one; for scheduled messages the time when they
              are due, in milliseconds

(big endian, signed; RocketMQ's ConsumeQueue). The message with queue offset n is unit n: it begins at n * 20
of the stream that the queue's files are pieces of. Bytes that were never written are zeros, and no record has
size 0, so that a unit of zeros is no message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged

UNIT_SIZE = 20
#: RocketMQ's file holds this many units: 6,000,000 bytes.
UNITS_PER_FILE = 300_000

_UNIT = struct.Struct(">qiq")
_pack = _UNIT.pack

Buffer = bytes | bytearray | memoryview


class ConsumeQueueUnit(NamedTuple):
    """Where one message of a queue is, and what its tag hashes to."""

    physical_offset: int
    size: int
    tag_code: int

    def is_message(self) -> bool:
        """Whether this can point to a message: neither unwritten nor a filler, and nothing is negative."""
        return self.physical_offset >= 0 and 0 < self.size < FILLER_SIZE


FILLER_SIZE = 0x7FFFFFFF
#: So many offsets in a row may be without a message. A message that is further away is not believed.
MAX_FILLERS = 65_536
#: What the units before the first one of a queue are that does not begin at queue offset 0.
FILLER = ConsumeQueueUnit(0, FILLER_SIZE, 0)


def encode_unit(unit: ConsumeQueueUnit) -> bytes:
    """The 20 bytes of a unit. ValueError if a field does not fit: units are made by the broker itself."""
    return encode_units((unit,))


def encode_units(units: Iterable[ConsumeQueueUnit | tuple[int, int, int]]) -> bytes:
    """The bytes of units that follow each other, 20 each; tuples of the three fields will do. ValueError."""
    try:
        return b"".join(starmap(_pack, units))
    except struct.error as error:
        raise ValueError(f"a unit does not fit into {UNIT_SIZE} bytes: {error}") from None


def decode_unit(data: Buffer, at: int = 0) -> ConsumeQueueUnit:
    """The unit that begins at byte `at`, as it is. StoredDataDamaged (UNIT_DAMAGED) if bytes are missing."""
    if not 0 <= at <= len(data) - UNIT_SIZE:
        raise StoredDataDamaged(Status.UNIT_DAMAGED, f"no unit at byte {at} of {len(data)}")
    return ConsumeQueueUnit._make(_UNIT.unpack_from(data, at))


def decode_units(data: Buffer) -> list[ConsumeQueueUnit]:
    """All units in `data`, as they are. StoredDataDamaged (UNIT_DAMAGED) unless they are whole units."""
    if len(data) % UNIT_SIZE:
        raise StoredDataDamaged(
            Status.UNIT_DAMAGED, f"{len(data)} bytes are not a whole number of units of {UNIT_SIZE}"
        )
    return list(map(ConsumeQueueUnit._make, _UNIT.iter_unpack(data)))


def position_of(queue_offset: int) -> int:
    """The byte of the queue's stream at which the unit of a queue offset begins. ValueError if negative."""
    if queue_offset < 0:
        raise ValueError(f"queue offset {queue_offset} is negative")
    return queue_offset * UNIT_SIZE


def queue_offset_at(position: int) -> int:
    """The queue offset whose unit begins at this byte. ValueError unless a unit begins there."""
    if position < 0 or position % UNIT_SIZE:
        raise ValueError(f"no unit begins at byte {position}")
    return position // UNIT_SIZE


def locate(queue_offset: int, units_per_file: int = UNITS_PER_FILE) -> tuple[int, int]:
    """(start of the file, byte in the file) of a unit. A file's start, in 20 digits, is its name.

    ValueError for a negative offset or a file without units.
    """
    if units_per_file < 1:
        raise ValueError(f"a file of {units_per_file} units")
    start, within = divmod(position_of(queue_offset), units_per_file * UNIT_SIZE)
    return start * units_per_file * UNIT_SIZE, within
