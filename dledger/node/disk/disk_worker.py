"""The one thread that writes: jobs in order, one fdatasync for all writes that wait, completions in bulk.

Reads do not come here; they have threads of their own, so that they never wait behind an fdatasync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from dledger.core.values import FlushMode
from dledger.errors import DLedgerError, StorageError
from dledger.metrics import NodeMetrics
from dledger.node.disk.disk_jobs import CallJob, CheckpointJob, DiskJobs, Job, JobStore, OtherJob, Report
from dledger.replica.shell import WriteJob


class WritableStore(JobStore, Protocol):
    """The writing half of a LogStore."""

    on_synced: Callable[[], None]

    def sync(self) -> int: ...


class DiskWorker:
    """Owns the writing side of a store from `start` until `stop` has returned True."""

    def __init__(
        self,
        store: WritableStore,
        flush_mode: FlushMode,
        *,
        deliver: Callable[[Report], None],
        on_fatal: Callable[[DLedgerError], None],
        metrics: NodeMetrics,
        flush_interval_ms: int = 500,
    ) -> None:
        """`deliver` and `on_fatal` are called on the disk thread: they must only hand over."""
        self._store = store
        self._jobs = DiskJobs(store, sync=self._sync, deliver=deliver)
        self._sync_each = flush_mode is FlushMode.SYNC_FLUSH
        self._on_fatal = on_fatal
        self._metrics = metrics
        self._flush_interval_s = flush_interval_ms / 1000
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._sync_due: float | None = None  # ASYNC_FLUSH: when the unsynced writes are to be synced
        self._busy_since: float | None = None
        store.on_synced = self._synced_a_part
        self.checkpoint_waits = False  # one is queued: behind a stuck fsync others would pile up
        # A daemon: a process that ends never waits for a thread that is stuck in the kernel.
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    @property
    def busy_seconds(self) -> float:
        """For how long what is being made durable has taken so far; 0 if nothing is. Any thread."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    @property
    def fsync_began_ms(self) -> int | None:
        """When that began, on the monotonic clock. Writing counts, too: a stuck disk may not even take it."""
        since = self._busy_since
        return None if since is None else int(since * 1000)

    @property
    def has_put_off(self) -> bool:
        """A purge or a checkpoint found no room: the next checkpoint is to try again. Any thread."""
        return self._jobs.has_put_off

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    def submit_checkpoint(self, job: CheckpointJob) -> None:
        self.checkpoint_waits = True
        self._queue.put(job)

    def call(self, work: Callable[[], object]) -> Future[object]:
        """Do something else that writes to the store on the disk thread. StorageError DISK_FULL and
        DATA_DAMAGED, after which nothing has changed, go to the caller; others end the process."""
        job = CallJob(work)
        self._queue.put(job)
        return job.outcome

    def stop(self, timeout_s: float) -> bool:
        """Finish what is queued. False: the thread is stuck, and the store must not be touched."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._take_turn():
                pass
            if self._sync_due is not None:
                self._sync()
        except StorageError as error:
            self._on_fatal(error)
        except Exception as error:  # whatever it is, what is on the disk is in doubt now
            self._on_fatal(StorageError(f"the disk thread failed: {type(error).__name__}: {error}"))

    def _take_turn(self) -> bool:
        """Do all jobs that wait. False after the stop."""
        jobs: list[Job] = []
        going = self._collect(jobs)
        writes: list[WriteJob] = []
        for job in jobs:
            if isinstance(job, WriteJob):
                writes.append(job)
                continue
            if writes:
                self._write(writes)
                writes = []
            self._do(job)
        if writes:
            self._write(writes)
        if self._sync_due is not None and monotonic() >= self._sync_due:
            self._sync()
        return going

    def _collect(self, jobs: list[Job]) -> bool:
        get = self._queue.get
        try:
            timeout = None if self._sync_due is None else max(0.0, self._sync_due - monotonic())
            job = get(timeout=timeout)
            while job is not None:
                jobs.append(job)
                job = get(block=False)
        except Empty:
            return True
        return False

    def _write(self, jobs: Sequence[WriteJob]) -> None:
        self._busy_since = monotonic()
        self._jobs.append(jobs)
        if self._sync_each:
            self._jobs.sync_and_report(jobs)
            return
        if self._sync_due is None:
            self._sync_due = monotonic() + self._flush_interval_s
        self._busy_since = None
        self._jobs.report(jobs)

    def _do(self, job: OtherJob) -> None:
        self._busy_since = monotonic()  # whatever it is: what is queued behind it waits
        if isinstance(job, CheckpointJob):
            self.checkpoint_waits = False
        self._jobs.do(job)
        self._busy_since = None

    def _synced_a_part(self) -> None:
        """A slow disk on which a job of several syncs takes long is not stuck."""
        if self._busy_since is not None:
            self._busy_since = monotonic()

    def _sync(self) -> None:
        started = monotonic()
        self._busy_since = self._busy_since or started
        self._store.sync()
        self._busy_since = None
        self._sync_due = None
        self._metrics.fsync_latency.observe(monotonic() - started)
