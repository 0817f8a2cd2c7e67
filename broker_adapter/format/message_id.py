"""The two ids of a message in RocketMQ.

The *offset id* is made by the broker and leads straight to the record: store host and commit-log offset. The
*unique key* is made by the producer, travels as the property UNIQ_KEY, and is what producers call the message
id. Both are hexadecimal and may be equally long: nothing in them tells which one it is.

    offset id    address 4 or 16, port 4, physical offset 8                        32 or 56 digits
    unique key   address 4 or 16, process 2, loader 4, milliseconds 4, counter 2   32 or 56 digits

(big endian, upper case; RocketMQ's MessageDecoder and MessageClientIDSetter)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.host import Host

_PORT_AND_OFFSET = struct.Struct(">Iq")
_AFTER_ADDRESS = struct.Struct(">HIIH")
MAX_OFFSET = (1 << 63) - 1


class OffsetId(NamedTuple):
    """What an offset id says: where the record is."""

    store_host: Host
    physical_offset: int


def format_offset_id(store_host: Host, physical_offset: int) -> str:
    """32 digits (IPv6: 56). IllegalMessage (MESSAGE_ID_INVALID) for what does not fit into an id."""
    problem = store_host.problem()
    if problem is None and not 0 <= physical_offset <= MAX_OFFSET:
        problem = f"physical offset {physical_offset} is out of range"
    if problem is not None:
        raise IllegalMessage(Status.MESSAGE_ID_INVALID, problem)
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


class OffsetIds(Sequence[str]):
    """The offset ids of records of one broker, each made when it is asked for: most are never looked at."""

    __slots__ = ("_prefix", "physical_offsets", "store_host")

    def __init__(self, store_host: Host, physical_offsets: Sequence[int]) -> None:
        """IllegalMessage as from `format_offset_id`, but for offsets: those are the log's own."""
        self.store_host = store_host
        self.physical_offsets = physical_offsets
        self._prefix = format_offset_id(store_host, 0)[:-16]

    def __len__(self) -> int:
        return len(self.physical_offsets)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> OffsetIds: ...

    def __getitem__(self, at: int | slice) -> str | OffsetIds:
        if isinstance(at, slice):
            return OffsetIds(self.store_host, self.physical_offsets[at])
        return f"{self._prefix}{self.physical_offsets[at]:016X}"

    def __iter__(self) -> Iterator[str]:
        prefix = self._prefix
        return iter([f"{prefix}{offset:016X}" for offset in self.physical_offsets])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none


def parse_offset_id(text: str) -> OffsetId:
    """Host and offset of an id, in digits of either case. IllegalMessage (MESSAGE_ID_INVALID) otherwise."""
    if len(text) not in (32, 56):
        raise _invalid(text, f"it has {len(text)} digits, not 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise _invalid(text, "not all of it is hexadecimal") from None
    if 2 * len(raw) != len(text):  # fromhex leaves blanks out
        raise _invalid(text, "not all of it is hexadecimal")
    address = raw[: -_PORT_AND_OFFSET.size]
    port, offset = _PORT_AND_OFFSET.unpack_from(raw, len(address))
    host = Host(address, port)
    if (problem := host.problem()) is not None:
        raise _invalid(text, problem)
    if offset < 0:
        raise _invalid(text, f"physical offset {offset} is negative")
    return OffsetId(host, offset)


def format_unique_key(address: bytes, process: int, loader: int, milliseconds: int, counter: int) -> str:
    """The key that a producer gives its message before it sends it: 32 digits (IPv6: 56).

    `process` is the producer's process id, `loader` any number that tells producers of one process apart,
    `milliseconds` those since the beginning of the month, `counter` grows by one with every key. Of each the
    low bits are taken. ValueError for an address that has not 4 or 16 bytes.
    """
    if len(address) not in (4, 16):
        raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
    rest = _AFTER_ADDRESS.pack(
        process & 0xFFFF, loader & 0xFFFFFFFF, milliseconds & 0xFFFFFFFF, counter & 0xFFFF
    )
    return (address + rest).hex().upper()


def _invalid(text: str, problem: str) -> IllegalMessage:
    return IllegalMessage(Status.MESSAGE_ID_INVALID, f"{text[:64]!r} is no message id: {problem}")
