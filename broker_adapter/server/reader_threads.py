"""Threads on which a broker reads files and evaluates filters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, TypeVar

from dledger.infra.files.cached_reads import NotCached, read_cached
from dledger.infra.loops.threads import SharedThreads

T = TypeVar("T")

_READERS: Final = 2


def reader_threads() -> ReaderThreads:
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="pull")
    return ReaderThreads(readers, ThreadPoolExecutor(1, thread_name_prefix="filter"))


class ReaderThreads:
    """Thread pools, used from the event loop.

    Filters have a separate thread, because clients determine their cost. Otherwise two clients with expensive
    filters would occupy both reader threads.
    """

    def __init__(self, readers: Executor | None = None, filters: Executor | None = None) -> None:
        """If None, the executor of the event loop is used."""
        self._readers = SharedThreads(readers, _READERS)
        self._filters = SharedThreads(filters, 1)

    async def run(self, work: Callable[[], T], address: str = "") -> T:
        """Run blocking work of bounded duration. `address`: address of the client; "" for internal work."""
        return await self._readers.run(address, work)

    async def read(self, work: Callable[[], T], address: str = "") -> T:
        """Run a small read: on the event loop if its data are in the page cache, otherwise on a thread."""
        try:
            return read_cached(work)
        except NotCached:
            return await self.run(work, address)

    async def run_filter(self, work: Callable[[], T], address: str) -> T:
        """Evaluate a client's filter expression."""
        return await self._filters.run(address, work)

    def stop(self) -> None:
        for threads in (self._readers, self._filters):
            if threads.executor is not None:
                threads.executor.shutdown(wait=False, cancel_futures=True)
