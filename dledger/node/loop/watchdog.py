"""Ends a process whose event loop has stopped turning.

Whatever occupies the loop for ever takes the node out of the cluster without anybody noticing: it neither
answers nor heeds SIGTERM. A process that ends is restarted, and another node takes over meanwhile.

A thread looks whether the loop has turned. Only time in which the thread itself runs is counted, so a
process that was stopped (SIGSTOP, a frozen machine) is not taken for stuck when it goes on. What holds the
interpreter lock for ever cannot be noticed so.
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

from dledger.logs import get_logger

#: Of a process that was ended because its loop did not turn (EX_SOFTWARE).
EXIT_STUCK = 70
#: So long after a signal that asks a process to end its loop has to turn once.
GRACE_S = 5.0
_LONGEST_TICK_S = 0.5

_log = get_logger("watchdog")


class StallJudge:
    """Counts for how long a loop has not turned. Pure. `stall_s` 0: only after a signal."""

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

    def look(self, now_s: float, turns: int, signals: int) -> str:
        """Why the process has to end; "" if it need not. `turns` and `signals` so far. Every `tick_s`."""
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
                return f"asked to end, and the event loop has not turned for {self._since_signal_s:.1f} s"
        if 0 < self._stall_s < self._stuck_s:
            return f"the event loop has not turned for {self._stuck_s:.1f} s"
        return ""


class LoopWatchdog:
    """`watch` and `stop` on the loop."""

    def __init__(
        self, stall_s: float, *, grace_s: float = GRACE_S, end: Callable[[], None] | None = None
    ) -> None:
        """`end`: ends the process, with a trace of all threads on stderr."""
        self._judge = StallJudge(stall_s, grace_s)
        self._end = end or _end_process
        self._turns = 0
        self._signals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = Event()

    def watch(self, loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals] = ()) -> None:
        """Begin. `numbers`: signals that ask the process to end, for which the loop has handlers."""
        for number in numbers:
            # The loop is woken through its descriptor all the same; this is called also while it is stuck.
            signal.signal(number, self._signalled)
        self._turn(loop)
        Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns += 1
        self._timer = loop.call_later(self._judge.tick_s, self._turn, loop)

    def _signalled(self, number: int, frame: object) -> None:
        self._signals += 1

    def _run(self) -> None:
        while not self._over.wait(self._judge.tick_s):
            reason = self._judge.look(monotonic(), self._turns, self._signals)
            if reason:
                _log.critical("this process ends", reason=reason, exit_code=EXIT_STUCK)
                self._end()
                return


def _end_process() -> None:
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_STUCK)
