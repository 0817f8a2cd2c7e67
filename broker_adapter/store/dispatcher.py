"""The Dispatcher (RocketMQ's reput) derives ConsumeQueues, index and metadata from committed entries.

It is the state machine of the node. Methods run on the machine's thread unless documented otherwise. The
files are durable up to the checkpoint; later data is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import NamedTuple, Protocol

import structlog

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.log.protocol import RecordFormat
from broker_adapter.store.applied import NOTHING
from broker_adapter.store.checkpoint import (
    DerivedCheckpoint,
    DerivedImage,
    decode_image,
    encode_image,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from broker_adapter.store.consume_queue import CheckpointMismatch
from broker_adapter.store.consume_queues import ConsumeQueues, Incarnation, QueuesSnapshot
from broker_adapter.store.dispatching import BatchDispatch, Delivery, SetAside
from broker_adapter.store.index_files import IndexFiles, IndexSnapshot
from broker_adapter.store.job_queue import JobQueue, ThreadJobQueue
from broker_adapter.wire.consume_queue_unit import UNITS_PER_FILE
from broker_adapter.wire.index_layout import IndexShape
from dledger import Applied, AppliedEntry, ImageRefused
from dledger.infra.files.disk import Disk, OsDisk, make_directories

_log = structlog.get_logger(part="reput")

ROCKETMQ_SHAPE = IndexShape()

Arrivals = list[tuple[str, int, int]]


class Metadata(Protocol):
    """Interface of the topics, groups and offsets (`broker_adapter.metadata`)."""

    def apply(self, index: int, body: bytes) -> None:
        """Apply the command in a record of the metadata topic.

        If this method raises an error, the entry is set aside, except for OSError, MemoryError and
        StorageError, which are problems of this node.
        """

    def save(self) -> bytes: ...

    def load(self, data: bytes) -> None:
        """Replace the state with a result of `save`. b"" means the empty state."""

    def checkpoint(self) -> bytes:
        """Encode the state for a checkpoint of this node, without the contents of the state's own files."""

    def sync(self) -> None:
        """Sync the files to which the newest `checkpoint` refers. May be called on any thread."""

    def checkpointed(self) -> None:
        """Record that the newest `checkpoint` is durable, which makes earlier ones obsolete.

        May be called on any thread.
        """

    def restore(self, data: bytes) -> None:
        """Restore a result of `checkpoint` and its files. After an exception, the caller must call `load`."""

    def close(self) -> None: ...


def _no_delivery(index: int, stamp_ms: int, body: bytes, pos: int, size: int, term: int) -> None:
    """Ignore delivery commands."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes and limits. Files with other sizes are rebuilt."""

    units_per_file: int = UNITS_PER_FILE
    index_shape: IndexShape = ROCKETMQ_SHAPE
    max_open_files: int = 256
    index_backlog: int = 50_000  # maximum lag of the index, in messages with keys
    checkpoint_interval_s: float = 5.0
    checkpoint_bytes: int = 256 << 20  # log growth that makes a checkpoint due


class DispatchMetrics(NamedTuple):
    """Metrics of the dispatcher. `index_pending`: number of messages by which the index lags."""

    dispatched: Applied
    checkpoint: Applied
    index_pending: int
    index_items: int
    foreign_records: int
    set_aside: SetAside = SetAside()


class Dispatcher:
    def __init__(
        self,
        root: Path,
        metadata: Metadata,
        *,
        durable_index: Callable[[], int],
        log: RecordFormat,
        delivery: Delivery = _no_delivery,
        on_arrival: Callable[[Arrivals], None] = lambda _: None,
        on_incarnation: Callable[[str, int], None] = lambda topic, queue_id: None,
        options: StoreOptions | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = monotonic,
        job_queue: Callable[[str, int], JobQueue] = ThreadJobQueue,
    ) -> None:
        """Create a dispatcher for the derived files in `root`.

        `durable_index` returns the durable index of the local log, on any thread. `log` describes its record
        format. `on_arrival` is called once per `apply` that added messages, after they are readable, with
        (topic, queue id, max_offset). `delivery` is called with (index, store timestamp, body, position of
        the entry, size of its body, its term) for each delivery command; `metadata` saves its effects.
        `clock` returns seconds. `on_incarnation` is called on the machine's thread with (topic, queue id)
        when a queue of a classic log restarts at offset 0; `metadata` saves its effects.
        """
        self._on_incarnation = on_incarnation
        self._root = root
        self._metadata = metadata
        self._on_arrival = on_arrival
        self._options = options = options or StoreOptions()
        self._disk = disk = disk or OsDisk()
        self._clock = clock
        self.queues = ConsumeQueues(
            root,
            disk,
            units_per_file=options.units_per_file,
            max_open_files=options.max_open_files,
            keeps_last=log.begins_queues,
        )
        self.index = IndexFiles(root, disk, shape=options.index_shape)
        self._index_jobs = job_queue("index", options.index_backlog)
        self._sync_jobs = job_queue("checkpoint", 0)
        self._checkpointer = Checkpointer(
            root,
            disk,
            self.queues,
            self.index,
            index_jobs=self._index_jobs,
            sync_jobs=self._sync_jobs,
            durable_index=durable_index,
            metadata=metadata,
        )
        self._lock = RLock()  # serializes the writer and `purge_below` of another thread
        self._dispatching = BatchDispatch(
            self.queues,
            self.index,
            self._index_jobs,
            metadata.apply,
            delivery,
            log,
            self._before_incarnation,
        )
        self._applied: Applied | None = None  # None: the state does not correspond to an entry
        self._dispatched = NOTHING
        self._checkpoint_time = clock()
        self._checkpoint_pos = 0
        # `_adopted_count`: number of state changes outside the log. `_adopted_in`: number of the newest
        # started checkpoint, and of the changes that it includes. `_adopted_before`: number of changes in the
        # previous one.
        self._adopted_count = 0
        self._adopted_in = (0, 0)
        self._adopted_before = 0

    # -- from any thread ---------------------------------------------------------------------------------

    @property
    def dispatched(self) -> Applied:
        """The last entry whose effects are visible to readers."""
        return self._dispatched

    @property
    def adopted_count(self) -> int:
        """Number of state changes outside the log so far."""
        return self._adopted_count

    @property
    def durable_adopted_count(self) -> int:
        """Number of state changes outside the log that a durable checkpoint includes."""
        number, count = self._adopted_in
        return count if self._checkpointer.count >= number else self._adopted_before

    def figures(self) -> DispatchMetrics:
        return DispatchMetrics(
            self._dispatched,
            self._checkpointer.written,
            self._index_jobs.pending,
            self.index.items,
            self._dispatching.foreign_records,
            self._dispatching.set_aside,
        )

    def wait_index(self, timeout_s: float) -> bool:
        """Wait until the index includes everything that has been dispatched so far.

        Return False after `timeout_s`.
        """
        return self._index_jobs.wait(timeout_s)

    def purge_below(self, physical_offset: int) -> None:
        """Drop derived data of the log before this position. A later checkpoint removes the files.

        Do not call this on an event loop, because it waits for a running batch and for a lagging index.
        """
        with self._lock:
            changed = self.queues.purge_below(physical_offset)
            self._index_jobs.submit(partial(self.index.purge_below, physical_offset))
            if changed and self._applied is not None and not self._checkpointer.is_busy:
                self._begin_checkpoint(self._applied)
            self._checkpointer.advance()

    def settle(self) -> None:
        """Write a checkpoint of changes made outside the log, if the log is durable up to the last applied
        entry. Blocks.
        """
        with self._lock:
            self._checkpointer.advance()
            self._checkpointer.drain()
            has_adopted = self._adopted_count > self.durable_adopted_count
            if self._applied is not None and has_adopted and not self._checkpointer.is_busy:
                self._begin_checkpoint(self._applied)
                self._checkpointer.advance()
                self._checkpointer.drain()

    def tend(self) -> None:
        """Write a due checkpoint even without new entries, so that unneeded files are removed. Call
        periodically.

        Waits as `purge_below` does.
        """
        with self._lock:
            applied = self._applied
            if applied is not None and not self._checkpointer.is_busy:
                is_behind = applied != self._checkpointer.written or self.queues.has_needless_files
                has_adopted = self._adopted_count > self.durable_adopted_count
                if (is_behind or has_adopted) and self._is_checkpoint_due(applied):
                    self._begin_checkpoint(applied)
            self._checkpointer.advance()

    def adopted(self) -> None:
        """Record a state change outside the log, which makes a checkpoint due.

        Call on the machine's thread.
        """
        self._adopted_count += 1

    # -- the state machine -------------------------------------------------------------------------------

    def recover(self) -> Applied | None:
        """Restore the files to the state of their checkpoint, and return its position.

        Returns None if there is no checkpoint or the files do not match it. The caller must then rebuild the
        files with `load`.
        """
        with self._lock:
            try:
                make_directories(self._disk, self._root)
                checkpoint = read_checkpoint(self._disk, self._root)
                if checkpoint is None:
                    _log.info("no checkpoint of derived files: rebuilding them from the log")
                    return None
                shapes = (self._options.units_per_file, self._options.index_shape)
                if (checkpoint.units_per_file, checkpoint.index_shape) != shapes:
                    raise CheckpointMismatch(
                        f"the derived files were written with other sizes: {checkpoint.units_per_file} "
                        "units per file"
                    )
                self.queues.restore(checkpoint.queues, checkpoint.misplaced, checkpoint.incarnations)
                self.index.restore(checkpoint.index_files)
                self._metadata.restore(checkpoint.metadata)
            except Exception as error:
                # Any unreadable file can be rebuilt from the log.
                _log.error("derived files are invalid: rebuilding them from the log", reason=str(error))
                self.queues.forget()
                self.index.forget()
                return None
            self._applied = self._dispatched = checkpoint.applied
            self._checkpointer.restored(checkpoint.applied)
            self._checkpoint_pos = checkpoint.applied.end_pos
            return checkpoint.applied

    def load(self, chunks: Iterable[bytes]) -> None:
        """Restart from a state image, or from the empty state.

        Raises ImageRefused if the image is invalid. The caller must then load another image.
        """
        self._load(b"".join(chunks), ())

    def rebuild_from(self, physical_offset: int) -> None:
        """Restart from the empty state at the start of the log.

        Queues whose messages are purged from the log keep their offsets; their files remain until the next
        checkpoint.
        """
        with self._lock:
            ends = self.queues.existing_ends(physical_offset)
            self._load(b"", ends)
            self._dispatching.continue_after(ends)

    def hide_earlier(self, incarnations: Iterable[Incarnation]) -> None:
        """Skip messages of earlier incarnations. Call after `rebuild_from`, on the machine's thread."""
        self._dispatching.hide_earlier(incarnations)

    def _load(self, data: bytes, kept: Collection[Path]) -> None:
        with self._lock:
            self._applied = None
            make_directories(self._disk, self._root)
            try:
                image = decode_image(data) if data else DerivedImage([], b"", [])
                self._metadata.load(image.metadata)
            except StoredDataDamaged as error:
                raise ImageRefused(str(error)) from error
            self._checkpointer.discard()
            self.queues.wipe(kept)
            self.index.wipe()
            self._dispatching.begin(image.queues, image.misplaced)
            self._dispatched = NOTHING

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """Rebuild queues and index from entries whose effects the loaded image already includes."""
        if entries:
            with self._lock:
                self._dispatching.replay(entries)
                self._dispatched = self._dispatching.reached

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        """Dispatch committed entries. Raises only for disk errors, never because of an entry's contents."""
        if not entries:
            return
        with self._lock:
            self._dispatching.end_replay()
            self._applied = None  # after a partial failure no checkpoint describes the state
            arrived = self._dispatching.apply(entries)
            self._applied = self._dispatched = self._dispatching.reached
            if not self._checkpointer.is_busy and self._is_checkpoint_due(self._applied):
                self._begin_checkpoint(self._applied)
            self._checkpointer.advance()
        if arrived:
            self._on_arrival([(queue.topic, queue.queue_id, queue.max_offset) for queue in arrived])

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> bool:
        """Set the first offset of a new queue.

        Return False if it ends at another offset. Called by the `apply` method of the metadata.
        """
        return self._dispatching.begin_queue(topic, queue_id, offset)

    def save(self) -> Iterable[bytes]:
        with self._lock:
            self._dispatching.end_replay()
            queues = self.queues
            image = DerivedImage(queues.positions(), self._metadata.save(), list(queues.misplaced))
            return [encode_image(image)]

    snapshot = save  # what it returns does not depend on later entries

    def close(self) -> None:
        """Write a last checkpoint if the log is durable up to the applied entry, and close all files."""
        with self._lock:
            self._checkpointer.advance()
            self._checkpointer.drain()
            has_adopted = self._adopted_count > self.durable_adopted_count
            is_behind = has_adopted or self._applied != self._checkpointer.written
            if self._applied is not None and is_behind and not self._checkpointer.is_busy:
                self._begin_checkpoint(self._applied, settle=True)
                self._checkpointer.advance()
                self._checkpointer.drain()
            self._index_jobs.close()
            self._sync_jobs.close()
            self.queues.close()
            self.index.close()
            self._metadata.close()

    # -- internals ---------------------------------------------------------------------------------------

    def _before_incarnation(self, topic: str, queue_id: int) -> None:
        """Discard the checkpoint, because the new incarnation reuses the names of files that it describes.

        After a crash before the next checkpoint, the files are rebuilt from the log.
        """
        self._checkpointer.discard()
        self._on_incarnation(topic, queue_id)

    def _is_checkpoint_due(self, applied: Applied) -> bool:
        return (
            self._clock() - self._checkpoint_time >= self._options.checkpoint_interval_s
            or applied.end_pos - self._checkpoint_pos >= self._options.checkpoint_bytes
        )

    def _begin_checkpoint(self, applied: Applied, *, settle: bool = False) -> None:
        self._checkpoint_time = self._clock()
        self._checkpoint_pos = applied.end_pos
        self._adopted_before = self.durable_adopted_count
        self._adopted_in = self._checkpointer.count + 1, self._adopted_count
        self._checkpointer.begin(applied, self._metadata.checkpoint(), settle=settle)


# Checkpoints: a snapshot between two batches, written while dispatching continues.
#
# A snapshot waits until the log is durable up to its position. Then the files are synced, the checkpoint is
# replaced, and finally the files that it does not refer to are removed.


@dataclass(slots=True)
class _PendingCheckpoint:
    applied: Applied
    queues: QueuesSnapshot
    metadata: bytes
    index: IndexSnapshot | None = None
    is_submitted: bool = False


class OwnFiles(Protocol):
    """The metadata's own files, to which a checkpoint refers (see `Metadata`)."""

    def sync(self) -> None: ...

    def checkpointed(self) -> None: ...


class Checkpointer:
    """Writes checkpoints. Called by one thread at a time. The job queues raise write errors."""

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
        self._pending: _PendingCheckpoint | None = None
        self.written = NOTHING
        # Number of checkpoints written.
        self.count = 0

    @property
    def is_busy(self) -> bool:
        """True from the snapshot of a checkpoint until it is written. There is never more than one."""
        return self._pending is not None

    def begin(self, applied: Applied, metadata: bytes, *, settle: bool = False) -> None:
        """Take a snapshot of the state at `applied`. For `settle`, see `IndexFiles.snapshot`."""
        assert self._pending is None
        pending = self._pending = _PendingCheckpoint(applied, self._queues.snapshot(), metadata)

        def take_index() -> None:  # runs after the jobs submitted so far, so at the same log position
            pending.index = self._index.snapshot(settle=settle)

        self._index_jobs.submit(take_index)

    def advance(self) -> None:
        """Start writing the snapshot if there is one and the log is durable up to its position."""
        pending = self._pending
        if pending is None or pending.is_submitted or self._durable_index() < pending.applied.index:
            return
        pending.is_submitted = True
        self._index_jobs.submit(partial(self._sync_jobs.submit, partial(self._write, pending)))

    def drain(self) -> None:
        """Wait for the running jobs."""
        self._index_jobs.drain()
        self._sync_jobs.drain()

    def restored(self, applied: Applied) -> None:
        self.written = applied

    def discard(self) -> None:
        """Remove the checkpoint durably, and drop a snapshot that is not being written yet."""
        self.drain()
        self._pending = None
        self.written = NOTHING
        remove_checkpoint(self._disk, self._root)

    def _write(self, pending: _PendingCheckpoint) -> None:
        """Write a checkpoint. Runs on the sync job queue."""
        queues, index = pending.queues, pending.index
        assert index is not None
        queues.changes.sync(self._disk)
        index.changes.sync(self._disk)
        self._metadata.sync()
        write_checkpoint(
            self._disk,
            self._root,
            DerivedCheckpoint(
                pending.applied,
                self._queues.units_per_file,
                self._index.shape,
                queues.states,
                index.states,
                pending.metadata,
                queues.misplaced,
                queues.incarnations,
            ),
        )
        self._metadata.checkpointed()
        self._queues.remove(queues.doomed)
        self._index.remove(index.doomed)
        self.written = pending.applied
        self.count += 1
        self._pending = None
