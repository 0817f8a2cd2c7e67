"""The readable end of this node's log, and the reads that wait for it."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

from dledger.errors import Code, DLedgerError, Overloaded, ReadFailed
from dledger.infra.loops.turns import settle, wake_queue


class ReadableLog:
    """Tracks readable_index = min(committed_index, stored_index), which never decreases, and wakes waiters
    when it increases.

    stored_index is reported by the disk thread and excludes its queue: until a truncation has been executed,
    the store still has the entries that it will remove.
    """

    def __init__(self, committed_index: int, stored_index: int, max_waiters: int) -> None:
        self._committed = committed_index
        self._stored = stored_index
        self._generation = -1
        self._max_waiters = max_waiters
        self._order = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._closed: DLedgerError | None = None

    @property
    def index(self) -> int:
        return min(self._committed, self._stored)

    @property
    def stored_index(self) -> int:
        return self._stored

    def committed(self, committed_index: int) -> None:
        assert committed_index >= self._committed, f"committed fell from {self._committed}"
        self._committed = committed_index
        self._wake()

    def truncating(self, generation: int, last_index: int) -> None:
        """Record a queued truncation: entries after `last_index` and completions of older generations no
        longer count."""
        self._generation = max(self._generation, generation)
        self._stored = min(self._stored, last_index)

    def resetting(self, generation: int, base_index: int) -> None:
        """Record that the log is being replaced by an empty one after base_index, which is committed.

        Until the replacement is reported complete, the store has the old log, which stays readable as before.
        """
        self._generation = max(self._generation, generation)
        self._stored = self.index
        self._committed = max(self._committed, base_index)

    def stored(self, generation: int, last_index: int) -> None:
        if generation >= self._generation and last_index > self._stored:
            self._stored = last_index
            self._wake()

    async def wait(self, index: int, timeout_ms: int | None) -> None:
        """Wait until `index` is readable. Raises ReadFailed after `timeout_ms` or when the node stops, and
        Overloaded if too many callers wait."""
        if index <= self.index:
            return
        if self._closed is not None:
            raise self._closed
        if len(self._waiting) >= self._max_waiters:
            raise Overloaded(
                f"too many reads are waiting on this node: the limit is {self._max_waiters}; try again later",
                code=Code.TOO_MANY_WAITING_READS,
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (index, next(self._order), future)
        heappush(self._waiting, entry)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await future
        except TimeoutError:
            raise ReadFailed(
                f"this node did not catch up with entry {index} within {timeout_ms} ms; it is at entry "
                f"{self.index}",
                code=Code.READ_NOT_CONFIRMED,
            ) from None
        finally:
            if not future.done() or future.cancelled():
                self._drop(entry)

    def close(self, error: DLedgerError) -> None:
        """Fail all current and future waiters with `error`."""
        self._closed = error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _wake(self) -> None:
        reached = min(self._committed, self._stored)
        waiting = self._waiting
        reaching: list[asyncio.Future[None]] = []
        while waiting and waiting[0][0] <= reached:
            reaching.append(heappop(waiting)[2])
        if reaching:
            wake_queue().each("readable", reaching, settle)

    def _drop(self, entry: tuple[int, int, asyncio.Future[None]]) -> None:
        if entry in self._waiting:
            self._waiting.remove(entry)
            # Removal breaks the heap invariant; the list is as short as the number of waiting reads.
            self._waiting.sort(key=lambda waiter: waiter[:2])
