"""The channel between harness and node for faults of the node's disk and clock, and for counters of their
effects.

Each node has one folder with two files: `orders.json`, which the harness replaces and the node checks before
every operation that may fail, and `counters`, which the node updates. Both files survive the node.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from threading import Lock

ORDERS, COUNTERS = "orders.json", "counters"


@dataclass(frozen=True, slots=True)
class FaultOrders:
    """Faults of one node; several may be active at once.

    slow_ms: added to every sync of a file. stuck: syncs do not return until this is cleared.
    write_error, sync_error: writes and syncs fail with EIO. quota_bytes: maximum size of all files, beyond
    which writes fail with ENOSPC; -1: no limit. clock_ms: added to the wall clock; may be negative.
    """

    slow_ms: int = 0
    stuck: bool = False
    write_error: bool = False
    sync_error: bool = False
    quota_bytes: int = -1
    clock_ms: int = 0


NONE = FaultOrders()


def combined(orders: Iterable[FaultOrders]) -> FaultOrders:
    """Combine orders: times add up, and the smallest quota applies."""
    result = NONE
    for order in orders:
        quotas = [quota for quota in (result.quota_bytes, order.quota_bytes) if quota >= 0]
        result = FaultOrders(
            slow_ms=result.slow_ms + order.slow_ms,
            stuck=result.stuck or order.stuck,
            write_error=result.write_error or order.write_error,
            sync_error=result.sync_error or order.sync_error,
            quota_bytes=min(quotas, default=-1),
            clock_ms=result.clock_ms + order.clock_ms,
        )
    return result


class OrderFile:
    """The `orders.json` of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ORDERS
        self._seen: tuple[int, int] | None = None
        self._orders = NONE

    def save(self, orders: FaultOrders) -> None:
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(orders)))
        partial.replace(self._path)

    def now(self) -> FaultOrders:
        """Return the current orders. The file is parsed only if it was replaced, because this runs before
        every write."""
        try:
            status = os.stat(self._path)  # noqa: PTH116  # twice as fast as Path.stat
        except FileNotFoundError:
            return NONE
        seen = (status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            self._orders = FaultOrders(**json.loads(self._path.read_text()))
            self._seen = seen
        return self._orders


class InjectedEffect(IntEnum):
    """Effects that a node counts, by position in the file."""

    SLOW_SYNC = 0
    STUCK_SYNC = 1
    WRITE_ERROR = 2
    SYNC_ERROR = 3
    NO_SPACE = 4
    WRONG_TIME = 5


_COUNTER = Struct("<q")
_SIZE = _COUNTER.size * len(InjectedEffect)


class Counters:
    """The counters that a node writes. They survive the process, and the next process continues them.
    Thread-safe."""

    def __init__(self, folder: Path) -> None:
        path = folder / COUNTERS
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._lock = Lock()

    def add(self, what: InjectedEffect) -> None:
        at = what * _COUNTER.size
        with self._lock:
            (before,) = _COUNTER.unpack_from(self._map, at)
            _COUNTER.pack_into(self._map, at, before + 1)


def read_counter(folder: Path, what: InjectedEffect) -> int:
    """Read a counter in the harness. Returns 0 if the node has not run yet."""
    try:
        return int(_COUNTER.unpack_from((folder / COUNTERS).read_bytes(), what * _COUNTER.size)[0])
    except FileNotFoundError:
        return 0
