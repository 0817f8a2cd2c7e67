"""Feeds a log to a state machine, piece by piece. All functions must be called on the machine's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dledger.errors import Code, ReadFailed, StorageError
from dledger.infra.logs import get_logger
from dledger.node.machine.entry_run import EntryRun
from dledger.node.machine.state_machine import (
    Applied,
    DurableStateMachine,
    ImageRefused,
    SnapshotStateMachine,
    StateMachine,
)
from dledger.node.machine.state_plan import ApplyStep, LoadResult, LoadStep, ReplayStep
from dledger.replica.images import ImageRequest
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.format.batch import Batch
from dledger.store.image_files import ImageManifest, ImageMark, ImageWriter

READ_BYTES = 1 << 20
#: Part of a state that is written before entries are applied again, if the machine permits that.
_SAVE_BYTES = 4 << 20

_log = get_logger("state")


class RecoveryResult(NamedTuple):
    """The state a machine recovered. `why_not`: reason not to use it, or empty."""

    found: Applied
    why_not: str


class ImageDamaged(StorageError):
    """Raised if the files of an image are damaged. The machine's state is undefined until the next load."""

    default_code = Code.DATA_DAMAGED

    def __init__(self, message: str, mark: ImageMark) -> None:
        self.mark = mark
        super().__init__(message)


class StateFeeder:
    """Feeds one machine from one store, from the start of the node until it stops."""

    def __init__(self, machine: StateMachine, store: LogStore, read_bytes: int = READ_BYTES) -> None:
        self.machine = machine
        self._durable = machine if isinstance(machine, DurableStateMachine) else None
        self._store = store
        self._read_bytes = read_bytes
        self._batch_end = -1  # last entry of the batch in which the recovered state ends
        self._refused: set[ImageMark] = set()  # images that the machine has refused
        self._snapshots = machine if isinstance(machine, SnapshotStateMachine) else None
        self._writer: ImageWriter | None = None  # of the image in progress
        self._pieces: Iterator[bytes] = iter(())  # the rest of its state
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
        """Load an image. Returns None if there is none yet. Raises ImageDamaged."""
        base, newest = self._store.base, self._store.images.newest
        self._batch_end = -1
        self.abandon_save()
        if piece.newest_image > piece.readable_index:
            return None
        if piece.newest_image >= 0 and newest is not None and newest.mark.index == piece.newest_image:
            if newest.mark not in self._refused and self._load_image(newest):
                return LoadResult(newest.mark.index - 1, base.index, newest.state_size)
        elif piece.newest_image >= 0:
            return None  # replaced by a newer one, which may not be committed here yet
        if base.index >= 0:
            return None  # an image must follow
        with self._calling():
            self.machine.load(())
        return LoadResult(-1, -1, 0)

    def _load_image(self, image: ImageManifest) -> bool:
        """Load the state of an image. Returns False if the machine refuses it. Raises ImageDamaged."""
        try:
            with self._calling():
                self.machine.load(self._store.images.state(image))
        except ImageRefused as error:
            self._refused.add(image.mark)
            _log.error("a state image is set aside", index=image.mark.index, reason=str(error))
            return False
        except StorageError as error:
            raise ImageDamaged(str(error), image.mark) from error
        self._is_open = self.is_durable  # also if an earlier call has failed in between
        return True

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

    @property
    def saves_aside(self) -> bool:
        return self._snapshots is not None

    def begin_save(self, request: ImageRequest, applied: int) -> bool:
        """Begin an image. Returns False if that is impossible: then the request has failed."""
        self.abandon_save()
        try:
            mark = self._store.entry(request.index)
            if mark.term != request.term or applied != request.index - 1:
                return False  # from an earlier leadership: the log has other entries there now
            at = ImageMark(mark.index, mark.term, mark.pos)
            self._writer = self._store.images.writer(at, request.sessions)
        except (StorageError, ReadFailed) as error:
            _log.warning("cannot write a state image", index=request.index, reason=str(error))
            return False
        with self._calling():
            self._pieces = iter(
                self.machine.save() if self._snapshots is None else self._snapshots.snapshot()
            )
        return True

    def save_on(self) -> bool | None:
        """Write the next part of the image. Returns True while parts remain, False once the image is
        complete, and None if it has failed.
        """
        assert self._writer is not None
        size = 0
        try:
            while size < _SAVE_BYTES:
                with self._calling():
                    piece = next(self._pieces, None)
                if piece is None:
                    self._writer.finish()
                    self._writer = None
                    return False
                self._writer.write(piece)
                size += len(piece)
        except StorageError as error:
            _log.warning("cannot write a state image", reason=str(error))
            self.abandon_save()
            return None
        return True

    def abandon_save(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer, self._pieces = None, iter(())

    def close(self) -> None:
        """Close the machine, unless it was not recovered or a call has failed, because its state is then
        undefined.
        """
        self.abandon_save()
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
