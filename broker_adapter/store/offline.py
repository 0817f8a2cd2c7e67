"""ConsumeQueues of a node, read from their files: without a server or a change, also if they are torn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker_adapter.format.consume_queue_unit import (
    UNIT_SIZE,
    ConsumeQueueUnit,
    decode_units,
    queue_offset_at,
)
from broker_adapter.store.consume_queues import DIRECTORY
from broker_adapter.store.files import Files, OsFiles, list_directory

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

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._directory = root / DIRECTORY
        self._files = files or OsFiles()
        self.problems: list[str] = []

    def units(self) -> Iterator[StoredUnit]:
        """All units of messages, queue by queue, in their order, up to what was never written. After a crash
        that may be more than the checkpoint beside them covers: the broker makes these again."""
        for topic in sorted(list_directory(self._files, self._directory)):
            queues = list_directory(self._files, self._directory / topic)
            for queue in sorted(queues, key=lambda name: (len(name), name)):
                if queue.isdecimal():
                    yield from self._units_of(topic, int(queue))
                else:
                    self.problems.append(f"{topic}/{queue} is no queue")

    def _units_of(self, topic: str, queue_id: int) -> Iterator[StoredUnit]:
        folder = self._directory / topic / str(queue_id)
        next_start: int | None = None
        for name in sorted(list_directory(self._files, folder)):
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
            handle = self._files.open(path, write=False)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
            return
        at = 0
        try:
            while block := self._files.pread(handle, _BLOCK * UNIT_SIZE, at):
                for unit in decode_units(block[: len(block) - len(block) % UNIT_SIZE]):
                    if unit == _UNWRITTEN:
                        return
                    yield first, unit
                    first += 1
                at += len(block)
        except OSError as error:
            self.problems.append(f"{path}: {error}")
        finally:
            self._files.close(handle)
