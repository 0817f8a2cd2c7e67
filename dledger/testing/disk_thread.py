"""The one disk thread of a simulated node: jobs first in first out, each taking virtual time.

What the jobs do is `DiskJobs` of a real node. A write goes through the page cache: it is written when the job
starts and durable when it ends, so that a crash in between finds it in every state a real one could.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from random import Random

from dledger.core.values import Base, HardState, Tail
from dledger.errors import StorageError
from dledger.node.disk.disk_jobs import HARMLESS, CallJob, CheckpointJob, DiskJobs, Job, Report
from dledger.replica.shell import WriteJob
from dledger.store.format.batch import Batch
from dledger.testing.world import Life


class ObservedStore:
    """Implements dledger.node.disk.disk_jobs.JobStore: the store of a process. The invariants see what is
    done to it, before and after."""

    def __init__(self, process: Life) -> None:
        self._store = process.store
        self._node_id = process.node_id
        self._invariants = process.sim.invariants
        self._counts = process.sim.counts

    def append(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._invariants.written(self._node_id, batch)
        # Copies: the replica lets go of the bytes of its batches when it no longer caches them.
        self._store.append([replace(batch) for batch in batches])

    def sync(self) -> None:
        self._store.sync()
        self._counts["fsyncs"] += 1
        self._invariants.synced(self._node_id)

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        self._store.drop_cached(begin_pos, end_pos)

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        self._invariants.truncating(self._node_id, index)
        self._store.truncate_after(index, tail)
        self._invariants.truncated(self._node_id, index)

    def reset_to(self, base: Base) -> None:
        self._invariants.resetting(self._node_id, base)
        self._store.reset_to(base)
        self._invariants.reset(self._node_id)

    def purge_to(self, base: Base) -> None:
        self._invariants.purging(self._node_id, base)
        self._counting(lambda: self._store.purge_to(base))
        self._counts["purges"] += 1
        self._invariants.purged(self._node_id)

    def save_hard_state(self, state: HardState) -> None:
        self._invariants.hard_state_starts(self._node_id, state)
        self._store.save_hard_state(state)
        self._invariants.hard_state_saved(self._node_id, state)

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        self._counts["checkpoints"] += 1
        self._counting(lambda: self._store.save_checkpoint(committed_index, sessions))

    def _counting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            if error.code in HARMLESS:
                self._counts[f"disk jobs put off: {error.code.name}"] += 1
            raise


class DiskThread:
    """Executes the jobs of one process on its store, and reports back in turns of the process."""

    def __init__(self, process: Life, rng: Random) -> None:
        self._process = process
        self._rng = rng
        store = ObservedStore(process)
        self._jobs = DiskJobs(store, sync=store.sync, deliver=self._deliver)
        self._queue: deque[Job] = deque()
        self._is_busy = False
        self._last_report_ms = 0
        self._sync_began_ms: int | None = None  # of the job under way, on the simulation's clock

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._is_busy

    @property
    def checkpoint_waits(self) -> bool:
        return any(isinstance(job, CheckpointJob) for job in self._queue)

    @property
    def has_put_off(self) -> bool:
        return self._jobs.has_put_off

    @property
    def fsync_began_ms(self) -> int | None:
        began = self._sync_began_ms
        return None if began is None else self._process.at_ms(began)

    def submit_checkpoint(self, job: CheckpointJob) -> None:
        self.submit(job)

    def call(self, work: Callable[[], object]) -> Future[object]:
        """As DiskWorker has it."""
        job = CallJob(work)
        self.submit(job)
        return job.outcome

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        if not self._is_busy:
            # Never inside the turn that submits: the machine may go down in what the job does.
            self._is_busy = True
            self._process.sim.clock.after(0, lambda: self._process.on_disk(self._start))

    def _start(self) -> None:
        if not self._queue:
            self._is_busy = False
            return
        self._is_busy = True
        self._sync_began_ms = self._process.sim.clock.now_ms
        job = self._queue.popleft()
        if not isinstance(job, WriteJob):
            other = job
            self._process.after_disk_time(lambda: self._finish(lambda: self._jobs.do(other)))
            return
        writes = [job]
        # Several queued writes may share one fdatasync, as a real disk thread's group commit does.
        while self._queue and isinstance(following := self._queue[0], WriteJob):
            if self._rng.random() < self._process.sim.profile.own_sync:
                break
            self._queue.popleft()
            writes.append(following)
        self._jobs.append(writes)
        self._process.after_disk_time(lambda: self._finish(lambda: self._jobs.sync_and_report(writes)))

    def _finish(self, work: Callable[[], None]) -> None:
        self._sync_began_ms = None
        work()
        self._start()

    def _deliver(self, report: Report) -> None:
        self.later(lambda: self._process.shell.disk_reported(report))

    def later(self, action: Callable[[], None]) -> None:
        """A completion crosses to the loop, in order; the loop may be busy for a moment."""
        now_ms = self._process.sim.clock.now_ms
        self._last_report_ms = max(self._last_report_ms, now_ms + self._rng.choice((0, 0, 0, 1)))
        self._process.after(self._last_report_ms - now_ms, action)
