"""The numbers that owners of nodes put into the log: all of them, each once and in order."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from dledger.store.format.batch import Batch, decode_entries
from dledger.testing.virtual.violation import Violation

#: What their bodies begin with; behind it, separated by colons: number, index, position, time, and more.
OWNED_MARK: Final = b"owned:"


class OwnedLog:
    """What owners have appended, as far as it is committed."""

    def __init__(self) -> None:
        self.completed = 0  # batches that were acknowledged
        self.is_stopped = False
        self._indexes: list[int] = []  # by number
        self._last_stamp_ms = -1

    def numbers_upto(self, index: int) -> int:
        """How many numbers were used up to an entry."""
        return bisect_right(self._indexes, index)

    def committed(self, batch: Batch, newest_stamp_ms: int) -> None:
        """The next batch of the one committed log; newest_stamp_ms: of the heads up to it."""
        for entry in decode_entries(batch.data):
            if not entry.body.startswith(OWNED_MARK):
                continue
            number, index, pos, stamp_ms = map(int, entry.body[len(OWNED_MARK) :].split(b":")[:4])
            if number != len(self._indexes):
                raise Violation(
                    "owned numbers", f"{number} at entry {entry.index}, where {len(self._indexes)} was next"
                )
            if (index, pos) != (entry.index, entry.pos):
                raise Violation(
                    "owned places", f"told {index} at {pos}, committed {entry.index} at {entry.pos}"
                )
            if stamp_ms < max(self._last_stamp_ms, newest_stamp_ms):
                last = max(self._last_stamp_ms, newest_stamp_ms)
                raise Violation("owned times", f"{stamp_ms} at entry {entry.index} after {last}")
            self._last_stamp_ms = stamp_ms
            self._indexes.append(entry.index)
