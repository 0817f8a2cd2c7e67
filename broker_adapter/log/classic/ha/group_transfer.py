"""Lets sends wait for acknowledgements from slaves (SYNC_MASTER)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Hashable
from enum import Enum


class SlaveAck(Enum):
    """Result of a wait, with RocketMQ's names."""

    PUT_OK = "PUT_OK"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


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
        self._waiting: dict[int, list[tuple[int, int, asyncio.Future[bool]]]] = {}
        self._numbers = itertools.count()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def acknowledged(self, slave: Hashable, offset: int) -> None:
        self._acked[slave] = max(offset, self._acked.get(slave, 0))
        self.push2slave_max_offset = max(offset, self.push2slave_max_offset)
        for slaves, heap in self._waiting.items():
            reached = self._reached(slaves)
            while heap and heap[0][0] <= reached:
                _, _, answer = heapq.heappop(heap)
                if not answer.done():
                    answer.set_result(True)

    def gone(self, slave: Hashable) -> None:
        """Remove a disconnected slave."""
        self._acked.pop(slave, None)

    def in_sync(self, offset: int) -> int:
        """Return the number of slaves whose lag behind `offset` is less than `max_gap_bytes`."""
        return sum(offset - acked < self._max_gap_bytes for acked in self._acked.values())

    async def wait(self, offset: int, timeout_ms: int, slaves: int = 1) -> SlaveAck:
        """Wait until `slaves` slaves have acknowledged `offset`."""
        outcome = await self._wait(offset, timeout_ms, slaves)
        self.counts[outcome.value] += 1
        return outcome

    def close(self) -> None:
        """End all waits with FLUSH_SLAVE_TIMEOUT, because it is unknown whether slaves have received the
        data.
        """
        self._is_closed = True
        for heap in self._waiting.values():
            for _, _, answer in heap:
                if not answer.done():
                    answer.set_result(False)
            heap.clear()

    # -- internals ---------------------------------------------------------------------------------------

    async def _wait(self, offset: int, timeout_ms: int, slaves: int) -> SlaveAck:
        assert slaves > 0, "slaves must be positive"
        if self._reached(slaves) >= offset:
            return SlaveAck.PUT_OK
        if self._is_closed or self.in_sync(offset) < slaves:
            return SlaveAck.SLAVE_NOT_AVAILABLE
        answer = asyncio.get_running_loop().create_future()
        heap = self._waiting.setdefault(slaves, [])
        heapq.heappush(heap, (offset, next(self._numbers), answer))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return SlaveAck.PUT_OK if await answer else SlaveAck.FLUSH_SLAVE_TIMEOUT
        except TimeoutError:
            return SlaveAck.FLUSH_SLAVE_TIMEOUT
        finally:
            self._forget_abandoned(heap)

    def _reached(self, slaves: int) -> int:
        """Return the highest offset that at least `slaves` slaves have acknowledged."""
        if slaves == 1:
            return self.push2slave_max_offset
        if len(self._acked) < slaves:
            return 0
        return sorted(self._acked.values(), reverse=True)[slaves - 1]

    @staticmethod
    def _forget_abandoned(heap: list[tuple[int, int, asyncio.Future[bool]]]) -> None:
        """Remove completed waits from the top of the heap.

        Other completed waits are removed once they reach the top.
        """
        while heap and heap[0][2].done():
            heapq.heappop(heap)
