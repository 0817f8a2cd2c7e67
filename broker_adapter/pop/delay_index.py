"""The index of delayed messages that the log has: what the state of delivery asks of it.

Each change of it has a number, which grows by one and is of this node alone. A row says at which change it
came and at which it ended, so that the index may be newer than a checkpoint: `cut` takes it back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zlib_ng.zlib_ng import crc32

_SUMMED = struct.Struct(">qqqIH")


class DelayedRow(NamedTuple):
    """`version`: grows in the order of the log; one for each place that the log has the message at."""

    number: int
    version: int
    due_ms: int
    pos: int  # of its entry in the log
    size: int  # of the entry's body
    element: int  # place in the entry's command
    topic: str
    client: bytes  # the address that it came from; b"" if it came in an image

    @property
    def crc(self) -> int:
        """Of all that is equal on all nodes."""
        head = _SUMMED.pack(self.number, self.due_ms, self.pos, self.size, self.element)
        return crc32(self.topic.encode(), crc32(head))


class Put(NamedTuple):
    row: DelayedRow
    at: int  # the number of the change


class Taken(NamedTuple):
    version: int
    at: int


#: Where a list by due time goes on: behind this due time and version.
DuePosition = tuple[int, int]
FIRST_DUE: DuePosition = (-(1 << 63), -1)


class DelayIndex(Protocol):
    """`write`, `cut`, `collect` and `wipe` on one thread; `sync` on any, and `due` beside all; the others on
    one thread at a time, which may be another. OSError: the disk fails, or what it has is damaged."""

    @property
    def batch(self) -> int:
        """How many changes are worth to be written together."""

    def write(self, puts: Sequence[Put], ends: Sequence[Taken]) -> None:
        """All of it or nothing. Durable after `sync`."""

    def find(self, number: int) -> DelayedRow | None: ...

    def due(self, after: DuePosition, last_due_ms: int, limit: int) -> list[DelayedRow]:
        """The next ones by due time and version, due at `last_due_ms` at the latest."""

    def in_order(self, after: int, limit: int, topic: str | None = None) -> list[DelayedRow]:
        """The next ones behind a version, in the order of the log; only those of a topic."""

    def cut(self, at: int) -> None:
        """As it was after this change."""

    def collect(self, at: int, limit: int) -> None:
        """Let go of some rows that ended at this change or before: `cut` never goes back behind it."""

    def sync(self) -> None:
        """All that was written is durable on return."""

    def wipe(self) -> None:
        """There are no rows, durably."""

    def close(self) -> None: ...
