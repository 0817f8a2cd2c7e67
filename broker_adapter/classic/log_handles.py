"""Open handles of the CommitLog's files, by first offset: few at a time, and none closed while it is used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from broker_adapter.classic.layout import StorePaths
from dledger.platform import Disk

_MOST_OPEN = 64


@dataclass(slots=True)
class _Open:
    handle: int
    users: int = 0
    is_evicted: bool = False


class LogHandles:
    """From any thread."""

    def __init__(self, disk: Disk, paths: StorePaths, most_open: int = _MOST_OPEN) -> None:
        self._disk = disk
        self._paths = paths
        self._most_open = most_open
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def using(self, begin: int) -> Iterator[int]:
        """The handle of a file. FileNotFoundError if it is gone, other OSErrors as the disk has them."""
        with self._lock:
            found = self._open.get(begin)
            if found is None:
                found = self._open[begin] = _Open(self._disk.open(self._paths.file(begin)))
                if len(self._open) > self._most_open:
                    self._evict(next(iter(self._open)))
            else:
                self._open.move_to_end(begin)
            found.users += 1
        try:
            yield found.handle
        finally:
            with self._lock:
                found.users -= 1
                if found.is_evicted and not found.users:
                    self._disk.close(found.handle)

    def forget(self, begin: int) -> None:
        """Before the file is removed: readers that have it go on reading."""
        with self._lock:
            if begin in self._open:
                self._evict(begin)

    def close(self) -> None:
        with self._lock:
            for begin in list(self._open):
                self._evict(begin)

    def _evict(self, begin: int) -> None:
        found = self._open.pop(begin)
        found.is_evicted = True
        if not found.users:
            self._disk.close(found.handle)
