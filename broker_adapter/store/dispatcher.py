"""The Dispatcher (RocketMQ's reput): makes ConsumeQueues, index and metadata of committed entries.

It is the state machine of the node: everything that is not said to be for any thread is called on the
machine's thread. What it makes is durable as far as its checkpoint says, and made again from the log beyond.
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
from broker_adapter.format.consume_queue_unit import UNITS_PER_FILE
from broker_adapter.format.index_layout import IndexShape
from broker_adapter.log.protocol import RecordFormat
from broker_adapter.store.applied import NOTHING
from broker_adapter.store.checkpoint import Image, decode_image, encode_image, read_checkpoint
from broker_adapter.store.checkpointer import Checkpointer
from broker_adapter.store.consume_queue import Disagreement
from broker_adapter.store.consume_queues import ConsumeQueues
from broker_adapter.store.dispatching import Delivery, Dispatching, SetAside
from broker_adapter.store.index_files import IndexFiles
from broker_adapter.store.job_queue import JobQueue, ThreadJobQueue
from dledger import Applied, AppliedEntry, ImageRefused
from dledger.platform import Disk, OsDisk, make_directories

_log = structlog.get_logger(part="reput")

ROCKETMQ_SHAPE = IndexShape()

Arrivals = list[tuple[str, int, int]]


class Metadata(Protocol):
    """Topics, groups and offsets: `broker_adapter.metadata`."""

    def apply(self, index: int, body: bytes) -> None:
        """Take the command that a record of the metadata topic holds. An exception sets the entry aside."""

    def save(self) -> bytes: ...

    def load(self, data: bytes) -> None:
        """Forget everything and take over what `save` gave; b"": the empty state."""

    def checkpoint(self) -> bytes:
        """As `save`, but for this node: what files of its own have need not be in it."""

    def sync(self) -> None:
        """What the newest `checkpoint` leaves to its files is durable there on return. On any thread."""

    def checkpointed(self) -> None:
        """The newest `checkpoint` is durable, those before it are not needed any more. On any thread."""

    def restore(self, data: bytes) -> None:
        """Take over what `checkpoint` gave, with what the files had then. Any exception: `load` follows."""

    def close(self) -> None: ...


def _no_delivery(index: int, stamp_ms: int, body: bytes, pos: int, size: int) -> None:
    """For those who keep no such state."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes and limits. Files of other shapes than before are made again."""

    units_per_file: int = UNITS_PER_FILE
    index_shape: IndexShape = ROCKETMQ_SHAPE
    max_open_files: int = 256
    index_backlog: int = 50_000  # messages with keys that the index may lag behind
    checkpoint_interval_s: float = 5.0
    checkpoint_bytes: int = 256 << 20  # of the log: a checkpoint comes earlier after so many


class DispatchFigures(NamedTuple):
    """For metrics. `index_pending`: messages that the index lags behind."""

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
        options: StoreOptions | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = monotonic,
        job_queue: Callable[[str, int], JobQueue] = ThreadJobQueue,
    ) -> None:
        """`durable_index`: of the local log; asked on any thread. `log`: how it stores records. `on_arrival`:
        called once for each `apply` that brought messages, when they can be read, with (topic, queue id,
        max_offset). `delivery`: called with (index, store timestamp, body, position of the entry, size of
        its body) of each command of delivery, whose effects are part of what `metadata` saves. `clock`:
        seconds.
        """
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
        self._lock = RLock()  # of the writer: `purge_below` may come from another thread
        self._dispatching = Dispatching(
            self.queues, self.index, self._index_jobs, metadata.apply, delivery, log
        )
        self._applied: Applied | None = None  # None: what there is is not that of any entry
        self._dispatched = NOTHING
        self._checkpoint_time = clock()
        self._checkpoint_pos = 0
        #: The state was changed beside the log: it is in no checkpoint, or in that of this number.
        self._is_adopted = False
        self._adopted_count = 0

    # -- from any thread --------------------------------------------------------------------------------

    @property
    def dispatched(self) -> Applied:
        """The last entry that readers see the effects of."""
        return self._dispatched

    @property
    def is_durable(self) -> bool:
        """Whether what was changed beside the log is in a checkpoint."""
        return not self._is_adopted and self._checkpointer.count >= self._adopted_count

    def figures(self) -> DispatchFigures:
        return DispatchFigures(
            self._dispatched,
            self._checkpointer.written,
            self._index_jobs.pending,
            self.index.items,
            self._dispatching.foreign_records,
            self._dispatching.set_aside,
        )

    def purge_below(self, physical_offset: int) -> None:
        """Let go of what lies before this byte of the log. Files go with a later checkpoint.

        Waits for a batch that is being dispatched, and for the index if that lags: not for an event loop.
        """
        with self._lock:
            changed = self.queues.purge_below(physical_offset)
            self._index_jobs.submit(partial(self.index.purge_below, physical_offset))
            if changed and self._applied is not None and not self._checkpointer.is_busy:
                self._begin_checkpoint(self._applied)
            self._checkpointer.advance()

    def tend(self) -> None:
        """Make the checkpoint that is due, though nothing is applied any more: needless files wait for it. To
        be called now and then; waits as `purge_below`."""
        with self._lock:
            applied = self._applied
            if applied is not None and not self._checkpointer.is_busy:
                is_behind = applied != self._checkpointer.written or self.queues.has_needless_files
                if (is_behind or self._is_adopted) and self._is_checkpoint_due(applied):
                    self._begin_checkpoint(applied)
            self._checkpointer.advance()

    def adopted(self) -> None:
        """The state was changed beside the log, which tells nothing of that: a checkpoint is due. On the
        machine's thread."""
        self._is_adopted = True

    # -- the state machine ------------------------------------------------------------------------------

    def recover(self) -> Applied | None:
        """How far the files on disk reach, after cutting them to that. None: not to be believed, or empty.

        Whatever disagrees with the checkpoint, everything is made again: `load` has to follow.
        """
        with self._lock:
            try:
                make_directories(self._disk, self._root)
                checkpoint = read_checkpoint(self._disk, self._root)
                if checkpoint is None:
                    _log.info("no checkpoint of derived files: they are made of the log")
                    return None
                shapes = (self._options.units_per_file, self._options.index_shape)
                if (checkpoint.units_per_file, checkpoint.index_shape) != shapes:
                    raise Disagreement(f"files of another shape: {checkpoint.units_per_file} units a file")
                self.queues.restore(checkpoint.queues, checkpoint.misplaced)
                self.index.restore(checkpoint.index_files)
                self._metadata.restore(checkpoint.metadata)
            except Exception as error:
                # Whatever it is that cannot be read, the log has it all.
                _log.error("derived files are not believed and made again from the log", reason=str(error))
                self.queues.forget()
                self.index.forget()
                return None
            self._applied = self._dispatched = checkpoint.applied
            self._checkpointer.restored(checkpoint.applied)
            self._checkpoint_pos = checkpoint.applied.end_pos
            return checkpoint.applied

    def load(self, chunks: Iterable[bytes]) -> None:
        """Begin again, from a state image or from nothing. ImageRefused; another image has to follow."""
        self._load(b"".join(chunks), ())

    def begin_anew(self, physical_offset: int) -> None:
        """Begin again from nothing, where the log begins. Queues whose messages are no more in the log go on
        where they were: their files stay until a checkpoint says as much."""
        with self._lock:
            ends = self.queues.left_ends(physical_offset)
            self._load(b"", ends)
            self._dispatching.go_on_behind(ends)

    def _load(self, data: bytes, kept: Collection[Path]) -> None:
        with self._lock:
            self._applied = None
            make_directories(self._disk, self._root)
            try:
                image = decode_image(data) if data else Image([], b"", [])
                self._metadata.load(image.metadata)
            except StoredDataDamaged as error:
                raise ImageRefused(str(error)) from error
            self._checkpointer.discard()
            self.queues.wipe(kept)
            self.index.wipe()
            self._dispatching.begin(image.queues, image.misplaced)
            self._dispatched = NOTHING

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """Entries that the loaded image covers and the log still has: queues and index are made of them."""
        if entries:
            with self._lock:
                self._dispatching.replay(entries)
                self._dispatched = self._dispatching.reached

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        """Dispatch committed entries. What fails is the disk, never what the entries hold."""
        if not entries:
            return
        with self._lock:
            self._dispatching.end_replay()
            self._applied = None  # should it fail half-way, there is no state that a checkpoint could name
            arrived = self._dispatching.apply(entries)
            self._applied = self._dispatched = self._dispatching.reached
            if not self._checkpointer.is_busy and self._is_checkpoint_due(self._applied):
                self._begin_checkpoint(self._applied)
            self._checkpointer.advance()
        if arrived:
            self._on_arrival([(queue.topic, queue.queue_id, queue.max_offset) for queue in arrived])

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> bool:
        """Let the next message of a new queue get this offset: for the metadata, in its `apply`. False: there
        were messages in it."""
        return self._dispatching.begin_queue(topic, queue_id, offset)

    def save(self) -> Iterable[bytes]:
        with self._lock:
            self._dispatching.end_replay()
            queues = self.queues
            image = Image(queues.positions(), self._metadata.save(), list(queues.misplaced))
            return [encode_image(image)]

    def close(self) -> None:
        """Make a last checkpoint, if the log is durable so far, and let go of all files."""
        with self._lock:
            self._checkpointer.advance()
            self._checkpointer.drain()
            is_behind = self._is_adopted or self._applied != self._checkpointer.written
            if self._applied is not None and is_behind and not self._checkpointer.is_busy:
                self._begin_checkpoint(self._applied, settle=True)
                self._checkpointer.advance()
                self._checkpointer.drain()
            self._index_jobs.close()
            self._sync_jobs.close()
            self.queues.close()
            self.index.close()
            self._metadata.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _is_checkpoint_due(self, applied: Applied) -> bool:
        return (
            self._clock() - self._checkpoint_time >= self._options.checkpoint_interval_s
            or applied.end_pos - self._checkpoint_pos >= self._options.checkpoint_bytes
        )

    def _begin_checkpoint(self, applied: Applied, *, settle: bool = False) -> None:
        self._checkpoint_time = self._clock()
        self._checkpoint_pos = applied.end_pos
        if self._is_adopted:
            self._is_adopted, self._adopted_count = False, self._checkpointer.count + 1
        self._checkpointer.begin(applied, self._metadata.checkpoint(), settle=settle)
