"""What goes over a connection between a master of RocketMQ and a slave. Pure.

    slave to master     8    the slave's physical offset: all before it is stored there; also every 5 s
    master to slave     8    physical offset of the first byte that follows
                        4    size: how many bytes follow; 0: a heartbeat
                        n    bytes of the CommitLog, of one file

(big endian; DefaultHAConnection and DefaultHAClient of RocketMQ 5.5)

A slave that reports 0 first gets the log from its newest file on. One that reports another offset gets it
from there. So whoever wants all reports 1, and supplies the first byte: it is the highest one of a record's
size, which is less than 2^24.

Who reports -1 asks for the handshake of `broker_adapter.ha.handshake`: a master of RocketMQ's own waits for
the next report then.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker_adapter.errors import HaRefused, Status

REPORT_BYTES: Final = 8
_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
#: haTransferBatchSize is a setting of the master, which sends no more than a file of its CommitLog at once.
_MOST_BYTES: Final = 1 << 30
_FIRST_BYTE = b"\0"


class Transfer(NamedTuple):
    """Some bytes of the CommitLog from a physical offset on; none: a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    """Of a slave that has stored all before `offset`."""
    return _REPORT.pack(offset)


def first_report(offset: int) -> int:
    """Of a slave that wants the whole log from `offset` on, be it 0."""
    return max(offset, len(_FIRST_BYTE))


def supplied(offset: int) -> bytes:
    """What a master does not send to a slave that wants the log from `offset` on."""
    return _FIRST_BYTE if offset == 0 else b""


def encode_transfer(offset: int, data: bytes) -> bytes:
    """A frame of a master; without data a heartbeat."""
    return _HEADER.pack(offset, len(data)) + data


class ReportReader:
    """Cuts a slave's stream into reports. Holds what is left of one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        data = self._rest + data
        end = len(data) - len(data) % REPORT_BYTES
        self._rest = data[end:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:end])]


class TransferReader:
    """Cuts a master's stream into pieces of the CommitLog, each as soon as it is there: what a frame says of
    its size takes no memory. `position`: the physical offset that comes next."""

    def __init__(self, position: int, *, begins_anywhere: bool = False) -> None:
        """`position`: as the first report has it. `begins_anywhere`: the first frame with data says it."""
        self.position = position
        self._begins_anywhere = begins_anywhere
        self._header = bytearray()
        self._missing = 0  # bytes of the frame that is being read

    def feed(self, data: bytes) -> Iterator[Transfer]:
        """Take all of it. HaRefused (HA_TRANSFER_REFUSED) for a frame that does not go on where the last one
        ended: nothing behind it can be read."""
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                yield Transfer(self.position, piece)
                at += len(piece)
                self.position += len(piece)
                self._missing -= len(piece)
                continue
            wanted = _HEADER.size - len(self._header)
            self._header += data[at : at + wanted]
            at += wanted
            if len(self._header) == _HEADER.size:
                self._begin_frame()
                if not self._missing:
                    yield Transfer(self.position, b"")

    def _begin_frame(self) -> None:
        offset, size = _HEADER.unpack(self._header)
        if not 0 <= size <= _MOST_BYTES:
            raise _refused(f"a transfer of {size} bytes; {_MOST_BYTES} may be")
        if self._begins_anywhere and offset >= 0:
            self.position = offset
            self._begins_anywhere = not size
        if offset != self.position:
            raise _refused(f"a transfer of offset {offset}, where {self.position} comes next")
        self._header.clear()
        self._missing = size


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_TRANSFER_REFUSED, problem)
