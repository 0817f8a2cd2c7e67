"""Protocols of a CommitLog, which each kind of log implements.

The *physical offset* of a record is the position of its first byte, which the record also stores as a field.
An *index* numbers records; indexes increase along the log but may have gaps. A *position* is an opaque value
for reading a record again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from broker_adapter.errors import Status
from broker_adapter.wire.message import MessageRecord
from dledger import AppendOutcome, AppliedEntry


class Places(NamedTuple):
    """Assigned positions of a batch of records, in the order of the batch."""

    indexes: Sequence[int]
    term: int
    physical_offsets: Sequence[int]
    stamp_ms: int  # ms since the Unix epoch; never decreases along the log
    # Total of the steps of `stamp_ms` so far, caused by stops and wrong clocks. `stamp_ms` minus the steps
    # advances only while the cluster runs or, in a classic log, while the broker runs.
    steps_ms: int = 0


Fill: TypeAlias = Callable[[Places], Sequence[bytes]]


class AppendLog(Protocol):
    """The appending side of a log. Appends require that this node is the leader."""

    @property
    def record_overhead(self) -> int:
        """Number of bytes per record that count toward the size limit of an append in addition to the
        record.
        """

    @property
    def command_sys_flag(self) -> int:
        """Bits that are set in the sys_flag of records in reserved topics."""

    def put_status(self, outcome: AppendOutcome) -> asyncio.Future[Status | None] | None:
        """Return the future put status of a stored append that may not be flushed or replicated in time.

        None if the append is complete. Several callers may wait for the future, so shield it. It may fail
        with Indeterminate.
        """

    async def put_status_of_all(self, timeout_ms: int) -> Status | None:
        """Wait up to `timeout_ms` for the flush and replication of the whole current log. Return the put
        status.

        Used for a repeated send whose message is already in the log.
        """

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout: float | None = None
    ) -> asyncio.Future[AppendOutcome]:
        """Append a batch like `dledger.NodeServer.append_batch`.

        The records contain their physical offsets.
        """

    def cluster_time_ms(self) -> int: ...

    @property
    def steps_ms(self) -> int:
        """Current value of `Places.steps_ms`."""


class RecordLog(Protocol):
    """The reading side of a log. May be used on any thread.

    Methods raise the errors of `dledger.NodeServer.read_bodies`.
    """

    @property
    def begin_offset(self) -> int:
        """Minimum physical offset of records."""

    def read_records(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read records, each given by (physical offset, size)."""

    def record_at(self, physical_offset: int) -> bytes: ...

    def read_positions(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read records at (position, size)."""


class Piece(Protocol):
    """Consecutive bytes of the log, as stored."""

    @property
    def data(self) -> bytes | memoryview: ...

    def begin(self, at: int) -> tuple[bool, int, int, int, int]:
        """Describe the unit at byte `at`.

        Return (is a record, total size including overhead, index, term, position).
        """

    def physical_offset(self, at: int) -> int:
        """Return the physical offset of the record in the unit at byte `at`."""


class RecordFormat(Protocol):
    """Format of the records in a log.

    `header_size`: bytes before each record. `begins_queues`: True if only the log determines where queues
    start. A queue then starts at its first message in the log.
    """

    @property
    def header_size(self) -> int: ...

    @property
    def begins_queues(self) -> bool: ...

    def is_command(self, message: MessageRecord) -> bool:
        """True if a broker of this project wrote this record of a reserved topic."""

    def pieces(self, entries: Sequence[AppliedEntry]) -> Sequence[Piece] | None:
        """Return the entries as raw bytes, or None if they must be read one by one."""
