"""What the jobs of the disk thread do to a store, and what they report. No thread, no queue, no clock.

The disk thread of a node and that of the simulator both call this; what is theirs is when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from dledger.core.values import Base, HardState, Tail
from dledger.errors import Code, StorageError
from dledger.logs import get_logger
from dledger.node.disk.page_cache_release import PageCacheRelease
from dledger.replica.shell import DiskJob, HardStateJob, PurgeJob, ResetJob, TruncateJob, WriteJob
from dledger.store.format.batch import Batch

_log = get_logger("disk")

#: After these the store is as it was, and can be used on.
HARMLESS = (Code.DISK_FULL, Code.DATA_DAMAGED)


class JobStore(Protocol):
    """The writing half of a LogStore, as far as jobs need it."""

    def append(self, batches: Sequence[Batch]) -> None: ...
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
OtherJob = TruncateJob | HardStateJob | CheckpointJob | ResetJob | PurgeJob | CallJob
Job = DiskJob | CheckpointJob | CallJob


class DiskJobs:
    """All methods on the disk thread, but `has_put_off`."""

    def __init__(
        self, store: JobStore, *, sync: Callable[[], object], deliver: Callable[[Report], None]
    ) -> None:
        """`sync` makes what is appended or truncated durable; `deliver` must only hand over."""
        self._store = store
        self._sync = sync
        self._deliver = deliver
        self._purge_to: Base | None = None  # of a purge that the full disk did not let happen yet
        self._checkpoint_is_due = False  # the last one found no room
        self._late = PageCacheRelease()

    @property
    def has_put_off(self) -> bool:
        """A purge or a checkpoint found no room: the next checkpoint is to try again. Any thread."""
        return self._checkpoint_is_due or self._purge_to is not None

    def append(self, writes: Sequence[WriteJob]) -> None:
        """Into the page cache; `sync_and_report` or `report` is to follow."""
        if len(writes) == 1:
            self._store.append(writes[0].batches)
        else:
            self._store.append([batch for job in writes for batch in job.batches])

    def sync_and_report(self, writes: Sequence[WriteJob]) -> None:
        """One sync for all that `append` was given."""
        self._sync()
        self.report(writes)

    def report(self, writes: Sequence[WriteJob]) -> None:
        newest = writes[-1]
        last = newest.batches[-1]
        # Only a truncation starts a generation, and it separates runs: the last write speaks for all.
        self._deliver(StoredReport(newest.generation, last.last_index, last.term))
        if newest.is_late:
            dropped = self._late.stored(writes[0].batches[0].pos, last.end_pos)
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
