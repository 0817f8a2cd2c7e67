"""What is wrong with a node's disk and clock, and what came of it: the channel between harness and node.

One folder per node: `orders.json`, which the harness replaces and the node looks at before every operation
that may fail, and `counters`, in which the node counts what it has done. Both outlive the node.
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
class Orders:
    """What is wrong; several things can be at once.

    slow_ms: so much longer takes every sync of a file. stuck: syncs do not return until it is over.
    write_error, sync_error: writes and syncs fail with EIO. quota_bytes: so much may the files hold, -1: no
    limit; more is ENOSPC. clock_ms: so far ahead of the real one (behind, if negative) is the wall clock.
    """

    slow_ms: int = 0
    stuck: bool = False
    write_error: bool = False
    sync_error: bool = False
    quota_bytes: int = -1
    clock_ms: int = 0


NONE = Orders()


def combined(orders: Iterable[Orders]) -> Orders:
    """All of them at once: times add up, the narrowest quota counts."""
    found = NONE
    for one in orders:
        quotas = [quota for quota in (found.quota_bytes, one.quota_bytes) if quota >= 0]
        found = Orders(
            slow_ms=found.slow_ms + one.slow_ms,
            stuck=found.stuck or one.stuck,
            write_error=found.write_error or one.write_error,
            sync_error=found.sync_error or one.sync_error,
            quota_bytes=min(quotas, default=-1),
            clock_ms=found.clock_ms + one.clock_ms,
        )
    return found


class OrderFile:
    """`orders.json` of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ORDERS
        self._seen: tuple[int, int] | None = None
        self._orders = NONE

    def save(self, orders: Orders) -> None:
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(orders)))
        partial.replace(self._path)

    def now(self) -> Orders:
        """Read again only if the file was replaced: this is asked before every write."""
        try:
            found = os.stat(self._path)  # noqa: PTH116  # half of what Path.stat takes
        except FileNotFoundError:
            return NONE
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._orders = Orders(**json.loads(self._path.read_text()))
            self._seen = seen
        return self._orders


class Did(IntEnum):
    """What a node counts, by its place in the file."""

    SLOW_SYNC = 0
    STUCK_SYNC = 1
    WRITE_ERROR = 2
    SYNC_ERROR = 3
    NO_SPACE = 4
    WRONG_TIME = 5


_COUNTER = Struct("<q")
_SIZE = _COUNTER.size * len(Did)


class Counters:
    """The node's side. Counts survive the process, and go on in its next life. Any thread."""

    def __init__(self, folder: Path) -> None:
        path = folder / COUNTERS
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._lock = Lock()

    def add(self, what: Did) -> None:
        at = what * _COUNTER.size
        with self._lock:
            (before,) = _COUNTER.unpack_from(self._map, at)
            _COUNTER.pack_into(self._map, at, before + 1)


def read_counter(folder: Path, what: Did) -> int:
    """The harness's side. 0 before the node has run."""
    try:
        return int(_COUNTER.unpack_from((folder / COUNTERS).read_bytes(), what * _COUNTER.size)[0])
    except FileNotFoundError:
        return 0
