"""How late the event loop is: the longest of its steps, as a timer meets it.

A step that takes long keeps back heartbeats and all clients. None should take more than 20 ms at the limits;
what production makes of that is seen here.
"""

from __future__ import annotations

import asyncio

from dledger.logs import get_logger

_log = get_logger("loop")

_EVERY_S = 0.05
#: As late a timer is a stall; told of when it is as late as this, and not more often than that.
STALL_S, _TOLD_S, _TOLD_EVERY_S = 0.1, 0.25, 10.0
#: The longest lag is that of so long, and of as long before it.
_WINDOW_S = 60.0


class LoopLag:
    """`start` and `stop` on the loop."""

    def __init__(self) -> None:
        self.stalls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._longest_s = self._before_s = 0.0
        self._window_ends = 0.0
        self._told_after = 0.0

    @property
    def longest_s(self) -> float:
        """Of the last minute or two."""
        return max(self._longest_s, self._before_s)

    def start(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._window_ends = loop.time() + _WINDOW_S
        self._wait(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + _EVERY_S
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self.note(now, now - due)
        self._wait(loop)

    def note(self, now: float, lag_s: float) -> None:
        if now >= self._window_ends:
            self._before_s, self._longest_s = self._longest_s, 0.0
            self._window_ends = now + _WINDOW_S
        self._longest_s = max(self._longest_s, lag_s)
        self.stalls += lag_s >= STALL_S
        if lag_s >= _TOLD_S and now >= self._told_after:
            self._told_after = now + _TOLD_EVERY_S
            _log.warning("the event loop was late", by_ms=int(lag_s * 1000), stalls=self.stalls)
