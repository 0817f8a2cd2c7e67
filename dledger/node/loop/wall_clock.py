"""This node's wall clock, and a look at it that notices jumps.

Nothing follows a jump (docs/guarantees.md rule 12).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dledger.logs import get_logger

_log = get_logger("clock")

_JUMP_MS = 1000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class JumpWatch:
    """Logs once when the wall clock and the monotonic clock disagree about how much time has passed."""

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._apart_ms = wall() - monotonic()
        self.jumps = 0

    def look(self) -> None:
        apart_ms = self._wall() - self._monotonic()
        jump_ms = apart_ms - self._apart_ms
        self._apart_ms = apart_ms
        if abs(jump_ms) >= _JUMP_MS:
            self.jumps += 1
            _log.warning(
                "the wall clock jumped; cluster time does not follow it", jump_ms=jump_ms, jumps=self.jumps
            )
