"""Ticks a replica frequently while work is in progress, and otherwise at the next deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dledger.core.deadlines import next_tick_ms as core_next_tick_ms

if TYPE_CHECKING:
    from dledger.replica.replica import Replica

#: Maximum interval for an idle replica. Bounds the delay of changes without a notification, such as free disk
#: space.
MAX_IDLE_MS = 250


def next_tick_ms(replica: Replica, now_ms: int) -> int:
    """Return the earliest time at which `replica.tick` has an effect, at most MAX_IDLE_MS from now.

    Assumes that no other event occurs before. A result of `now_ms` or less means that work is in progress,
    and that ticks are needed at the normal rate.
    """
    core, log, admission = replica.core, replica.core.log, replica.admission
    if (
        log.durable_index < log.end_index
        or core.committed_index < log.end_index
        or core.fsync_began_ms is not None
        or replica.shell.fsync_began_ms() is not None
        or replica.owner != core.owner
        or admission.gathered_bytes
        or len(replica.admission_queue)
        or not replica.rebuilding.is_done
        or replica.suspects
        or replica.unread_probes
        or replica.retainer.has_work
    ):
        return now_ms
    due = min(core_next_tick_ms(core), now_ms + MAX_IDLE_MS, replica.retainer.next_check_ms)
    return int(min(due, admission.next_deadline_ms, replica.clock_keeper.next_comparison_ms))


class Ticker:
    """Calls `tick` every `period_ms` while work is in progress, otherwise at the time from `next_ms`.

    Code that can make that time earlier must call `reschedule` while `sleeps` is True.
    """

    def __init__(
        self,
        period_ms: int,
        tick: Callable[[], None],
        next_ms: Callable[[int], int],
        *,
        now_ms: Callable[[], int],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        """`next_ms` returns the next time for the current time, like `next_tick_ms`; `later` is the loop's
        call_later.
        """
        self._period_ms = period_ms
        self._tick = tick
        self._next_ms = next_ms
        self._now_ms = now_ms
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        #: The next tick is more than a period away and may have to move forward.
        self.sleeps = False

    def run(self) -> None:
        """Tick now and schedule the next tick."""
        self.sleeps = False
        try:
            self._tick()
        finally:
            self._arm()

    def reschedule(self) -> None:
        """Reschedule the next tick if it is due earlier after a change."""
        if self._due() < self._due_ms:
            self._arm()

    def stop(self) -> None:
        self.sleeps = False
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> int:
        now_ms = self._now_ms()
        due_ms = self._next_ms(now_ms)
        return due_ms if due_ms > now_ms else now_ms + self._period_ms

    def _arm(self) -> None:
        self.stop()
        self._due_ms = self._due()
        wait_ms = self._due_ms - self._now_ms()
        self.sleeps = wait_ms > self._period_ms
        # The clock counts whole elapsed milliseconds. Wait one more, so that the deadline has passed.
        self._timer = self._later((wait_ms + self.sleeps) / 1000, self.run)
