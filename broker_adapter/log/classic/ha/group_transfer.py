"""Lets sends wait for acknowledgements from slaves (SYNC_MASTER)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from enum import Enum


class SlaveAck(Enum):
    """Result of a wait, with RocketMQ's names."""

    PUT_OK = "PUT_OK"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class AckWait:
    """A wait for slaves. `done` receives its result; None: the wait has ended."""

    __slots__ = ("done", "timer")

    def __init__(self, done: Callable[[SlaveAck], None]) -> None:
        self.done: Callable[[SlaveAck], None] | None = done
        self.timer: asyncio.TimerHandle | None = None


class GroupTransfer:
    """Tracks the acknowledgements of slaves, and the sends that wait for them. Runs on one event loop.

    `push2slave_max_offset`: the highest offset that any slave has acknowledged.
    """

    def __init__(self, max_gap_bytes: int) -> None:
        """Create a tracker. A slave with this lag or more is not in sync (haMaxGapNotInSync)."""
        self.push2slave_max_offset = 0
        self.counts: Counter[str] = Counter()
        self._max_gap_bytes = max_gap_bytes
        self._acked: dict[Hashable, int] = {}  # by connected slave
        # heap of waits for each number of slaves
        self._waiting: dict[int, list[tuple[int, int, AckWait]]] = {}
        self._numbers = itertools.count()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def acknowledged(self, slave: Hashable, offset: int) -> None:
        self._acked[slave] = max(offset, self._acked.get(slave, 0))
        self.push2slave_max_offset = max(offset, self.push2slave_max_offset)
        for slaves, heap in list(self._waiting.items()):
            reached = self._reached(slaves)
            while heap and heap[0][0] <= reached:
                self._end(heapq.heappop(heap)[2], SlaveAck.PUT_OK)

    def gone(self, slave: Hashable) -> None:
        """Remove a disconnected slave."""
        self._acked.pop(slave, None)

    def in_sync(self, offset: int) -> int:
        """Return the number of slaves whose lag behind `offset` is less than `max_gap_bytes`."""
        return sum(offset - acked < self._max_gap_bytes for acked in self._acked.values())

    def when_acked(
        self, offset: int, timeout_ms: int, done: Callable[[SlaveAck], None], slaves: int = 1
    ) -> AckWait:
        """Call `done` once `slaves` slaves have acknowledged `offset`, or with the reason why they have not.

        `done` is called immediately if the result is known.
        """
        assert slaves > 0, "slaves must be positive"
        wait = AckWait(done)
        if self._reached(slaves) >= offset:
            self._end(wait, SlaveAck.PUT_OK)
        elif self._is_closed or self.in_sync(offset) < slaves:
            self._end(wait, SlaveAck.SLAVE_NOT_AVAILABLE)
        else:
            heap = self._waiting.setdefault(slaves, [])
            heapq.heappush(heap, (offset, next(self._numbers), wait))
            loop = asyncio.get_running_loop()
            wait.timer = loop.call_later(timeout_ms / 1000, self._on_deadline, heap, wait)
        return wait

    async def wait(self, offset: int, timeout_ms: int, slaves: int = 1) -> SlaveAck:
        """Wait until `slaves` slaves have acknowledged `offset`."""
        answer: asyncio.Future[SlaveAck] = asyncio.get_running_loop().create_future()

        def done(ack: SlaveAck) -> None:
            if not answer.done():
                answer.set_result(ack)

        wait = self.when_acked(offset, timeout_ms, done, slaves)
        try:
            return await answer
        finally:
            if wait.done is not None:  # the waiter was canceled
                self._end(wait, None)
                self._forget_ended(self._waiting[slaves])

    def close(self) -> None:
        """End all waits with FLUSH_SLAVE_TIMEOUT, because it is unknown whether slaves have received the
        data.
        """
        self._is_closed = True
        for heap in self._waiting.values():
            for _, _, wait in heap:
                self._end(wait, SlaveAck.FLUSH_SLAVE_TIMEOUT)
            heap.clear()

    # -- internals ---------------------------------------------------------------------------------------

    def _end(self, wait: AckWait, ack: SlaveAck | None) -> None:
        """End a wait, unless it has ended. None: without a result."""
        done, wait.done = wait.done, None
        if wait.timer is not None:
            wait.timer.cancel()
        if done is not None and ack is not None:
            self.counts[ack.value] += 1
            done(ack)

    def _on_deadline(self, heap: list[tuple[int, int, AckWait]], wait: AckWait) -> None:
        self._end(wait, SlaveAck.FLUSH_SLAVE_TIMEOUT)
        self._forget_ended(heap)

    def _reached(self, slaves: int) -> int:
        """Return the highest offset that at least `slaves` slaves have acknowledged."""
        if slaves == 1:
            return self.push2slave_max_offset
        if len(self._acked) < slaves:
            return 0
        return sorted(self._acked.values(), reverse=True)[slaves - 1]

    @staticmethod
    def _forget_ended(heap: list[tuple[int, int, AckWait]]) -> None:
        """Remove ended waits from the top of the heap.

        Other ended waits are removed once they reach the top.
        """
        while heap and heap[0][2].done is None:
            heapq.heappop(heap)
