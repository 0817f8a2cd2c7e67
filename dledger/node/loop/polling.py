"""The event loop of a node: it asks the kernel for events less often than asyncio would, says when it has
nothing left to do, and keeps the CPUs awake while there is work in flight."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dledger.node.loop.wakefulness import CpuWakeLock

#: So many times in a row a loop that has work to do goes on without asking.
_MAX_SKIPPED = 3
#: A loop that has had work for so long is not waited for any longer.
MOST_BUSY_S = 0.02


class SparingSelector(selectors.DefaultSelector):
    """asyncio asks the kernel for events before every round of callbacks, also when it has some to run. An
    append takes a dozen rounds, half of them with work at hand; that question alone is a twentieth of the
    time. So it is put off, a few times at most, while there is work."""

    def __init__(
        self, monotonic_s: Callable[[], float] = time.monotonic, wake_lock: CpuWakeLock | None = None
    ) -> None:
        super().__init__()
        self._wake_lock = wake_lock or CpuWakeLock(None)
        self._skipped = 0
        self._monotonic_s = monotonic_s
        self._when_idle: list[Callable[[], object]] = []
        self._patience_ends = 0.0

    def when_idle(self, callback: Callable[[], object]) -> None:
        """`select` calls it, once, when there is neither work at hand nor an event; or when there has been no
        such moment for MOST_BUSY_S."""
        if not self._when_idle:
            self._patience_ends = self._monotonic_s() + MOST_BUSY_S
        self._when_idle.append(callback)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if self._when_idle and (timeout != 0 or self._has_no_patience()):
            self._skipped = 0
            events = super().select(0)
            if not events or self._has_no_patience():
                callbacks, self._when_idle = self._when_idle, []
                for callback in callbacks:
                    callback()
            return events
        if timeout == 0 and self._skipped < _MAX_SKIPPED:
            self._skipped += 1
            return []
        self._skipped = 0
        if self._wake_lock.is_kept and timeout != 0:
            left_s = self._wake_lock.left_s()
            if left_s > 0:  # the loop does not mind if it is woken too early
                return super().select(left_s if timeout is None else min(timeout, left_s))
            self._wake_lock.end()
        return super().select(timeout)

    def _has_no_patience(self) -> bool:
        return self._monotonic_s() >= self._patience_ends


class NodeLoop(asyncio.SelectorEventLoop):
    """The loop of a node that is a process."""

    def __init__(self, wake_lock: CpuWakeLock | None = None) -> None:
        self.wake_lock = wake_lock or CpuWakeLock(None)
        self._sparing = SparingSelector(wake_lock=self.wake_lock)
        super().__init__(self._sparing)

    def when_idle(self, callback: Callable[[], None]) -> None:
        self._sparing.when_idle(partial(self.call_soon, callback))


def when_idle(callback: Callable[[], None]) -> None:
    """Call it, once, when the running loop has worked off all that there is to do: in its next turn if there
    is nothing, and after 20 ms if there is always something. A loop that is not a node's calls it in its next
    turn in any case."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, NodeLoop):
        loop.when_idle(callback)
    else:
        loop.call_soon(callback)


def wake_lock_of(loop: asyncio.AbstractEventLoop) -> CpuWakeLock:
    """What is to be told of work. With a loop that is not a node's it has no effect."""
    return loop.wake_lock if isinstance(loop, NodeLoop) else CpuWakeLock(None)
