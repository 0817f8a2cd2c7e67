"""What the derived files of a simulated broker lie on, and the job queues that write them in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from broker_adapter.scheduled.delay_file import FILE_NAME
from broker_adapter.store.consume_queues import DIRECTORY, ConsumeQueues
from broker_adapter.store.job_queue import GatheredWork, Job
from dledger.infra.files.disk import list_directory
from dledger.testing import CrashKind
from dledger.testing.virtual.sim_disk import CrashPoint, SimDisk

ROOT = Path("/broker")
_LATE_MS = (0, 0, 0, 5, 40)


class DerivedFiles:
    """A disk of one machine. It outlives processes; a power failure takes or tears what was not synced."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        directory = mkdtemp(prefix="delays-")
        finalize(self, rmtree, directory, ignore_errors=True)
        #: On the real disk: SQLite has its own way to it.
        self.delays = Path(directory) / FILE_NAME
        self.disk.mkdir(ROOT)
        self.disk.sync_directory(ROOT.parent)

    def crash(self, kind: CrashKind, rng: Random) -> None:
        self.disk.crash(kind, rng, reorder=rng.random() < 0.5)

    def needless(self, queues: ConsumeQueues) -> list[Path]:
        """What is there of ConsumeQueues, directories but that of all included, and no reader needs."""
        needed = {ROOT / DIRECTORY}
        for queue in queues.all():
            if queue.min_offset < queue.max_offset:
                needed.update(above for path in queue.paths() for above in (path, *path.parents))
        return [path for path in self._below(ROOT / DIRECTORY) if path not in needed]

    def _below(self, path: Path) -> list[Path]:
        """With all that is in it; nothing if it is not there."""
        if not self.disk.exists(path):
            return []
        names = [] if path in self.disk.files() else list_directory(self.disk, path)
        return [path, *(found for name in names for found in self._below(path / name))]

    def crash_within(self, operations: int, point: CrashPoint) -> None:
        """Go down inside one of the next operations."""
        self.disk.schedule_crash(len(self.disk.operations) + operations, point)


class LateJobQueue:
    """A JobQueue that does its jobs a little later, in turns of their own: `after(ms, action)` asks."""

    def __init__(self, limit: int, rng: Random, after: Callable[[int, Callable[[], None]], None]) -> None:
        self.pending = 0
        self._limit = limit
        self._rng = rng
        self._after = after
        self._jobs: deque[tuple[Job, int]] = deque()

    def gather(self, work: GatheredWork, items: Sequence[Any], weight: int) -> None:
        self.submit(partial(work, list(items)), weight)

    def submit(self, job: Job, weight: int = 0) -> None:
        self._jobs.append((job, weight))
        self.pending += weight
        if self.pending > self._limit:
            self.drain()
        else:
            self._after(self._rng.choice(_LATE_MS), self._next)

    def wait(self, timeout_s: float) -> bool:
        self.drain()
        return True

    def drain(self) -> None:
        while self._jobs:
            self._next()

    def close(self) -> None:
        self.drain()

    def _next(self) -> None:
        if self._jobs:
            job, weight = self._jobs.popleft()
            self.pending -= weight
            job()
