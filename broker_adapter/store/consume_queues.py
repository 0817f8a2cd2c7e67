"""All ConsumeQueues of a node: the table, deletion and purging, and their part of the checkpoint.

One thread changes it, any thread may read.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from broker_adapter.errors import IllegalMessage
from broker_adapter.format.consume_queue_unit import (
    UNIT_SIZE,
    UNITS_PER_FILE,
    ConsumeQueueUnit,
    decode_unit,
)
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.store.consume_queue import ConsumeQueue, QueueState
from broker_adapter.store.open_files import Changes, OpenFiles
from dledger.platform import Disk, list_directory

_log = structlog.get_logger(part="reput")

DIRECTORY = "consumequeue"
_FILE_NAME = re.compile(r"[0-9]{20}\Z")
#: So many messages without a place are remembered, the newest ones.
_MOST_MISPLACED = 4096
_QUEUE_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\Z")


class QueuePosition(NamedTuple):
    """What of a queue is the same on every node: its next offset, and its floor (`ConsumeQueue`)."""

    topic: str
    queue_id: int
    next_offset: int
    floor: int


class QueuesSnapshot(NamedTuple):
    """The queues at one point of the log; `doomed` may go once a checkpoint without them is durable."""

    states: list[QueueState]
    misplaced: list[int]
    changes: Changes
    doomed: list[Path]


class ConsumeQueues:
    def __init__(
        self,
        root: Path,
        disk: Disk,
        *,
        units_per_file: int = UNITS_PER_FILE,
        max_open_files: int = 256,
        keeps_last: bool = False,
    ) -> None:
        """In `root`/consumequeue; nothing is there until `restore` or a first unit. `keeps_last`: as for
        ConsumeQueue."""
        self._keeps_last = keeps_last
        self.units_per_file = units_per_file
        self._directory = root / DIRECTORY
        self._disk = disk
        self._open_files = OpenFiles(disk, root, limit=max_open_files)
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._doomed: list[Path] = []
        #: Files may go with the next checkpoint.
        self.has_needless_files = False
        #: Indexes of committed messages without a place in their queue. Part of the state, the same on every
        #: node: a replay alone cannot tell that such a message is not the one that its queue begins with.
        self.misplaced: deque[int] = deque(maxlen=_MOST_MISPLACED)

    # -- for readers ------------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None: no message of this queue was ever dispatched."""
        return self._topics.get(topic, {}).get(queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._topics.get(topic, {}).values())

    def all(self) -> list[ConsumeQueue]:
        return [queue for queues in list(self._topics.values()) for queue in list(queues.values())]

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """RocketMQ's topic-queue table: the offset that the next message of each queue gets."""
        return {(queue.topic, queue.queue_id): queue.max_offset for queue in self.all()}

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, store_time_of: Callable[[ConsumeQueueUnit], int]
    ) -> int:
        """`ConsumeQueue.offset_by_time`; 0 in a queue without messages."""
        queue = self.get(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, store_time_of)

    # -- for the thread that changes it -----------------------------------------------------------------

    def obtain(self, topic: str, queue_id: int) -> ConsumeQueue:
        queues = self._topics.setdefault(topic, {})
        if queue_id not in queues:
            directory = self._directory / topic / str(queue_id)
            queues[queue_id] = ConsumeQueue(
                topic,
                queue_id,
                directory,
                self._open_files,
                self.units_per_file,
                keeps_last=self._keeps_last,
            )
        return queues[queue_id]

    def begin_again(self, queue: ConsumeQueue, offset: int) -> None:
        """Nothing of a queue can be read any more; the next message gets this offset. Its files go at once:
        for use while there is no checkpoint."""
        for path in queue.paths():
            self._open_files.discard(path)
        queue.begin_again(offset)

    def begin_new(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue | None:
        """The queue, whose next message gets this offset; None: others were given already."""
        queue = self.obtain(topic, queue_id)
        if not queue.max_offset:
            queue.begin_at(offset)
            queue.floor = offset
        return queue if queue.max_offset == offset else None

    def delete_topic(self, topic: str) -> None:
        """Nothing of a topic can be read any more. Its offsets go on where they are: none is used twice."""
        for queue in self.of_topic(topic):
            self._doomed += queue.raise_floor()
            self.has_needless_files = True

    def purge_below(self, physical_offset: int) -> bool:
        """Raise the least offsets to what the log still has. Whether that changed any."""
        changed = False
        for queue in self.all():
            before = queue.min_offset
            self._doomed += queue.purge_below(physical_offset)
            changed = changed or queue.min_offset != before
        self.has_needless_files = self.has_needless_files or changed
        return changed

    def positions(self) -> list[QueuePosition]:
        """Sorted, so that equal states are equal bytes."""
        return sorted(QueuePosition(q.topic, q.queue_id, q.max_offset, q.floor) for q in self.all())

    def begin_at(self, positions: Iterable[QueuePosition], misplaced: Iterable[int] = ()) -> None:
        """Empty queues, after `wipe`."""
        self.misplaced.extend(misplaced)
        for topic, queue_id, next_offset, floor in positions:
            queue = self.obtain(topic, queue_id)
            queue.begin_at(next_offset)
            queue.floor = floor

    def go_on_behind(self, ends: Mapping[Path, QueuePosition]) -> set[ConsumeQueue]:
        """Empty queues, after `wipe`, that go on behind what these files have."""
        queues = set()
        for path, position in ends.items():
            queue = self.obtain(position.topic, position.queue_id)
            queue.go_on_behind(path, position.next_offset)
            queues.add(queue)
        return queues

    def snapshot(self) -> QueuesSnapshot:
        doomed, self._doomed = self._doomed, []
        self.has_needless_files = False
        queues = self.all()
        for queue in queues:
            doomed += queue.retire()
        return QueuesSnapshot(
            [queue.state() for queue in queues],
            list(self.misplaced),
            self._open_files.take_changes(),
            doomed,
        )

    def remove(self, doomed: Iterable[Path]) -> None:
        """What a snapshot has given, but for files that were taken back since. From any thread."""
        directories = set()
        for path in doomed:
            self._open_files.remove_retired(path)
            directories.add(path.parent)
        for directory in sorted(directories):  # once each: listing one takes as long as it has names
            self._open_files.remove_empty(directory)

    def restore(self, states: Iterable[QueueState], misplaced: Iterable[int] = ()) -> None:
        """Become what a checkpoint says. Disagreement or OSError if the files are not like that."""
        self.misplaced.extend(misplaced)
        for state in states:
            self.obtain(state.topic, state.queue_id).restore(state)
        kept = {path for queue in self.all() for path in queue.paths()}
        self._remove_others(kept)

    def forget(self) -> None:
        """No queue is known, whatever files there are."""
        self._open_files.close()
        self._open_files.take_changes()
        self._topics.clear()
        self._doomed.clear()
        self.misplaced.clear()

    def wipe(self, kept: Collection[Path] = ()) -> None:
        """Forget everything and remove all files but these. Others than a ConsumeQueue has stay as well."""
        self.forget()
        self._remove_others(kept)

    def left_ends(self, physical_offset: int) -> dict[Path, QueuePosition]:
        """How far queues have come whose messages all lie before this byte of the log, as far as the files
        tell that are there, whoever has written them; by the file that tells it. OSError."""
        found = {}
        by_queue: dict[Path, list[Path]] = {}
        for path in self._own_files():
            by_queue.setdefault(path.parent, []).append(path)
        for directory, paths in by_queue.items():
            with suppress(IllegalMessage):
                check_topic_name(directory.parent.name)
                for path in sorted(paths, reverse=True):
                    if (last := self._last_unit(path)) is not None:
                        offset, unit = last
                        if unit.is_message() and unit.physical_offset < physical_offset:
                            queue = directory.parent.name, int(directory.name)
                            found[path] = QueuePosition(*queue, offset + 1, 0)
                        break
        return found

    def _last_unit(self, path: Path) -> tuple[int, ConsumeQueueUnit] | None:
        """Of a file, with its queue offset; None: there is none in it."""
        handle = self._disk.open(path, write=False)
        try:
            for begin, end in reversed(self._disk.data_ranges(handle)):
                begin -= begin % UNIT_SIZE
                content = self._disk.pread(handle, end - begin, begin).rstrip(b"\0")
                if content:
                    within = begin + (len(content) - 1) // UNIT_SIZE * UNIT_SIZE
                    unit = self._disk.pread(handle, UNIT_SIZE, within)
                    offset = (int(path.name) + within) // UNIT_SIZE
                    return (offset, decode_unit(unit)) if len(unit) == UNIT_SIZE else None
        finally:
            self._disk.close(handle)
        return None

    def close(self) -> None:
        self._open_files.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _remove_others(self, kept: Collection[Path]) -> None:
        """Files of queues that are not to be kept, and directories that a crash has left empty."""
        for path in self._own_files():
            if path not in kept:
                self._open_files.remove(path)
        for topic in list_directory(self._disk, self._directory):
            queues = list_directory(self._disk, self._directory / topic)
            for queue in filter(_QUEUE_NAME.match, queues):
                self._open_files.remove_empty(self._directory / topic / queue)
            if not queues:
                self._open_files.remove_empty(self._directory / topic)

    def _own_files(self) -> list[Path]:
        found = []
        for topic in list_directory(self._disk, self._directory):
            for queue in list_directory(self._disk, self._directory / topic):
                directory = self._directory / topic / queue
                for name in list_directory(self._disk, directory):
                    if _QUEUE_NAME.match(queue) and _FILE_NAME.match(name):
                        found.append(directory / name)
                    else:
                        _log.warning(
                            "a file that is no ConsumeQueue's is left alone", path=str(directory / name)
                        )
        return found
