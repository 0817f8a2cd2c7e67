"""Waits for slaves: whoever has put a message where slaves have to have it, too (SYNC_MASTER)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Hashable
from enum import Enum


class SlaveAck(Enum):
    """The words are RocketMQ's."""

    PUT_OK = "PUT_OK"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class GroupTransfer:
    """Acknowledgements of slaves, and who waits for them. On one event loop.

    `push2slave_max_offset`: some slave has had all before it."""

    def __init__(self, max_gap_bytes: int) -> None:
        """`max_gap_bytes`: a slave that is further behind is not waited for (haMaxGapNotInSync)."""
        self.push2slave_max_offset = 0
        self.counts: Counter[str] = Counter()
        self._max_gap_bytes = max_gap_bytes
        self._acked: dict[Hashable, int] = {}  # by slave, of those that are connected
        self._waiting: dict[int, list[tuple[int, int, asyncio.Future[bool]]]] = {}  # by how many; heaps
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
        """It is not connected any more."""
        self._acked.pop(slave, None)

    def in_sync(self, offset: int) -> int:
        """How many slaves are not too far behind it."""
        return sum(offset - acked < self._max_gap_bytes for acked in self._acked.values())

    async def wait(self, offset: int, timeout_ms: int, slaves: int = 1) -> SlaveAck:
        """Until so many slaves have all before `offset`."""
        found = await self._wait(offset, timeout_ms, slaves)
        self.counts[found.value] += 1
        return found

    def close(self) -> None:
        """Whoever waits is told that the time is over: whether slaves have it is not known."""
        self._is_closed = True
        for heap in self._waiting.values():
            for _, _, answer in heap:
                if not answer.done():
                    answer.set_result(False)
            heap.clear()

    # -- inside -------------------------------------------------------------------------------------------

    async def _wait(self, offset: int, timeout_ms: int, slaves: int) -> SlaveAck:
        assert slaves > 0, "nobody waits for no slave"
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
        """So many slaves have all before it."""
        if slaves == 1:
            return self.push2slave_max_offset
        if len(self._acked) < slaves:
            return 0
        return sorted(self._acked.values(), reverse=True)[slaves - 1]

    @staticmethod
    def _forget_abandoned(heap: list[tuple[int, int, asyncio.Future[bool]]]) -> None:
        """Those at the top whose time is over. Others go when they come up."""
        while heap and heap[0][2].done():
            heapq.heappop(heap)
