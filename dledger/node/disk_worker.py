"""The one thread that writes: jobs in order, one fdatasync for all writes that wait, completions in bulk.

Reads do not come here; they have threads of their own, so that they never wait behind an fdatasync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from dledger.core.values import Base, FlushMode, HardState, Tail
from dledger.errors import Code, DLedgerError, StorageError
from dledger.node.late_bytes import LateBytes
from dledger.node.logs import get_logger
from dledger.node.metrics import NodeMetrics
from dledger.node.shell import DiskJob, HardStateJob, PurgeJob, ResetJob, TruncateJob, WriteJob
from dledger.store.batch import Batch

_log = get_logger("disk")

#: After these the store is as it was, and can be used on.
HARMLESS = (Code.DISK_FULL, Code.DATA_DAMAGED)


class WritableStore(Protocol):
    """The writing half of a LogStore."""

    on_synced: Callable[[], None]

    def append(self, batches: Sequence[Batch]) -> None: ...
    def sync(self) -> int: ...
    def drop_cached(self, begin_pos: int, end_pos: int) -> None: ...
    def truncate_after(self, index: int, tail: Tail | None = None) -> None: ...
    def reset_to(self, base: Base) -> None: ...
    def purge_to(self, base: Base) -> None: ...
    def save_hard_state(self, state: HardState) -> None: ...
    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """Disk: note how far the log is committed, and the session table there. No completion is reported."""

    committed_index: int
    sessions: tuple[int, bytes] | None


@dataclass(frozen=True, slots=True)
class CallJob:
    """Disk: do `work`, which writes, between the other jobs; `outcome` is for whoever asked."""

    work: Callable[[], object]
    outcome: Future[object] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class StoredReport:
    generation: int
    last_index: int
    term: int


@dataclass(frozen=True, slots=True)
class HardStateReport:
    number: int


Report = StoredReport | HardStateReport
Job = DiskJob | CheckpointJob | CallJob


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
        self._sync_each = flush_mode is FlushMode.SYNC_FLUSH
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._metrics = metrics
        self._flush_interval_s = flush_interval_ms / 1000
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._sync_due: float | None = None  # ASYNC_FLUSH: when the unsynced writes are to be synced
        self._purge_to: Base | None = None  # of a purge that the full disk did not let happen yet
        self._busy_since: float | None = None
        self._late = LateBytes()
        store.on_synced = self._synced_a_part
        self.checkpoint_waits = False  # one is queued: behind a stuck fsync others would pile up
        self._checkpoint_is_due = False  # the last one found no room
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
        return self._checkpoint_is_due or self._purge_to is not None

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

    def _write(self, jobs: list[WriteJob]) -> None:
        self._busy_since = monotonic()
        if len(jobs) == 1:
            self._store.append(jobs[0].batches)
        else:
            self._store.append([batch for job in jobs for batch in job.batches])
        if self._sync_each:
            self._sync()
        elif self._sync_due is None:
            self._sync_due = monotonic() + self._flush_interval_s
        self._busy_since = None
        last = jobs[-1].batches[-1]
        # Only a truncation starts a generation, and it separates runs: the last write speaks for all.
        self._deliver(StoredReport(jobs[-1].generation, last.last_index, last.term))
        if jobs[-1].is_late:
            dropped = self._late.stored(jobs[0].batches[0].pos, last.end_pos)
            if dropped is not None:
                self._store.drop_cached(*dropped)

    def _do(self, job: TruncateJob | HardStateJob | CheckpointJob | ResetJob | PurgeJob | CallJob) -> None:
        self._busy_since = monotonic()  # whatever it is: what is queued behind it waits
        match job:
            case TruncateJob(generation, last_index, term, tail):
                self._store.truncate_after(last_index, tail)
                self._sync()
                self._deliver(StoredReport(generation, last_index, term))
            case ResetJob(generation, base):
                self._store.reset_to(base)
                self._deliver(StoredReport(generation, base.index, base.term))
            case HardStateJob(number, hard_state):
                self._store.save_hard_state(hard_state)
                self._deliver(HardStateReport(number))
            case PurgeJob(base):
                self._purge_to = base
            case CheckpointJob():
                self._checkpoint(job)
            case CallJob():
                self._call(job)
        if self._purge_to is not None:
            self._purge(self._purge_to)
        self._busy_since = None

    def _checkpoint(self, job: CheckpointJob) -> None:
        self.checkpoint_waits = False
        self._checkpoint_is_due = True
        try:
            self._store.save_checkpoint(job.committed_index, job.sessions)
            self._checkpoint_is_due = False
        except StorageError as error:
            if error.code is not Code.DISK_FULL:
                raise
            _log.debug("the disk is full: the earlier checkpoint stays")

    def _purge(self, base: Base) -> None:
        try:
            self._store.purge_to(base)
        except StorageError as error:
            if error.code is not Code.DISK_FULL:
                raise
            return  # tried again with the next job: until then a checkpoint comes every few seconds
        self._purge_to = None

    def _call(self, job: CallJob) -> None:
        if not job.outcome.set_running_or_notify_cancel():
            return  # whoever asked waits no longer, as when the node stops
        try:
            job.outcome.set_result(job.work())
        except StorageError as error:
            job.outcome.set_exception(error)
            if error.code not in HARMLESS:
                raise

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
