"""What master and slave use of a CommitLog. Calls may block; properties and `read` are for any thread."""

from __future__ import annotations

from typing import Protocol

from broker_adapter.ha.handshake import LogRange, tail_begin, tail_digest


class ShippedLog(Protocol):
    """Of a master."""

    @property
    def begin_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_file_offset(self) -> int: ...

    @property
    def file_size(self) -> int: ...

    def read(self, offset: int, most: int) -> bytes:
        """Up to `most` bytes within one file, never beyond `end_offset`. BrokerError."""


class CopiedLog(ShippedLog, Protocol):
    """Of a slave."""

    @property
    def flushed_offset(self) -> int: ...

    def append_bytes(self, offset: int, data: bytes) -> None:
        """At `end_offset`; a log that has nothing takes the begin of any file. BrokerError."""

    def flush(self) -> int: ...


def range_of(log: ShippedLog) -> LogRange:
    return LogRange(log.begin_offset, log.end_offset, log.file_size)


def read_all(log: ShippedLog, begin: int, end: int) -> bytes:
    """Across files. Fewer bytes if the log has no more."""
    pieces = []
    while begin < end and (piece := log.read(begin, end - begin)):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def tail_of(log: ShippedLog) -> tuple[LogRange, int, bytes]:
    """What it has, and from where on its end has which digest. Blocking."""
    found = range_of(log)
    begin = tail_begin(found)
    return found, begin, tail_digest(read_all(log, begin, found.end))
