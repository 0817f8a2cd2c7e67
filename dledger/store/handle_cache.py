"""Open handles of files: few at a time, and none closed while it is used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Open:
    handle: int
    users: int = 0
    is_evicted: bool = False


class HandleCache(Generic[K]):
    """Handles by a key of the file. From any thread. At most `limit` are open, or as many as are in use."""

    def __init__(self, open_file: Callable[[K], int], close_file: Callable[[int], None], limit: int) -> None:
        self._open_file = open_file
        self._close_file = close_file
        self._limit = limit
        self._open: OrderedDict[K, _Open] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def using(self, key: K) -> Iterator[int]:
        """The handle of a file. What `open_file` raises if it cannot be opened."""
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = _Open(self._open_file(key))
                if len(self._open) > self._limit:
                    self._evict(next(iter(self._open)))
            else:
                self._open.move_to_end(key)
            found.users += 1
        try:
            yield found.handle
        finally:
            with self._lock:
                found.users -= 1
                if found.is_evicted and not found.users:
                    self._close_file(found.handle)

    def forget(self, key: K) -> None:
        """Before the file is removed: readers that have it go on reading."""
        with self._lock:
            if key in self._open:
                self._evict(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._open):
                self._evict(key)

    def _evict(self, key: K) -> None:
        found = self._open.pop(key)
        found.is_evicted = True
        if not found.users:
            self._close_file(found.handle)
