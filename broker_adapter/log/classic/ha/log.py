"""Interfaces of the CommitLog for replication.

Calls may block. Properties and `read` may be used on any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from broker_adapter.log.classic.ha.handshake import LogRange, tail_begin
from broker_adapter.log.classic.shipped_units import UnitRun

_PIECE = 1 << 20


class ShippedLog(Protocol):
    """Interface of a master's log."""

    @property
    def begin_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_file_offset(self) -> int: ...

    @property
    def file_size(self) -> int: ...

    def read(self, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes within one file, up to `end_offset`. Raises BrokerError."""


class CopiedLog(ShippedLog, Protocol):
    """Interface of a slave's log."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def complete_end_offset(self) -> int:
        """End of the last complete append."""

    @property
    def last_record_offset(self) -> int:
        """Offset of the last record; -1 if unknown."""

    def append_bytes(self, offset: int, data: memoryview, units: Sequence[UnitRun]) -> None:
        """Append checked units at `end_offset`. An empty log accepts the start of any file.

        Raises BrokerError.
        """

    def cut_incomplete(self) -> int:
        """Remove the received part of an incomplete append. Raises BrokerError."""

    def flush(self) -> int: ...


def range_of(log: ShippedLog) -> LogRange:
    return LogRange(log.begin_offset, log.end_offset, log.file_size)


def read_all(log: ShippedLog, begin: int, end: int) -> bytes:
    """Read a range that may span files. Returns fewer bytes if the log ends earlier."""
    pieces = []
    while begin < end and (piece := log.read(begin, end - begin)):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def tail_of(log: CopiedLog) -> tuple[LogRange, int, bytes]:
    """Return the range of a log, and the start and digest of its tail. Blocks."""
    found = range_of(log)
    begin = tail_begin(found, log.last_record_offset)
    return found, begin, digest_of(log, begin, found.end)


def digest_of(log: ShippedLog, begin: int, end: int) -> bytes:
    """Return the digest of a range, read in pieces. Blocks."""
    digest = hashlib.sha256()
    while begin < end and (piece := log.read(begin, min(_PIECE, end - begin))):
        digest.update(piece)
        begin += len(piece)
    return digest.digest()
