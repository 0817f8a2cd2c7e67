"""ConsumeQueues and IndexFiles of a node, read from their files: without a server or a change, also if they
are torn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_adapter.errors import BrokerError
from broker_adapter.format.consume_queue_unit import (
    UNIT_SIZE,
    ConsumeQueueUnit,
    decode_units,
    queue_offset_at,
)
from broker_adapter.format.index_layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexShape, key_hash
from broker_adapter.store.checkpoint import read_checkpoint
from broker_adapter.store.consume_queues import DIRECTORY
from broker_adapter.store.index_file import ITEMS
from broker_adapter.store.index_files import DIRECTORY as INDEX_DIRECTORY
from dledger.platform import Disk, OsDisk, list_directory

#: Units read at once.
_BLOCK = 16_384
_FILE_NAME = re.compile(r"[0-9]{20}\Z")
_UNWRITTEN = ConsumeQueueUnit(0, 0, 0)


class StoredUnit(NamedTuple):
    """One unit of a queue, at its offset."""

    topic: str
    queue_id: int
    queue_offset: int
    unit: ConsumeQueueUnit


class OfflineQueues:
    """`root`: the directory of the broker's derived files. `problems`: what could not be read, in words; it
    is complete once `units` has come to its end. Raises for nothing that the files hold or lack."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._directory = root / DIRECTORY
        self._disk = disk or OsDisk()
        self.problems: list[str] = []

    def units(self) -> Iterator[StoredUnit]:
        """All units of messages, queue by queue, in their order, up to what was never written. After a crash
        that may be more than the checkpoint beside them covers: the broker makes these again."""
        for topic in sorted(list_directory(self._disk, self._directory)):
            queues = list_directory(self._disk, self._directory / topic)
            for queue in sorted(queues, key=lambda name: (len(name), name)):
                if queue.isdecimal():
                    yield from self._units_of(topic, int(queue))
                else:
                    self.problems.append(f"{topic}/{queue} is no queue")

    def _units_of(self, topic: str, queue_id: int) -> Iterator[StoredUnit]:
        folder = self._directory / topic / str(queue_id)
        next_start: int | None = None
        for name in sorted(list_directory(self._disk, folder)):
            path = folder / name
            if not _FILE_NAME.match(name) or int(name) % UNIT_SIZE:
                self.problems.append(f"{path} is no file of a queue")
                continue
            if next_start is not None and int(name) != next_start:
                self.problems.append(f"{path}: the file before it ends at {next_start}")
            read = 0
            for offset, unit in self._units_in(path, queue_offset_at(int(name))):
                read += 1
                if unit.is_message():
                    yield StoredUnit(topic, queue_id, offset, unit)
            next_start = int(name) + read * UNIT_SIZE

    def _units_in(self, path: Path, first: int) -> Iterator[tuple[int, ConsumeQueueUnit]]:
        """With their offsets, up to the first that was never written."""
        try:
            handle = self._disk.open(path, write=False)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
            return
        at = 0
        try:
            while block := self._disk.pread(handle, _BLOCK * UNIT_SIZE, at):
                for unit in decode_units(block[: len(block) - len(block) % UNIT_SIZE]):
                    if unit == _UNWRITTEN:
                        return
                    yield first, unit
                    first += 1
                at += len(block)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
        finally:
            self._disk.close(handle)


class OfflineIndex:
    """Which messages the IndexFiles of a node have under which keys. `root`: as of `OfflineQueues`. Read at
    once: 16 bytes for each key of each message. `problems`: what could not be read, in words."""

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
        """Whether the message at this offset is in the files under all of these texts (`index_keys`)."""
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
        """Up to the first that was never written: no message stands at offset 0."""
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
