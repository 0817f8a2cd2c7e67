"""Protocol of the index of delayed messages in the log.

Each change has a number, which is local to this node and increases by one. A row records the changes that
added and ended it. An index that is newer than a checkpoint can therefore be reverted to it (`cut`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zlib_ng.zlib_ng import crc32

_SUMMED = struct.Struct(">qqqIH")


class DelayedRow(NamedTuple):
    """A delayed message.

    `version` increases in log order; a message that is stored again in the log gets a new version.
    """

    number: int
    version: int
    due_ms: int
    pos: int  # position of the log entry
    size: int  # size of the entry's body
    element: int  # position in the entry's command
    topic: str
    client: bytes  # address of the sender; b"" if restored from an image

    @property
    def crc(self) -> int:
        """CRC32 of the fields whose values are equal on all nodes."""
        head = _SUMMED.pack(self.number, self.due_ms, self.pos, self.size, self.element)
        return crc32(self.topic.encode(), crc32(head))


class RowPut(NamedTuple):
    row: DelayedRow
    at: int  # number of the change


class RowEnd(NamedTuple):
    version: int
    at: int


# A position in the order of due times: after the row with this due time and version.
DuePosition = tuple[int, int]
FIRST_DUE: DuePosition = (-(1 << 63), -1)


class DelayIndex(Protocol):
    """Index of delayed messages.

    `write`, `cut`, `collect` and `wipe` run on one thread, `sync` on any thread. `due` may run concurrently
    with all other methods. Each of the remaining methods may run on one thread at a time. All methods raise
    OSError if the disk fails or the file is damaged.
    """

    @property
    def batch(self) -> int:
        """Minimum number of changes for which a write is worthwhile."""

    def write(self, puts: Sequence[RowPut], ends: Sequence[RowEnd]) -> None:
        """Write all changes or none. They are durable after `sync`."""

    def find(self, number: int) -> DelayedRow | None: ...

    def due(self, after: DuePosition, last_due_ms: int, limit: int) -> list[DelayedRow]:
        """Return the next rows by due time and version that are due at or before `last_due_ms`."""

    def in_order(self, after: int, limit: int, topic: str | None = None) -> list[DelayedRow]:
        """Return the next rows after a version, in log order. `topic` limits the result to one topic."""

    def cut(self, at: int) -> None:
        """Revert to the state after this change."""

    def collect(self, at: int, limit: int) -> None:
        """Delete some rows that ended at or before this change.

        Afterwards, `cut` must not revert to an earlier change.
        """

    def sync(self) -> None:
        """Make all writes durable."""

    def wipe(self) -> None:
        """Delete all rows durably."""

    def close(self) -> None: ...
