"""Hands a log to a state machine, piece by piece. Everything here is to be called on the machine's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dledger.errors import Code, StorageError
from dledger.logs import get_logger
from dledger.node.machine.entry_run import EntryRun
from dledger.node.machine.state_machine import Applied, DurableStateMachine, ImageRefused, StateMachine
from dledger.node.machine.state_plan import Apply, Load, Loaded, Replay
from dledger.replica.images import Image, ImageCollector
from dledger.store.api import BatchHead, EntryDamaged, LogStore
from dledger.store.format.batch import Batch
from dledger.store.format.internal import decode_internal, strip_stamp

READ_BYTES = 1 << 20

_log = get_logger("state")


class Recovered(NamedTuple):
    """What a machine has kept. `why_not`: it is not used, for that reason."""

    found: Applied
    why_not: str


class StateFeeder:
    """Of one machine and one store, for one life of a node."""

    def __init__(self, machine: StateMachine, store: LogStore, read_bytes: int = READ_BYTES) -> None:
        self.machine = machine
        self._durable = machine if isinstance(machine, DurableStateMachine) else None
        self._store = store
        self._read_bytes = read_bytes
        self._batch_end = -1  # last entry of the batch within which the recovered state ends
        self._refused: set[int] = set()  # images that the machine cannot load
        self._without_image = (-1, -1)  # (newest image, index of the base) of a log that has no other
        self._is_open = False  # asked to recover, and no call has failed since

    @property
    def is_durable(self) -> bool:
        return self._durable is not None

    def recover(self) -> Recovered | None:
        """Ask the machine what it has kept; None: nothing.

        To be called before anything is made of the store's committed index: as state is only ever made of
        committed entries, what the log agrees with is noted there.
        """
        if self._durable is None:
            return None
        found = self._durable.recover()
        self._is_open = True
        if found is None:
            return None
        why_not = self._why_not(found)
        if not why_not and not self._note_committed(found.index):
            why_not = "it could not be noted as committed: the disk is full"
        return Recovered(found, why_not)

    def _why_not(self, found: Applied) -> str:
        """What in the log contradicts a state. An entry is known by index and term: equal in all logs."""
        store, base = self._store, self._store.base
        if not base.index <= found.index <= store.end_index:
            return f"the log goes from {base.index + 1} to {store.end_index}"
        if found.index == base.index:
            # The position of a base is where its file ends: behind the blank, if there was no more room.
            begins = base.pos - store.data_file_size < found.end_pos <= base.pos
            return "" if begins and found.term == base.term else f"the log begins after {base}"
        try:
            tail, channel = store.tail_at(found.index), store.entry(found.index).channel
        except EntryDamaged as error:
            return str(error)
        if (tail.term, tail.pos) != (found.term, found.end_pos):
            return f"the log has {tail} there"
        self._batch_end = found.index + channel
        return ""

    def _note_committed(self, index: int) -> bool:
        """A batch is committed as a whole."""
        index = max(index, self._batch_end)
        if self._store.committed_checkpoint < index:
            try:
                self._store.save_checkpoint(index, None)
            except StorageError as error:
                if error.code is not Code.DISK_FULL:
                    raise
        return self._store.committed_checkpoint >= index

    def load(self, piece: Load) -> Loaded | None:
        """None: the image is not there yet."""
        base = self._store.base
        self._batch_end = -1
        if piece.newest_image < 0:
            if base.index >= 0:
                return None
            with self._calling():
                self.machine.load(())
            return Loaded(-1, -1, 0)
        for image in self._images(piece):
            try:
                with self._calling():
                    self.machine.load(_pieces(image.state))
            except ImageRefused as error:
                self._refused.add(image.image_index)
                _log.error("a state image is set aside", index=image.image_index, reason=str(error))
                continue
            return Loaded(image.image_index - 1, base.index, len(image.state))
        if not self._refused or base.index >= 0:
            return None  # a newer one has to come
        with self._calling():
            self.machine.load(())
        return Loaded(-1, -1, 0)

    def _images(self, piece: Load) -> Iterator[Image]:
        """Complete images that the machine has not refused, the newest first: whichever it takes, the entries
        after it lead to the same state."""
        begin, found = self._store.base.index + 1, (piece.newest_image, self._store.base.index)
        for first in (piece.newest_image, begin):
            if found == self._without_image:
                return  # all were tried
            known = _complete_images(self._store.iter_heads(first), piece.readable_index)
            for image in reversed(known):
                if image.image_index not in self._refused:
                    yield image
            if not self._refused:
                return
        self._without_image = found

    def replay(self, piece: Replay) -> int:
        """How far it came. Errors as LogStore.read."""
        assert self._durable is not None
        entries, last_index = self._read(piece.first, piece.last)
        if entries:
            with self._calling():
                self._durable.replay(entries)
        return last_index

    def apply(self, piece: Apply, batches: Sequence[Batch] = ()) -> int:
        """How far it came. Errors as LogStore.read. `batches`: what the piece begins with, if it is in
        memory; it was verified when it got there, and the disk is not asked for it."""
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
        """Nothing if the machine was not asked to recover, or if a call has failed: its state is nobody's."""
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
        """Whole batches, and before them what is left of the one that a recovered state ends in."""
        within = first_index <= self._batch_end
        if within:
            last_index = min(last_index, self._batch_end)
        frames = self._store.read(first_index, last_index, self._read_bytes, whole_batches=not within)
        return EntryRun([frames.data]), frames.last_index


def _complete_images(heads: Iterable[BatchHead], readable_index: int) -> list[Image]:
    """In the order of the log."""
    collector = ImageCollector()
    found: list[Image] = []
    for batch in heads:
        if batch.last_index > readable_index:
            break
        collector.see(batch.first_index, strip_stamp(decode_internal(batch.head))[1])
        if collector.newest is not None and (not found or found[-1] is not collector.newest):
            found.append(collector.newest)
    return found


def _pieces(state: bytes, size: int = 1 << 20) -> Sequence[bytes]:
    return [state[at : at + size] for at in range(0, len(state), size)]
