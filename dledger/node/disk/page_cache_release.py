"""Which bytes that a follower stored during catch-up leave the page cache. Pure.

It will hardly be read there, and can be the whole of a log: kept, it would drive out what the other processes
of the machine read, and each page that is taken anew costs more than the copy into it where the hypervisor
takes back memory that nobody uses (benchmarks/RECORD.md).
"""

from __future__ import annotations

from typing import Final

#: The newest of it stays: a state machine that lags reads it, and it is what live readers want next.
KEPT_BYTES: Final = 128 << 20
#: So much is dropped at once.
STEP_BYTES: Final = 8 << 20


class PageCacheRelease:
    """The range that catch-up has stored and that is still in the page cache."""

    def __init__(self) -> None:
        self._begin = self._end = -STEP_BYTES

    def stored(self, begin_pos: int, end_pos: int) -> tuple[int, int] | None:
        """More was stored, and synced. (begin, end) of what is to leave the page cache now, if anything.

        What was stored in time, or truncated, lies between two catch-ups: each keeps what was its newest.
        """
        if not 0 <= begin_pos - self._end < STEP_BYTES:  # the end of a data file stays blank
            self._begin = begin_pos
        self._end = end_pos
        end = end_pos - KEPT_BYTES
        if end - self._begin < STEP_BYTES:
            return None
        begin, self._begin = self._begin, end
        return begin, end
