"""Ticks of a replica: often while something is under way, and else when the next deadline comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dledger.core.deadlines import next_tick_ms as core_next_tick_ms

if TYPE_CHECKING:
    from dledger.replica.replica import Replica

#: An idle replica is ticked at least so often: what nobody announces, such as room on the disk, is looked at.
LOOK_MS = 250


def next_tick_ms(replica: Replica, now_ms: int) -> int:
    """When `replica.tick` can have something to do at the earliest, if nothing else happens before: at most
    LOOK_MS from now. `now_ms` or less: something is under way, tick at the usual rate."""
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
        or replica.purge_to is not None
        or replica.retainer.is_writing
    ):
        return now_ms
    due = min(core_next_tick_ms(core), now_ms + LOOK_MS, replica.retainer.next_check_ms)
    return int(min(due, admission.next_deadline_ms))


class Ticker:
    """Calls `tick` every `period_ms` while something is under way, else when `next_ms` says. Whoever changes
    what `next_ms` says calls `look` while `sleeps`."""

    def __init__(
        self,
        period_ms: int,
        tick: Callable[[], None],
        next_ms: Callable[[int], int],
        *,
        now_ms: Callable[[], int],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        """`next_ms` is given the time and answers as `next_tick_ms` does; `later`: call_later of the loop."""
        self._period_ms = period_ms
        self._tick = tick
        self._next_ms = next_ms
        self._now_ms = now_ms
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        #: The next tick is further away than a period: it may have to come earlier.
        self.sleeps = False

    def run(self) -> None:
        """Tick now, and from now on."""
        self.sleeps = False
        try:
            self._tick()
        finally:
            self._arm()

    def look(self) -> None:
        """Something has changed: is the next tick due earlier than was thought?"""
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
        # The clock counts whole milliseconds that have passed: a moment earlier it would not be time.
        self._timer = self._later((wait_ms + self.sleeps) / 1000, self.run)
