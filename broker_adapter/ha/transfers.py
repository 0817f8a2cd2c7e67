"""What goes over a connection between a master of RocketMQ and a slave. Pure.

    slave to master     8    the slave's physical offset: all before it is stored there; also every 5 s
    master to slave     8    physical offset of the first byte that follows
                        4    size: how many bytes follow; 0: a heartbeat
                        n    bytes of the CommitLog

(big endian; DefaultHAConnection and DefaultHAClient of RocketMQ 5.5)

A slave that reports 0 first gets the log from its newest file on. One that reports another offset gets it
from there. So whoever wants all reports 1, and supplies the first byte: it is the highest one of a record's
size, which is less than 2^24.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker_adapter.errors import FrameRefused

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
    return _REPORT.pack(max(offset, len(_FIRST_BYTE)))


def supplied(offset: int) -> bytes:
    """What a master does not send to a slave that wants the log from `offset` on."""
    return _FIRST_BYTE if offset == 0 else b""


class TransferReader:
    """Cuts a master's stream into pieces of the CommitLog, each as soon as it is there: what a frame says of
    its size takes no memory. `position`: the physical offset that comes next."""

    def __init__(self, position: int) -> None:
        """`position`: as the first report has it."""
        self.position = max(position, len(_FIRST_BYTE))
        self._header = bytearray()
        self._missing = 0  # bytes of the frame that is being read

    def feed(self, data: bytes) -> Iterator[Transfer]:
        """Take all of it. FrameRefused (FRAME_INVALID) for a frame that does not go on where the last one
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
            raise FrameRefused(f"a transfer of {size} bytes; {_MOST_BYTES} may be")
        if offset != self.position:
            raise FrameRefused(f"a transfer of offset {offset}, where {self.position} comes next")
        self._header.clear()
        self._missing = size
