"""The one disk thread of a simulated node: jobs first in first out, each taking virtual time.

A write goes through the page cache: it is written when the job starts and durable when it ends, so that a
crash in between finds it in every state a real one could.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from dledger.errors import Code, StorageError
from dledger.node.disk_worker import CheckpointJob, HardStateReport, Report, StoredReport
from dledger.node.shell import DiskJob, HardStateJob, PurgeJob, ResetJob, TruncateJob, WriteJob

if TYPE_CHECKING:
    from dledger.core.values import Base
    from dledger.testing.process import SimProcess


_HARMLESS = (Code.DISK_FULL, Code.DATA_DAMAGED)


@dataclass(frozen=True, slots=True)
class CallJob:
    """Something else that writes to the store; `done` is called in a turn, whatever came of it."""

    work: Callable[[], None]
    done: Callable[[], None]


Job = DiskJob | CheckpointJob | CallJob


class DiskThread:
    """Executes the jobs of one process on its store, and reports back in turns of the process."""

    def __init__(self, process: SimProcess, rng: Random) -> None:
        self._process = process
        self._rng = rng
        self._queue: deque[Job] = deque()
        self._is_busy = False
        self._last_report_ms = 0
        self._sync_began_ms: int | None = None  # of the job under way, on the simulation's clock
        self._purge_to: Base | None = None  # of a purge that a full disk has put off
        self._checkpoint_is_due = False  # the last one found no room

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._is_busy

    @property
    def checkpoint_waits(self) -> bool:
        return any(isinstance(job, CheckpointJob) for job in self._queue)

    @property
    def has_put_off(self) -> bool:
        return self._checkpoint_is_due or self._purge_to is not None

    @property
    def fsync_began_ms(self) -> int | None:
        began = self._sync_began_ms
        return None if began is None else self._process.at_ms(began)

    def submit_checkpoint(self, job: CheckpointJob) -> None:
        self.submit(job)

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
        group = [job]
        # Several queued writes may share one fdatasync, as a real shell's group commit does.
        while isinstance(job, WriteJob) and self._queue and isinstance(self._queue[0], WriteJob):
            if self._rng.random() < self._process.sim.profile.own_sync:
                break
            group.append(self._queue.popleft())
        process = self._process
        if isinstance(job, WriteJob):
            writes = [j for j in group if isinstance(j, WriteJob)]
            self._write(writes)
        process.after_disk_time(lambda: self._finish(group))

    def _write(self, jobs: list[WriteJob]) -> None:
        process = self._process
        for job in jobs:
            for batch in job.batches:
                process.sim.invariants.written(process.node_id, batch)
            # Copies: the replica lets go of the bytes of its batches when it no longer caches them.
            process.store.append([replace(batch) for batch in job.batches])

    def _finish(self, group: list[Job]) -> None:
        process = self._process
        job = group[-1]
        self._sync_began_ms = None
        match job:
            case WriteJob():
                process.store.sync()
                process.sim.counts["fsyncs"] += 1
                process.sim.invariants.synced(process.node_id)
                last = job.batches[-1]
                self._report(StoredReport(job.generation, last.last_index, last.term))
            case TruncateJob():
                process.sim.invariants.truncating(process.node_id, job.last_index)
                process.store.truncate_after(job.last_index, job.tail)
                process.sim.invariants.truncated(process.node_id, job.last_index)
                process.store.sync()
                process.sim.invariants.synced(process.node_id)
                self._report(StoredReport(job.generation, job.last_index, job.term))
            case HardStateJob():
                process.sim.invariants.hard_state_starts(process.node_id, job.hard_state)
                process.store.save_hard_state(job.hard_state)
                process.sim.invariants.hard_state_saved(process.node_id, job.hard_state)
                self._report(HardStateReport(job.number))
            case ResetJob(generation, base):
                self._purge_to = None
                process.sim.invariants.resetting(process.node_id, base)
                process.store.reset_to(base)
                process.sim.invariants.reset(process.node_id)
                self._report(StoredReport(generation, base.index, base.term))
            case PurgeJob(base):
                self._purge_to = base
            case CheckpointJob():
                process.sim.counts["checkpoints"] += 1
                committed, sessions = job.committed_index, job.sessions
                saved = self._unless_full(lambda: process.store.save_checkpoint(committed, sessions))
                self._checkpoint_is_due = not saved
            case CallJob(work, done):
                self._unless_full(work, _HARMLESS)
                self._later(done)
        if self._purge_to is not None:
            self._purge(self._purge_to)
        self._start()

    def _purge(self, base: Base) -> None:
        process = self._process
        process.sim.invariants.purging(process.node_id, base)
        if self._unless_full(lambda: process.store.purge_to(base)):
            process.sim.counts["purges"] += 1
            process.sim.invariants.purged(process.node_id)
            self._purge_to = None

    def _unless_full(self, work: Callable[[], None], harmless: tuple[Code, ...] = (Code.DISK_FULL,)) -> bool:
        """False: the disk is full, or what is in the log does not fit, and nothing has changed."""
        try:
            work()
        except StorageError as error:
            if error.code not in harmless:
                raise
            self._process.sim.counts[f"disk jobs put off: {error.code.name}"] += 1
            return False
        return True

    def _report(self, report: Report) -> None:
        self._later(lambda: self._process.shell.disk_reported(report))

    def _later(self, action: Callable[[], None]) -> None:
        """The completion crosses to the loop, in order; the loop may be busy for a moment."""
        now_ms = self._process.sim.clock.now_ms
        self._last_report_ms = max(self._last_report_ms, now_ms + self._rng.choice((0, 0, 0, 1)))
        self._process.after(self._last_report_ms - now_ms, action)
