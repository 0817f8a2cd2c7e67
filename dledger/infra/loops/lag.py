"""Lag of the event loop: its longest step, measured with a timer.

A long step delays heartbeats and all clients. No step should take more than 20 ms at the configured limits.
This module measures the steps in production.
"""

from __future__ import annotations

import asyncio

from dledger.infra.logs import get_logger

_log = get_logger("loop")

_EVERY_S = 0.05
#: In seconds: the lag that counts as a stall, the lag that is logged, and the minimum interval of log lines.
STALL_S, _LOGGED_S, _LOGGED_EVERY_S = 0.1, 0.25, 10.0
#: The longest lag covers the current window of this length and the previous one.
_WINDOW_S = 60.0


class LoopLag:
    """Measures the lag of the loop on which `start` and `stop` are called."""

    def __init__(self) -> None:
        self.stalls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._longest_s = self._before_s = 0.0
        self._window_ends = 0.0
        self._next_log = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lag of the last one to two minutes, in seconds."""
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
        self._timer = loop.call_at(due, self._on_timer, loop, due)

    def _on_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self.note(now, now - due)
        self._wait(loop)

    def note(self, now: float, lag_s: float) -> None:
        if now >= self._window_ends:
            self._before_s, self._longest_s = self._longest_s, 0.0
            self._window_ends = now + _WINDOW_S
        self._longest_s = max(self._longest_s, lag_s)
        self.stalls += lag_s >= STALL_S
        if lag_s >= _LOGGED_S and now >= self._next_log:
            self._next_log = now + _LOGGED_EVERY_S
            _log.warning("the event loop was late", by_ms=int(lag_s * 1000), stalls=self.stalls)
