"""What a broker needs of its CommitLog, whichever it is.

A record has a *physical offset*: where its first byte lies, which it has as a field. An *index* numbers
records; it grows along the log, and need not be contiguous. A *position* is where the log begins to read a
record again; who keeps one hands it back as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from broker_adapter.errors import Status
from dledger import AppendOutcome, AppliedEntry


class Places(NamedTuple):
    """Where a batch of records is going to be, in the order of the batch."""

    indexes: Sequence[int]
    term: int
    physical_offsets: Sequence[int]
    stamp_ms: int  # ms since the Unix epoch; it never falls along the log


Fill: TypeAlias = Callable[[Places], Sequence[bytes]]


class AppendLog(Protocol):
    """Takes records, under a leadership."""

    @property
    def record_overhead(self) -> int:
        """Bytes beside each record that count for the limit of an append."""

    @property
    def command_sys_flag(self) -> int:
        """Bits that records of reserved topics carry in sys_flag."""

    def shortfall(self, outcome: AppendOutcome) -> asyncio.Future[Status | None] | None:
        """What this log cannot do in time for an append, which is stored all the same; None: all, and nothing
        has to be waited for. Several may wait for it: shield it. Indeterminate."""

    async def shortfall_of_all(self, timeout_ms: int) -> Status | None:
        """What it cannot do in that time for all that it has now: for a message that is sent again, say."""

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout_ms: int = 0
    ) -> asyncio.Future[AppendOutcome]:
        """As `dledger.NodeServer.append_batch`; records know their own physical offsets."""

    def cluster_time_ms(self) -> int: ...


class RecordLog(Protocol):
    """Gives records. Any thread; errors are those of `dledger.NodeServer.read_bodies`."""

    @property
    def begin_offset(self) -> int:
        """No record has a lower physical offset."""

    def read_records(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Those of (physical offset, size)."""

    def record_at(self, physical_offset: int) -> bytes: ...

    def read_positions(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Those of (position, size)."""


class Piece(Protocol):
    """Consecutive bytes of the log, as it has stored them."""

    @property
    def data(self) -> bytes | memoryview: ...

    def begin(self, at: int) -> tuple[bool, int, int, int, int]:
        """Of what begins at `at`: whether it holds a record; its size with all that the log has beside the
        record; index, term and position."""

    def physical_offset(self, at: int) -> int:
        """Of the record in what begins at `at`."""


class RecordFormat(Protocol):
    """How a log stores records. `header_size`: bytes before each of them. `begins_queues`: nothing but the
    log says where a queue begins, so its first message there does."""

    @property
    def header_size(self) -> int: ...

    @property
    def begins_queues(self) -> bool: ...

    def pieces(self, entries: Sequence[AppliedEntry]) -> Sequence[Piece] | None:
        """The same as bytes; None: only one by one."""
