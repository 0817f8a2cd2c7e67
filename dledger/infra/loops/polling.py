"""The event loop of a node. It polls the kernel less often than asyncio does, reports when it is idle, and
keeps the CPUs awake while work is in flight."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dledger.infra.loops.wakefulness import CpuWakeLock

#: How many times in a row a loop with pending callbacks skips the poll.
_MAX_SKIPPED = 3
#: Callbacks that wait for an idle loop run after this time, in seconds, even if it stays busy.
MAX_BUSY_S = 0.02


class SparingSelector(selectors.DefaultSelector):
    """A selector that skips some polls. asyncio polls the kernel before every round of callbacks, even if
    callbacks are pending. An append takes a dozen rounds, half of them with pending callbacks, and these
    polls take a twentieth of the time. They are skipped a few times while there is work."""

    def __init__(
        self, monotonic_s: Callable[[], float] = time.monotonic, wake_lock: CpuWakeLock | None = None
    ) -> None:
        super().__init__()
        self._wake_lock = wake_lock or CpuWakeLock(None)
        self._skipped = 0
        self._monotonic_s = monotonic_s
        self._when_idle: list[Callable[[], object]] = []
        self._idle_deadline_s = 0.0

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Register a callback for the next `select` at which no callbacks or events are pending. It runs
        once, after MAX_BUSY_S at the latest."""
        if not self._when_idle:
            self._idle_deadline_s = self._monotonic_s() + MAX_BUSY_S
        self._when_idle.append(callback)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if self._when_idle and (timeout != 0 or self._is_overdue()):
            self._skipped = 0
            events = super().select(0)
            if not events or self._is_overdue():
                callbacks, self._when_idle = self._when_idle, []
                for callback in callbacks:
                    callback()
            return events
        if timeout == 0 and self._skipped < _MAX_SKIPPED:
            self._skipped += 1
            return []
        self._skipped = 0
        if self._wake_lock.is_kept and timeout != 0:
            remaining_s = self._wake_lock.remaining_s()
            if remaining_s > 0:  # a spurious wakeup of the loop is harmless
                return super().select(remaining_s if timeout is None else min(timeout, remaining_s))
            self._wake_lock.release()
        return super().select(timeout)

    def _is_overdue(self) -> bool:
        return self._monotonic_s() >= self._idle_deadline_s


class NodeLoop(asyncio.SelectorEventLoop):
    """The event loop of a process that runs a node."""

    def __init__(self, wake_lock: CpuWakeLock | None = None) -> None:
        self.wake_lock = wake_lock or CpuWakeLock(None)
        self._sparing = SparingSelector(wake_lock=self.wake_lock)
        super().__init__(self._sparing)

    def when_idle(self, callback: Callable[[], None]) -> None:
        self._sparing.when_idle(partial(self.call_soon, callback))


def when_idle(callback: Callable[[], None]) -> None:
    """Call `callback` once when the running loop is idle, after 20 ms at the latest. An idle loop, and any
    loop other than a `NodeLoop`, calls it in its next turn."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, NodeLoop):
        loop.when_idle(callback)
    else:
        loop.call_soon(callback)


def wake_lock_of(loop: asyncio.AbstractEventLoop) -> CpuWakeLock:
    """Return the wake lock of a loop. For a loop other than a `NodeLoop` it has no effect."""
    return loop.wake_lock if isinstance(loop, NodeLoop) else CpuWakeLock(None)
