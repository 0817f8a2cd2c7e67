"""Makes checkpoints: a snapshot between two batches, written while dispatching goes on.

A snapshot waits until the log itself is durable up to where it was taken. Then the files are synced, the
checkpoint is replaced, and only then files go that it does not name any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from broker_adapter.store.applied import NOTHING
from broker_adapter.store.checkpoint import Checkpoint, remove_checkpoint, write_checkpoint
from broker_adapter.store.consume_queues import ConsumeQueues, QueuesSnapshot
from broker_adapter.store.index_files import IndexFiles, IndexSnapshot
from broker_adapter.store.job_queue import JobQueue
from dledger import Applied
from dledger.platform import Disk


@dataclass(slots=True)
class _Begun:
    applied: Applied
    queues: QueuesSnapshot
    metadata: bytes
    index: IndexSnapshot | None = None
    handed_on: bool = False


class OwnFiles(Protocol):
    """Files of the metadata, which a checkpoint speaks of (`dispatcher.Metadata`)."""

    def sync(self) -> None: ...

    def checkpointed(self) -> None: ...


class Checkpointer:
    """Called by one thread at a time. What fails in writing, the job queues raise."""

    def __init__(
        self,
        root: Path,
        disk: Disk,
        queues: ConsumeQueues,
        index: IndexFiles,
        *,
        index_jobs: JobQueue,
        sync_jobs: JobQueue,
        durable_index: Callable[[], int],
        metadata: OwnFiles,
    ) -> None:
        self._root = root
        self._disk = disk
        self._queues = queues
        self._index = index
        self._index_jobs = index_jobs
        self._sync_jobs = sync_jobs
        self._durable_index = durable_index
        self._metadata = metadata
        self._begun: _Begun | None = None
        self.written = NOTHING
        #: How many were written.
        self.count = 0

    @property
    def is_busy(self) -> bool:
        """One is being made: another cannot begin."""
        return self._begun is not None

    def begin(self, applied: Applied, metadata: bytes, *, settle: bool = False) -> None:
        """Take a snapshot: what has been dispatched is what `applied` says. `settle`: as for IndexFiles."""
        assert self._begun is None
        begun = self._begun = _Begun(applied, self._queues.snapshot(), metadata)

        def take_index() -> None:  # behind what was submitted so far, so at the same point of the log
            begun.index = self._index.snapshot(settle=settle)

        self._index_jobs.submit(take_index)

    def advance(self) -> None:
        """Let the snapshot be written, if there is one and the log is durable so far."""
        begun = self._begun
        if begun is None or begun.handed_on or self._durable_index() < begun.applied.index:
            return
        begun.handed_on = True
        self._index_jobs.submit(partial(self._sync_jobs.submit, partial(self._write, begun)))

    def drain(self) -> None:
        """Wait for what goes on in the job queues."""
        self._index_jobs.drain()
        self._sync_jobs.drain()

    def restored(self, applied: Applied) -> None:
        self.written = applied

    def discard(self) -> None:
        """There is no checkpoint any more, durably, nor will there be one of anything up to now."""
        self.drain()
        self._begun = None
        self.written = NOTHING
        remove_checkpoint(self._disk, self._root)

    def _write(self, begun: _Begun) -> None:
        """On the sync job queue."""
        queues, index = begun.queues, begun.index
        assert index is not None
        queues.changes.sync(self._disk)
        index.changes.sync(self._disk)
        self._metadata.sync()
        write_checkpoint(
            self._disk,
            self._root,
            Checkpoint(
                begun.applied,
                self._queues.units_per_file,
                self._index.shape,
                queues.states,
                index.states,
                begun.metadata,
                queues.misplaced,
            ),
        )
        self._metadata.checkpointed()
        self._queues.remove(queues.doomed)
        self._index.remove(index.doomed)
        self.written = begun.applied
        self.count += 1
        self._begun = None
