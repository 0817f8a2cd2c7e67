"""Stream between a RocketMQ master and a slave. Pure functions.

    slave to master     8    physical offset up to which the slave has stored the log; also every 5 s
    master to slave     8    physical offset of the data
                        4    size of the data; 0: a heartbeat
                        n    data: bytes of one CommitLog file

(big endian; DefaultHAConnection and DefaultHAClient of RocketMQ 5.5)

A slave whose first report is 0 receives the log starting at the master's newest file. After any other first
report, the transfer starts at the reported offset. To receive the whole log, a slave therefore reports 1 and
adds the first byte itself. That byte is always 0: it is the highest byte of a record's size, which is less
than 2^24.

A first report of -1 requests the handshake of `handshake`; a RocketMQ master then waits for the next report.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker_adapter.errors import HaRefused, Status

REPORT_BYTES: Final = 8
_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
# haTransferBatchSize is a setting of the master, which sends at most one CommitLog file at a time.
_MOST_BYTES: Final = 1 << 30
_FIRST_BYTE = b"\0"


class Transfer(NamedTuple):
    """Bytes of the CommitLog, starting at a physical offset.

    If there are none, the transfer is a heartbeat.
    """

    offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    """Encode the report of a slave that has stored everything before `offset`."""
    return _REPORT.pack(offset)


def first_report(offset: int) -> int:
    """Return the first report of a slave that requests the whole log starting at `offset`, which may be 0."""
    return max(offset, len(_FIRST_BYTE))


def supplied(offset: int) -> bytes:
    """Return the bytes that a slave must add itself when it requests the log starting at `offset`."""
    return _FIRST_BYTE if offset == 0 else b""


def encode_transfer(offset: int, data: bytes | memoryview) -> bytes:
    """Encode a frame from a master. If `data` is empty, the frame is a heartbeat."""
    return b"".join((_HEADER.pack(offset, len(data)), data))


class ReportReader:
    """Splits a slave's stream into reports. Buffers an incomplete report."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        data = self._rest + data
        end = len(data) - len(data) % REPORT_BYTES
        self._rest = data[end:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:end])]


class TransferReader:
    """Splits a master's stream into pieces of the CommitLog.

    Pieces are returned as soon as they arrive, so a frame with a large size field does not allocate memory.
    `position`: next physical offset.
    """

    def __init__(self, position: int, *, begins_anywhere: bool = False) -> None:
        """Create a reader.

        `position`: requested physical offset. `begins_anywhere`: use the offset of the first frame with data
        instead.
        """
        self.position = position
        self._begins_anywhere = begins_anywhere
        self._header = bytearray()
        self._missing = 0  # bytes of the current frame

    def feed(self, data: bytes) -> Iterator[Transfer]:
        """Consume `data` and yield its pieces.

        Raises HaRefused (HA_TRANSFER_REFUSED) if a frame does not continue the previous one. Afterwards the
        stream is unreadable.
        """
        at, view = 0, memoryview(data)
        while at < len(data):
            if self._missing:
                piece = view[at : at + self._missing]
                yield Transfer(self.position, piece)
                at += len(piece)
                self.position += len(piece)
                self._missing -= len(piece)
                continue
            missing = _HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _HEADER.size:
                self._begin_frame()
                if not self._missing:
                    yield Transfer(self.position, view[:0])

    def _begin_frame(self) -> None:
        offset, size = _HEADER.unpack(self._header)
        if not 0 <= size <= _MOST_BYTES:
            raise _refused(f"the transfer is {size} bytes long; the limit is {_MOST_BYTES}")
        if self._begins_anywhere and offset >= 0:
            self.position = offset
            self._begins_anywhere = not size
        if offset != self.position:
            raise _refused(f"the transfer starts at offset {offset}, expected {self.position}")
        self._header.clear()
        self._missing = size


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_TRANSFER_REFUSED, problem)
