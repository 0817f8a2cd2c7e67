"""A bounded cache of open file handles. A handle in use is never closed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from dledger.infra.files.cached_reads import NotCached, is_only_cached

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _OpenHandle:
    handle: int
    users: int = 0
    is_evicted: bool = False


class HandleCache(Generic[K]):
    """Open handles by file key. At most `limit` handles are open, unless more are in use at the same time.
    Thread-safe."""

    def __init__(self, open_file: Callable[[K], int], close_file: Callable[[int], None], limit: int) -> None:
        self._open_file = open_file
        self._close_file = close_file
        self._limit = limit
        self._open: OrderedDict[K, _OpenHandle] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def using(self, key: K) -> Iterator[int]:
        """Hold the handle of a file. Raises the errors of `open_file`, or NotCached (`read_cached`)."""
        entry = self._opened(key)
        try:
            yield entry.handle
        finally:
            with self._lock:
                entry.users -= 1
                if entry.is_evicted and not entry.users:
                    self._close_file(entry.handle)

    def _opened(self, key: K) -> _OpenHandle:
        """Return the handle with one more user."""
        # A thread that opens or closes a file has the lock.
        only_cached = is_only_cached()
        if not self._lock.acquire(blocking=not only_cached):
            raise NotCached
        try:
            entry = self._open.get(key)
            if entry is None:
                if only_cached:
                    raise NotCached
                entry = self._open[key] = _OpenHandle(self._open_file(key))
                if len(self._open) > self._limit:
                    self._evict(next(iter(self._open)))
            else:
                self._open.move_to_end(key)
            entry.users += 1
            return entry
        finally:
            self._lock.release()

    def forget(self, key: K) -> None:
        """Evict the handle before the file is removed. Current readers keep using it."""
        with self._lock:
            if key in self._open:
                self._evict(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._open):
                self._evict(key)

    def _evict(self, key: K) -> None:
        entry = self._open.pop(key)
        entry.is_evicted = True
        if not entry.users:
            self._close_file(entry.handle)
