"""Broker interface of the replicated log, in which each record is the body of an entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

from broker_adapter.log.protocol import Fill, Piece, Places
from broker_adapter.wire.message import MessageRecord
from dledger import AppendOutcome, AppliedEntry, Assigned, EntryRun
from dledger.core.values import ENTRY_HEADER_SIZE

# Header fields of an entry: magic, size, index, term, position.
_unpack_entry = Struct(">iiqqq").unpack_from
_position = Struct(">24xq").unpack_from
_NORMAL_ENTRY = 1  # other magics are internal to the log


class AppendNode(Protocol):
    """The part of `dledger.NodeServer` that appends need."""

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Callable[[Assigned], Sequence[bytes]],
        *,
        expected: tuple[int, int],
        timeout: float | None = None,
    ) -> asyncio.Future[AppendOutcome]: ...

    def cluster_time_ms(self) -> int: ...

    @property
    def steps_ms(self) -> int: ...


class BodyNode(Protocol):
    """The part of `dledger.NodeServer` that reads need."""

    @property
    def begin_pos(self) -> int: ...

    def read_bodies(self, spans: Sequence[tuple[int, int]]) -> list[bytes]: ...

    def body_at(self, pos: int) -> bytes: ...


class ReplicatedAppends:
    """The appending side of the replicated log. Implements AppendLog."""

    record_overhead = ENTRY_HEADER_SIZE
    command_sys_flag = 0

    def __init__(self, node: AppendNode) -> None:
        self._node = node

    def put_status(self, outcome: AppendOutcome) -> None:
        """Return None, because an append is either committed or has failed."""

    async def put_status_of_all(self, timeout_ms: int) -> None:
        """Return None, because the message is in a committed entry."""

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout: float | None = None
    ) -> asyncio.Future[AppendOutcome]:
        def fill_bodies(assigned: Assigned) -> Sequence[bytes]:
            first, term, positions, stamp_ms, steps_ms = assigned
            indexes = range(first, first + len(positions))
            offsets = [pos + ENTRY_HEADER_SIZE for pos in positions]
            return fill(Places(indexes, term, offsets, stamp_ms, steps_ms))

        return self._node.append_batch(sizes, fill_bodies, expected=expected, timeout=timeout)

    def cluster_time_ms(self) -> int:
        return self._node.cluster_time_ms()

    @property
    def steps_ms(self) -> int:
        return self._node.steps_ms


class ReplicatedRecords:
    """The reading side of the replicated log. Implements RecordLog."""

    def __init__(self, node: BodyNode) -> None:
        self._node = node

    @property
    def begin_offset(self) -> int:
        return self._node.begin_pos + ENTRY_HEADER_SIZE

    def read_records(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._node.read_bodies([(offset - ENTRY_HEADER_SIZE, size) for offset, size in places])

    def record_at(self, physical_offset: int) -> bytes:
        return self._node.body_at(physical_offset - ENTRY_HEADER_SIZE)

    def read_positions(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._node.read_bodies(places)


class EntryPiece:
    """Entries with their headers. Implements Piece."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data

    def begin(self, at: int) -> tuple[bool, int, int, int, int]:
        magic, size, index, term, pos = _unpack_entry(self.data, at)
        return magic == _NORMAL_ENTRY, size, index, term, pos

    def physical_offset(self, at: int) -> int:
        return int(_position(self.data, at)[0]) + ENTRY_HEADER_SIZE


class EntryFormat:
    """Record format of the replicated log.

    Implements RecordFormat. State images contain the starts of queues.
    """

    header_size = ENTRY_HEADER_SIZE
    begins_queues = False

    def pieces(self, entries: Sequence[AppliedEntry]) -> Sequence[Piece] | None:
        return [EntryPiece(piece) for piece in entries.pieces] if isinstance(entries, EntryRun) else None

    def is_command(self, message: MessageRecord) -> bool:
        """Return True, because only brokers write to the log, and they refuse messages to reserved topics."""
        return True


ENTRIES = EntryFormat()
