"""The single writing thread. It executes jobs in order, with one fdatasync for all queued writes, and reports
completions together.

`DiskJobs` executes the jobs and delivers their reports, without a thread, queue or clock. The disk thread of
a node (`DiskWorker`) and the simulator both use it. Reads have threads of their own, so that they never wait
for an fdatasync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Protocol

from dledger.core.values import Base, FlushMode, HardState, Tail
from dledger.errors import Code, DLedgerError, StorageError
from dledger.infra.logs import get_logger
from dledger.metrics import NodeMetrics
from dledger.replica.shell import DiskJob, HardStateJob, PurgeJob, ResetJob, TruncateJob, WriteJob
from dledger.store.format.batch import Batch

_log = get_logger("disk")

#: After these errors the store is unchanged and usable.
HARMLESS = (Code.DISK_FULL, Code.DATA_DAMAGED)


class JobStore(Protocol):
    """The writing half of a LogStore, as used by jobs."""

    def append(self, batches: Sequence[Batch]) -> None: ...
    def drop_cached(self, begin_pos: int, end_pos: int) -> None: ...
    def truncate_after(self, index: int, tail: Tail | None = None) -> None: ...
    def reset_to(self, base: Base) -> None: ...
    def purge_to(self, base: Base) -> None: ...
    def save_hard_state(self, state: HardState) -> None: ...
    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """On the disk thread, store the committed index and, if given, a session table with its index. Completion
    is not reported."""

    committed_index: int
    sessions: tuple[int, bytes] | None


@dataclass(frozen=True, slots=True)
class CallJob:
    """On the disk thread, run `work`, which writes to the store, between the other jobs. `outcome` receives
    the result."""

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
OtherJob = TruncateJob | HardStateJob | CheckpointJob | ResetJob | PurgeJob | CallJob
Job = DiskJob | CheckpointJob | CallJob


class DiskJobs:
    """Executes disk jobs. Call all methods except `has_put_off` on the disk thread."""

    def __init__(
        self, store: JobStore, *, sync: Callable[[], object], deliver: Callable[[Report], None]
    ) -> None:
        """`sync` makes appended or truncated data durable. `deliver` must only pass the report to another
        thread."""
        self._store = store
        self._sync = sync
        self._deliver = deliver
        self._purge_to: Base | None = None  # base of a purge delayed by a full disk
        self._checkpoint_is_due = False  # the last one found no room
        self._page_cache_release = PageCacheRelease()

    @property
    def has_put_off(self) -> bool:
        """Return True if a full disk delayed a purge or checkpoint, so the next checkpoint must retry. Any
        thread.
        """
        return self._checkpoint_is_due or self._purge_to is not None

    def append(self, writes: Sequence[WriteJob]) -> None:
        """Write to the page cache. Call `sync_and_report` or `report` afterwards."""
        if len(writes) == 1:
            self._store.append(writes[0].batches)
        else:
            self._store.append([batch for job in writes for batch in job.batches])

    def sync_and_report(self, writes: Sequence[WriteJob]) -> None:
        """Sync once for all earlier writes of `append`, and report them."""
        self._sync()
        self.report(writes)

    def report(self, writes: Sequence[WriteJob]) -> None:
        newest = writes[-1]
        last = newest.batches[-1]
        # Only a truncation starts a generation, and it separates runs: the last write represents all.
        self._deliver(StoredReport(newest.generation, last.last_index, last.term))
        if newest.is_late:
            dropped = self._page_cache_release.stored(writes[0].batches[0].pos, last.end_pos)
            if dropped is not None:
                self._store.drop_cached(*dropped)

    def do(self, job: OtherJob) -> None:
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

    def _checkpoint(self, job: CheckpointJob) -> None:
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
            return  # retried with the next job; checkpoints follow every few seconds
        self._purge_to = None

    def _call(self, job: CallJob) -> None:
        if not job.outcome.set_running_or_notify_cancel():
            return  # cancelled by the caller, for example when the node stops
        try:
            job.outcome.set_result(job.work())
        except StorageError as error:
            job.outcome.set_exception(error)
            if error.code not in HARMLESS:
                raise


# Release of page cache pages that a follower stores during catch-up. Pure.
#
# A follower will hardly read these pages, and they can amount to the whole log. In the page cache they would
# evict pages that other processes of the machine read. If the hypervisor reclaims unused memory, the
# allocation of a page costs more than the copy into it (benchmarks/RECORD.md).

#: The newest pages remain in the cache, for a state machine that lags and for live readers.
KEPT_BYTES: Final = 128 << 20
#: Granularity of the release.
STEP_BYTES: Final = 8 << 20


class PageCacheRelease:
    """The range that catch-up has stored and that is still in the page cache."""

    def __init__(self) -> None:
        self._begin = self._end = -STEP_BYTES

    def stored(self, begin_pos: int, end_pos: int) -> tuple[int, int] | None:
        """Add a synced range. Returns the range (start, end) to drop from the page cache now, or None.

        A range that is stored outside of catch-up, or a truncation, ends a catch-up; the newest pages of each
        catch-up stay in the cache.
        """
        if not 0 <= begin_pos - self._end < STEP_BYTES:  # data files end with a blank
            self._begin = begin_pos
        self._end = end_pos
        end = end_pos - KEPT_BYTES
        if end - self._begin < STEP_BYTES:
            return None
        begin, self._begin = self._begin, end
        return begin, end


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
        """`deliver` and `on_fatal` are called on the disk thread, and must only pass the call to another
        thread."""
        self._store = store
        self._jobs = DiskJobs(store, sync=self._sync, deliver=deliver)
        self._sync_each = flush_mode is FlushMode.SYNC_FLUSH
        self._on_fatal = on_fatal
        self._metrics = metrics
        self._flush_interval_s = flush_interval_ms / 1000
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._sync_due: float | None = None  # ASYNC_FLUSH: when to sync the unsynced writes
        self._busy_since: float | None = None
        store.on_synced = self._synced_a_part
        self.checkpoint_waits = False  # one is queued: more would accumulate behind a stuck fsync
        # A daemon thread: an exiting process must not wait for a thread stuck in the kernel.
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    @property
    def busy_seconds(self) -> float:
        """Duration of the running write or sync so far; 0 if there is none. May be read on any thread."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    @property
    def fsync_began_ms(self) -> int | None:
        """Start of the running write or sync on the monotonic clock. A stuck disk may block the write as well
        as the sync."""
        since = self._busy_since
        return None if since is None else int(since * 1000)

    @property
    def has_put_off(self) -> bool:
        """Return True if a full disk delayed a purge or checkpoint, so the next checkpoint must retry. Any
        thread.
        """
        return self._jobs.has_put_off

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    def submit_checkpoint(self, job: CheckpointJob) -> None:
        self.checkpoint_waits = True
        self._queue.put(job)

    def call(self, work: Callable[[], object]) -> Future[object]:
        """Run other work that writes to the store on the disk thread.

        The future fails with StorageError DISK_FULL or DATA_DAMAGED, after which the store is unchanged.
        Other errors end the process.
        """
        job = CallJob(work)
        self._queue.put(job)
        return job.outcome

    def stop(self, timeout_s: float) -> bool:
        """Finish the queued jobs. Returns False if the thread is stuck; then the store must not be used."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._run_jobs():
                pass
            if self._sync_due is not None:
                self._sync()
        except StorageError as error:
            self._on_fatal(error)
        except Exception as error:  # the state on disk is uncertain after any error
            self._on_fatal(StorageError(f"the disk thread failed: {type(error).__name__}: {error}"))

    def _run_jobs(self) -> bool:
        """Execute all queued jobs. Returns False after the stop."""
        jobs: list[Job] = []
        continues = self._collect(jobs)
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
        return continues

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
        self._busy_since = monotonic()  # every job delays the jobs behind it
        if isinstance(job, CheckpointJob):
            self.checkpoint_waits = False
        self._jobs.do(job)
        self._busy_since = None

    def _synced_a_part(self) -> None:
        """Restart the measurement after each of several syncs, because a slow disk is not a stuck one."""
        if self._busy_since is not None:
            self._busy_since = monotonic()

    def _sync(self) -> None:
        started = monotonic()
        self._busy_since = self._busy_since or started
        self._store.sync()
        self._busy_since = None
        self._sync_due = None
        self._metrics.fsync_latency.observe(monotonic() - started)
