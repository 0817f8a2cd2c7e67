"""The two ids of a message in RocketMQ.

The *offset id* is created by the broker and locates the record: store host and commit-log offset. The *unique
key* is created by the producer and stored in the property UNIQ_KEY; producers call it the message id. Both
are hexadecimal and may have the same length, so their form does not distinguish them.

Layouts (big endian, upper case; RocketMQ's MessageDecoder and MessageClientIDSetter):

    offset id    address 4 or 16, port 4, physical offset 8                        32 or 56 digits
    unique key   address 4 or 16, process 2, loader 4, milliseconds 4, counter 2   32 or 56 digits
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.wire.host import Host

_PORT_AND_OFFSET = struct.Struct(">Iq")
_AFTER_ADDRESS = struct.Struct(">HIIH")
MAX_OFFSET = (1 << 63) - 1


class OffsetId(NamedTuple):
    """A decoded offset id, which locates a record."""

    store_host: Host
    physical_offset: int


def format_offset_id(store_host: Host, physical_offset: int) -> str:
    """Return an offset id of 32 digits, or 56 for IPv6.

    Raises IllegalMessage (MESSAGE_ID_INVALID) if a part is out of range.
    """
    problem = store_host.problem()
    if problem is None and not 0 <= physical_offset <= MAX_OFFSET:
        problem = f"physical offset {physical_offset} is out of range"
    if problem is not None:
        raise IllegalMessage(Status.MESSAGE_ID_INVALID, problem)
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Parse an offset id in upper or lower case.

    Raises IllegalMessage (MESSAGE_ID_INVALID) if the text is not an offset id.
    """
    if len(text) not in (32, 56):
        raise _invalid(text, f"it has {len(text)} digits, not 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise _invalid(text, "it is not hexadecimal") from None
    if 2 * len(raw) != len(text):  # fromhex skips blanks
        raise _invalid(text, "it is not hexadecimal")
    address = raw[: -_PORT_AND_OFFSET.size]
    port, offset = _PORT_AND_OFFSET.unpack_from(raw, len(address))
    host = Host(address, port)
    if (problem := host.problem()) is not None:
        raise _invalid(text, problem)
    if offset < 0:
        raise _invalid(text, f"physical offset {offset} is negative")
    return OffsetId(host, offset)


def format_unique_key(address: bytes, process: int, loader: int, milliseconds: int, counter: int) -> str:
    """Return the key that a producer assigns to a message before sending it. It has 32 digits, or 56 for
    IPv6.

    `process`: the producer's process id. `loader`: any number that distinguishes producers of one process.
    `milliseconds`: time since the start of the month. `counter`: increases by one with each key. Only the low
    bits of each number are used. Raises ValueError unless the address has 4 or 16 bytes.
    """
    if len(address) not in (4, 16):
        raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
    rest = _AFTER_ADDRESS.pack(
        process & 0xFFFF, loader & 0xFFFFFFFF, milliseconds & 0xFFFFFFFF, counter & 0xFFFF
    )
    return (address + rest).hex().upper()


def _invalid(text: str, problem: str) -> IllegalMessage:
    return IllegalMessage(Status.MESSAGE_ID_INVALID, f"{text[:64]!r} is not a message id: {problem}")
