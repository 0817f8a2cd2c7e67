"""Checks the numbers that node owners write to the log: complete, unique and in order."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from dledger.store.format.batch import Batch, decode_entries
from dledger.testing.virtual.violation import Violation

#: Prefix of their bodies, followed by number, index, position, time and more, separated by colons.
OWNED_MARK: Final = b"owned:"


class OwnedLog:
    """The committed batches of node owners."""

    def __init__(self) -> None:
        self.completed = 0  # batches that were acknowledged
        self.is_stopped = False
        self._indexes: list[int] = []  # by number
        self._last_stamp_ms = -1

    def numbers_upto(self, index: int) -> int:
        """Return how many numbers were used up to an entry."""
        return bisect_right(self._indexes, index)

    def committed(self, batch: Batch, newest_stamp_ms: int) -> None:
        """Process the next batch of the committed log. `newest_stamp_ms`: the newest stamp in the heads up to
        this batch."""
        for entry in decode_entries(batch.data):
            if not entry.body.startswith(OWNED_MARK):
                continue
            number, index, pos, stamp_ms = map(int, entry.body[len(OWNED_MARK) :].split(b":")[:4])
            if number != len(self._indexes):
                raise Violation(
                    "owned numbers", f"entry {entry.index} has number {number}, expected {len(self._indexes)}"
                )
            if (index, pos) != (entry.index, entry.pos):
                raise Violation(
                    "owned places",
                    f"a batch was assigned entry {index} at {pos}, but is committed as entry "
                    f"{entry.index} at {entry.pos}",
                )
            if stamp_ms < max(self._last_stamp_ms, newest_stamp_ms):
                last = max(self._last_stamp_ms, newest_stamp_ms)
                raise Violation(
                    "owned times", f"entry {entry.index} has the stamp {stamp_ms}, earlier than {last}"
                )
            self._last_stamp_ms = stamp_ms
            self._indexes.append(entry.index)
