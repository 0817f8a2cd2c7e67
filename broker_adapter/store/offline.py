"""Reads the ConsumeQueues and IndexFiles of a stopped node, even if they are damaged, without changing
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_adapter.errors import BrokerError
from broker_adapter.store.checkpoint import read_checkpoint
from broker_adapter.store.consume_queues import DIRECTORY
from broker_adapter.store.index_file import ITEMS
from broker_adapter.store.index_files import DIRECTORY as INDEX_DIRECTORY
from broker_adapter.wire.consume_queue_unit import (
    UNIT_SIZE,
    ConsumeQueueUnit,
    decode_units,
    queue_offset_at,
)
from broker_adapter.wire.index_layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexShape, key_hash
from dledger.infra.files.disk import Disk, OsDisk, list_directory

# Units per read.
_BLOCK = 16_384
_FILE_NAME = re.compile(r"[0-9]{20}\Z")
_UNWRITTEN = ConsumeQueueUnit(0, 0, 0)


class StoredUnit(NamedTuple):
    """One unit of a queue, and its offset."""

    topic: str
    queue_id: int
    queue_offset: int
    unit: ConsumeQueueUnit


class OfflineQueues:
    """ConsumeQueues in `root`, the directory of the broker's derived files.

    `problems` describes unreadable parts; it is complete once `units` has ended. Invalid file contents do not
    raise exceptions.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._directory = root / DIRECTORY
        self._disk = disk or OsDisk()
        self.problems: list[str] = []

    def units(self) -> Iterator[StoredUnit]:
        """Yield all units of messages, queue by queue in order, up to the unwritten part.

        The first file of a queue that was restored from a state image is also unwritten before its first
        unit. After a crash, there may be units beyond the checkpoint in the same directory; the broker
        rebuilds them.
        """
        for topic in sorted(list_directory(self._disk, self._directory)):
            queues = list_directory(self._disk, self._directory / topic)
            for queue in sorted(queues, key=lambda name: (len(name), name)):
                if queue.isdecimal():
                    yield from self._units_of(topic, int(queue))
                else:
                    self.problems.append(f"{topic}/{queue} is not a queue")

    def _units_of(self, topic: str, queue_id: int) -> Iterator[StoredUnit]:
        folder = self._directory / topic / str(queue_id)
        next_start: int | None = None
        for name in sorted(list_directory(self._disk, folder)):
            path = folder / name
            if not _FILE_NAME.match(name) or int(name) % UNIT_SIZE:
                self.problems.append(f"{path} is not a ConsumeQueue file")
                continue
            if next_start is not None and int(name) != next_start:
                self.problems.append(f"{path}: the previous file ends at {next_start}")
            is_first, next_start = next_start is None, int(name)
            for offset, unit in self._units_in(path, queue_offset_at(int(name)), starts_within=is_first):
                next_start = (offset + 1) * UNIT_SIZE
                if unit.is_message():
                    yield StoredUnit(topic, queue_id, offset, unit)

    def _units_in(
        self, path: Path, first: int, *, starts_within: bool
    ) -> Iterator[tuple[int, ConsumeQueueUnit]]:
        """Yield units with their offsets, up to the unwritten part. `starts_within`: the file may also be
        unwritten before its first unit."""
        try:
            handle = self._disk.open(path, write=False)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
            return
        at = 0
        try:
            while block := self._disk.pread(handle, _BLOCK * UNIT_SIZE, at):
                for unit in decode_units(block[: len(block) - len(block) % UNIT_SIZE]):
                    if unit != _UNWRITTEN:
                        starts_within = False
                        yield first, unit
                    elif not starts_within:
                        return
                    first += 1
                at += len(block)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
        finally:
            self._disk.close(handle)


class OfflineIndex:
    """Keys of messages in the IndexFiles of a node. For `root`, see `OfflineQueues`.

    Uses 16 bytes of memory per key of a message. `problems` describes unreadable parts.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._disk = disk or OsDisk()
        self.problems: list[str] = []
        self._shape = self._shape_in(root)
        folder = root / INDEX_DIRECTORY
        parts = [self._items_in(folder / name) for name in sorted(list_directory(self._disk, folder))]
        items = np.concatenate([np.empty(0, dtype=ITEMS), *parts])
        order = np.argsort(items["offset"], kind="stable")
        self._offsets = items["offset"][order].astype(np.int64)
        self._hashes = items["hash"][order].astype(np.int64)

    def holds(self, texts: Sequence[str], physical_offset: int) -> bool:
        """True if the message at this offset is indexed under each of these texts (`index_keys`)."""
        first, last = np.searchsorted(self._offsets, [physical_offset, physical_offset + 1])
        hashes = set(self._hashes[first:last].tolist())
        return all(key_hash(text) in hashes for text in texts)

    def _shape_in(self, root: Path) -> IndexShape:
        try:
            checkpoint = read_checkpoint(self._disk, root)
        except (OSError, BrokerError) as error:
            self.problems.append(f"checkpoint: {error}")
            checkpoint = None
        return checkpoint.index_shape if checkpoint else IndexShape()

    def _items_in(self, path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Return the items before the unwritten part of the file.

        It starts at the first item with offset 0.
        """
        found = [np.empty(0, dtype=ITEMS)]
        at = HEADER_SIZE + self._shape.slots * SLOT_SIZE + ITEM_SIZE
        try:
            handle = self._disk.open(path, write=False)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
            return found[0]
        try:
            while block := self._disk.pread(handle, _BLOCK * ITEM_SIZE, at):
                items = np.frombuffer(block[: len(block) - len(block) % ITEM_SIZE], dtype=ITEMS)
                (unwritten,) = np.nonzero(items["offset"] == 0)
                found.append(items[: unwritten[0]] if len(unwritten) else items)
                if len(unwritten) or not len(items):
                    break
                at += len(block)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
        finally:
            self._disk.close(handle)
        return np.concatenate(found)
