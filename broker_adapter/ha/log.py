"""What master and slave use of a CommitLog. Calls may block; properties and `read` are for any thread."""

from __future__ import annotations

import hashlib
from typing import Protocol

from broker_adapter.ha.handshake import LogRange, tail_begin

_PIECE = 1 << 20


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

    @property
    def last_record_offset(self) -> int:
        """Where the last record begins; -1: unknown."""

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


def tail_of(log: CopiedLog) -> tuple[LogRange, int, bytes]:
    """What it has, and from where on its end has which digest. Blocking."""
    found = range_of(log)
    begin = tail_begin(found, log.last_record_offset)
    return found, begin, digest_of(log, begin, found.end)


def digest_of(log: ShippedLog, begin: int, end: int) -> bytes:
    """Of what is there between them. Blocking; a piece at a time."""
    digest = hashlib.sha256()
    while begin < end and (piece := log.read(begin, min(_PIECE, end - begin))):
        digest.update(piece)
        begin += len(piece)
    return digest.digest()
