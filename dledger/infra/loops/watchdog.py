"""Watchdog that ends a process whose event loop hangs.

A node whose event loop hangs neither responds nor reacts to SIGTERM, and no supervisor notices it. If the
process exits, the supervisor restarts it, and another node takes over in the meantime.

A thread checks whether the loop makes progress. It counts only the time during which it runs itself, so a
suspended process (SIGSTOP, a paused virtual machine) does not look stuck after it resumes. It cannot detect a
thread that never releases the interpreter lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterable
from threading import Event, Thread
from time import monotonic

from dledger.infra.logs import get_logger

#: Exit code of a process that was ended because its loop was stuck (EX_SOFTWARE).
EXIT_STUCK = 70
#: After a stop signal, the loop must make progress within this time, in seconds.
GRACE_S = 5.0
_LONGEST_TICK_S = 0.5

_log = get_logger("watchdog")


class StallDetector:
    """Measures how long a loop has made no progress. If `stall_s` is 0, it measures only after a stop signal.
    Pure."""

    def __init__(self, stall_s: float, grace_s: float) -> None:
        limits = [limit for limit in (stall_s, grace_s) if limit > 0]
        self.tick_s = min(_LONGEST_TICK_S, *[limit / 4 for limit in limits])
        self._stall_s = stall_s
        self._grace_s = grace_s
        self._turns = -1
        self._signals = 0
        self._now_s: float | None = None
        self._stuck_s = 0.0
        self._since_signal_s: float | None = None

    def check(self, now_s: float, turns: int, signals: int) -> str:
        """Return the reason why the process must end, or "" if it need not. `turns` and `signals` are totals
        so far. Call this every `tick_s`."""
        passed_s = 0.0 if self._now_s is None else min(now_s - self._now_s, 2 * self.tick_s)
        self._now_s = now_s
        if turns != self._turns:
            self._turns, self._stuck_s, self._since_signal_s, passed_s = turns, 0.0, None, 0.0
        if signals != self._signals:
            self._signals = signals
            if self._since_signal_s is None:
                self._since_signal_s = 0.0
        self._stuck_s += passed_s
        if self._since_signal_s is not None:
            self._since_signal_s += passed_s
            if self._since_signal_s > self._grace_s:
                return f"asked to stop, but the event loop is stuck for {self._since_signal_s:.1f} s"
        if 0 < self._stall_s < self._stuck_s:
            return f"the event loop has made no progress for {self._stuck_s:.1f} s"
        return ""


class LoopWatchdog:
    """Watches one event loop. Call `watch` and `stop` on the loop."""

    def __init__(
        self, stall_s: float, *, grace_s: float = GRACE_S, end: Callable[[], None] | None = None
    ) -> None:
        """`end`: ends the process after writing a stack trace of all threads to stderr."""
        self._detector = StallDetector(stall_s, grace_s)
        self._end = end or _end_process
        self._turns = 0
        self._signals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = Event()

    def watch(self, loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals] = ()) -> None:
        """Start watching. `numbers`: the stop signals for which the loop has handlers."""
        for number in numbers:
            # The signal also wakes the loop through its descriptor. This handler runs even while the loop is
            # stuck.
            signal.signal(number, self._signalled)
        self._turn(loop)
        Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns += 1
        self._timer = loop.call_later(self._detector.tick_s, self._turn, loop)

    def _signalled(self, number: int, frame: object) -> None:
        self._signals += 1

    def _run(self) -> None:
        while not self._stopped.wait(self._detector.tick_s):
            reason = self._detector.check(monotonic(), self._turns, self._signals)
            if reason:
                _log.critical("this process ends", reason=reason, exit_code=EXIT_STUCK)
                self._end()
                return


def _end_process() -> None:
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_STUCK)
