"""Read units from the ConsumeQueues of a RocketMQ broker, `consumequeue/<topic>/<queue id>/<start>`."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import NamedTuple

from broker_adapter.wire.consume_queue_unit import UNIT_SIZE, ConsumeQueueUnit, decode_unit

_NAME = re.compile(r"[0-9]{20}\Z")


class _MappedFile(NamedTuple):
    begin: int  # byte offset in the queue
    data: mmap.mmap


class MappedQueueFiles:
    """ConsumeQueue files. They remain mapped until `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._queues: dict[tuple[str, int], list[_MappedFile]] = {}
        # False if the store has no ConsumeQueues.
        self.exists = directory.is_dir()

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit | None:
        """Return a unit, or None if it does not exist or was never written."""
        key = topic, queue_id
        files = self._queues.get(key)
        if files is None:
            files = self._queues[key] = self._open(topic, queue_id)
        at = offset * UNIT_SIZE
        for file in reversed(files):
            if at >= file.begin:
                within = at - file.begin
                if within + UNIT_SIZE > len(file.data):
                    return None
                unit = decode_unit(file.data[within : within + UNIT_SIZE])
                return unit if unit.size else None
        return None

    def close(self) -> None:
        for files in self._queues.values():
            for file in files:
                file.data.close()
        self._queues.clear()

    def _open(self, topic: str, queue_id: int) -> list[_MappedFile]:
        files = []
        for path in sorted((self._directory / topic / str(queue_id)).glob("*")):
            if _NAME.match(path.name) and path.stat().st_size:
                with path.open("rb") as opened:
                    data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                files.append(_MappedFile(int(path.name), data))
        return files
