"""Feeds a log to a state machine, piece by piece. All functions must be called on the machine's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dledger.errors import Code, StorageError
from dledger.infra.logs import get_logger
from dledger.node.machine.entry_run import EntryRun
from dledger.node.machine.state_machine import Applied, DurableStateMachine, ImageRefused, StateMachine
from dledger.node.machine.state_plan import ApplyStep, LoadResult, LoadStep, ReplayStep
from dledger.replica.images import ImageCollector, StateImage
from dledger.store.api import BatchHead, EntryDamaged, LogStore
from dledger.store.format.batch import Batch
from dledger.store.format.internal import decode_internal, strip_stamp

READ_BYTES = 1 << 20

_log = get_logger("state")


class RecoveryResult(NamedTuple):
    """The state a machine recovered. `why_not`: reason not to use it, or empty."""

    found: Applied
    why_not: str


class StateFeeder:
    """Feeds one machine from one store, from the start of the node until it stops."""

    def __init__(self, machine: StateMachine, store: LogStore, read_bytes: int = READ_BYTES) -> None:
        self.machine = machine
        self._durable = machine if isinstance(machine, DurableStateMachine) else None
        self._store = store
        self._read_bytes = read_bytes
        self._batch_end = -1  # last entry of the batch in which the recovered state ends
        self._refused: set[int] = set()  # images that the machine has refused
        self._without_image = (-1, -1)  # (newest image, index of the base) of a log that has no other
        self._is_open = False  # has recovered, and no call has failed since

    @property
    def is_durable(self) -> bool:
        return self._durable is not None

    def recover(self) -> RecoveryResult | None:
        """Let the machine recover its own state. Returns None if there is none.

        Call before the store's committed index is used. A state contains only committed entries. If it agrees
        with the log, its entries are therefore stored as committed.
        """
        if self._durable is None:
            return None
        applied = self._durable.recover()
        self._is_open = True
        if applied is None:
            return None
        why_not = self._why_not(applied)
        if not why_not and not self._note_committed(applied.index):
            why_not = "its index cannot be stored as committed: the disk is full"
        return RecoveryResult(applied, why_not)

    def _why_not(self, applied: Applied) -> str:
        """Return how the log contradicts a state, or "" if it does not. Entries with equal index and term are
        equal in all logs.
        """
        store, base = self._store, self._store.base
        if not base.index <= applied.index <= store.end_index:
            return f"the log goes from {base.index + 1} to {store.end_index}"
        if applied.index == base.index:
            # The position of a base is the end of its file, after a blank at the end of the file.
            fits = base.pos - store.data_file_size < applied.end_pos <= base.pos
            return "" if fits and applied.term == base.term else f"the log begins after {base}"
        try:
            tail, channel = store.tail_at(applied.index), store.entry(applied.index).channel
        except EntryDamaged as error:
            return str(error)
        if (tail.term, tail.pos) != (applied.term, applied.end_pos):
            return f"the log has {tail} there"
        self._batch_end = applied.index + channel
        return ""

    def _note_committed(self, index: int) -> bool:
        """Store `index`, extended to the end of its batch, as committed. Returns False if
        the disk is full.
        """
        index = max(index, self._batch_end)
        if self._store.committed_checkpoint < index:
            try:
                self._store.save_checkpoint(index, None)
            except StorageError as error:
                if error.code is not Code.DISK_FULL:
                    raise
        return self._store.committed_checkpoint >= index

    def load(self, piece: LoadStep) -> LoadResult | None:
        """Load an image. Returns None if there is none yet."""
        base = self._store.base
        self._batch_end = -1
        if piece.newest_image < 0:
            if base.index >= 0:
                return None
            with self._calling():
                self.machine.load(())
            return LoadResult(-1, -1, 0)
        for image in self._images(piece):
            try:
                with self._calling():
                    self.machine.load(_pieces(image.state))
            except ImageRefused as error:
                self._refused.add(image.image_index)
                _log.error("a state image is set aside", index=image.image_index, reason=str(error))
                continue
            return LoadResult(image.image_index - 1, base.index, len(image.state))
        if not self._refused or base.index >= 0:
            return None  # a newer image must follow
        with self._calling():
            self.machine.load(())
        return LoadResult(-1, -1, 0)

    def _images(self, piece: LoadStep) -> Iterator[StateImage]:
        """Complete images that the machine has not refused, newest first. Each leads to the same state."""
        begin, searched = self._store.base.index + 1, (piece.newest_image, self._store.base.index)
        for first in (piece.newest_image, begin):
            if searched == self._without_image:
                return  # all have been tried
            images = _complete_images(self._store.iter_heads(first), piece.readable_index)
            for image in reversed(images):
                if image.image_index not in self._refused:
                    yield image
            if not self._refused:
                return
        self._without_image = searched

    def replay(self, piece: ReplayStep) -> int:
        """Replay entries and return the last index. Raises the errors of LogStore.read."""
        assert self._durable is not None
        entries, last_index = self._read(piece.first, piece.last)
        if entries:
            with self._calling():
                self._durable.replay(entries)
        return last_index

    def apply(self, piece: ApplyStep, batches: Sequence[Batch] = ()) -> int:
        """Apply entries and return the last index. Raises the errors of LogStore.read.

        `batches`: cached and verified batches at the start of the piece, which avoid a read from disk.
        """
        if batches:
            entries = EntryRun([batch.data for batch in batches])
            last_index = batches[-1].last_index
        else:
            entries, last_index = self._read(piece.first, piece.last)
        if entries:
            with self._calling():
                self.machine.apply(entries)
        return last_index

    def save(self) -> list[bytes]:
        with self._calling():
            return [bytes(piece) for piece in self.machine.save()]

    def close(self) -> None:
        """Close the machine, unless it was not recovered or a call has failed, because its state is then
        undefined.
        """
        if self._durable is not None and self._is_open:
            self._is_open = False
            self._durable.close()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        was_open, self._is_open = self._is_open, False
        try:
            yield
        except ImageRefused:
            self._is_open = was_open
            raise
        self._is_open = was_open

    def _read(self, first_index: int, last_index: int) -> tuple[EntryRun, int]:
        """Read whole batches, preceded by the rest of the batch in which a recovered state ends."""
        within = first_index <= self._batch_end
        if within:
            last_index = min(last_index, self._batch_end)
        frames = self._store.read(first_index, last_index, self._read_bytes, whole_batches=not within)
        return EntryRun([frames.data]), frames.last_index


def _complete_images(heads: Iterable[BatchHead], readable_index: int) -> list[StateImage]:
    """Return the complete images in log order."""
    collector = ImageCollector()
    images: list[StateImage] = []
    for batch in heads:
        if batch.last_index > readable_index:
            break
        collector.add(batch.first_index, strip_stamp(decode_internal(batch.head))[1])
        if collector.newest is not None and (not images or images[-1] is not collector.newest):
            images.append(collector.newest)
    return images


def _pieces(state: bytes, size: int = 1 << 20) -> Sequence[bytes]:
    return [state[at : at + size] for at in range(0, len(state), size)]
