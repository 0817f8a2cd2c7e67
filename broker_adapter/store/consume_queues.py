"""Table of all ConsumeQueues of a node. It supports deletion, purging, and the queues' part of the
checkpoint.

One thread changes the table; any thread may read it.
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
from broker_adapter.store.consume_queue import ConsumeQueue, QueueState
from broker_adapter.store.open_files import Changes, OpenFiles
from broker_adapter.wire.consume_queue_unit import (
    UNIT_SIZE,
    UNITS_PER_FILE,
    ConsumeQueueUnit,
    decode_unit,
)
from broker_adapter.wire.topic_names import check_topic_name
from dledger.infra.files.disk import Disk, list_directory

_log = structlog.get_logger(part="reput")

DIRECTORY = "consumequeue"
_FILE_NAME = re.compile(r"[0-9]{20}\Z")
# Maximum number of remembered misplaced messages; the newest are kept.
_MAX_MISPLACED = 4096
_QUEUE_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\Z")


class QueuePosition(NamedTuple):
    """The part of a queue's state that is equal on every node: next offset and floor (see `ConsumeQueue`)."""

    topic: str
    queue_id: int
    next_offset: int
    floor: int


class Incarnation(NamedTuple):
    """The latest incarnation of a queue that another broker deleted and recreated.

    `physical_offset`: position of the incarnation's first message in any queue of the topic.
    """

    topic: str
    queue_id: int
    physical_offset: int


class QueuesSnapshot(NamedTuple):
    """The queues at one log position.

    `doomed`: files to remove once a checkpoint without them is durable.
    """

    states: list[QueueState]
    misplaced: list[int]
    incarnations: list[Incarnation]
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
        """Create the table for `root`/consumequeue without files. For `keeps_last`, see ConsumeQueue."""
        self._keeps_last = keeps_last
        self.units_per_file = units_per_file
        self._directory = root / DIRECTORY
        self._disk = disk
        self._open_files = OpenFiles(disk, root, limit=max_open_files)
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._doomed: list[Path] = []
        # True if files can be removed after the next checkpoint.
        self.has_needless_files = False
        # Indexes of committed messages whose queue offset was invalid. They are part of the state, equal on
        # every node, because such a message would look like the first one of its queue during a replay.
        self.misplaced: deque[int] = deque(maxlen=_MAX_MISPLACED)
        # Physical offset at which the newest incarnation of a queue starts, by topic and queue id. Only in a
        # classic log. Earlier messages belong to a deleted topic with the same name.
        self.incarnations: dict[tuple[str, int], int] = {}

    # -- for readers -------------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if none of its messages has been dispatched."""
        return self._topics.get(topic, {}).get(queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._topics.get(topic, {}).values())

    def all(self) -> list[ConsumeQueue]:
        return [queue for queues in list(self._topics.values()) for queue in list(queues.values())]

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """RocketMQ's topic-queue table: the next offset of each queue."""
        return {(queue.topic, queue.queue_id): queue.max_offset for queue in self.all()}

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, store_time_of: Callable[[ConsumeQueueUnit], int]
    ) -> int:
        """Call `ConsumeQueue.offset_by_time`. Return 0 for a queue without messages."""
        queue = self.get(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, store_time_of)

    # -- for the writer's thread -------------------------------------------------------------------------

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

    def restart_at(self, queue: ConsumeQueue, offset: int) -> None:
        """Make all messages of a queue unreadable and set its next offset.

        Removes the files immediately, so no checkpoint may refer to them.
        """
        for path in queue.paths():
            self._open_files.discard(path)
        queue.restart_at(offset)

    def start_incarnation(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Restart a queue at offset 0 and forget its earlier messages, like `restart_at`."""
        self.restart_at(queue, 0)
        queue.floor = 0
        self.incarnations[queue.topic, queue.queue_id] = physical_offset

    def known_incarnations(self) -> list[Incarnation]:
        return [Incarnation(*queue, offset) for queue, offset in sorted(self.incarnations.copy().items())]

    def start_new_queue(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue | None:
        """Set the first offset of a new queue. Return the queue, or None if it ends at another offset."""
        queue = self.obtain(topic, queue_id)
        if not queue.max_offset:
            queue.begin_at(offset)
            queue.floor = offset
        return queue if queue.max_offset == offset else None

    def delete_topic(self, topic: str) -> None:
        """Make all messages of a topic unreadable. Offsets continue, so that no offset is used twice."""
        for queue in self.of_topic(topic):
            self._doomed += queue.raise_floor()
            self.has_needless_files = True

    def purge_below(self, physical_offset: int) -> bool:
        """Raise the minimum offsets to the start of the remaining log. Return True if any has changed."""
        changed = False
        for queue in self.all():
            before = queue.min_offset
            self._doomed += queue.purge_below(physical_offset)
            changed = changed or queue.min_offset != before
        self.has_needless_files = self.has_needless_files or changed
        return changed

    def positions(self) -> list[QueuePosition]:
        """Return the positions sorted, so that equal states have equal bytes."""
        return sorted(QueuePosition(q.topic, q.queue_id, q.max_offset, q.floor) for q in self.all())

    def begin_at(self, positions: Iterable[QueuePosition], misplaced: Iterable[int] = ()) -> None:
        """Create empty queues at these positions. Call after `wipe`."""
        self.misplaced.extend(misplaced)
        for topic, queue_id, next_offset, floor in positions:
            queue = self.obtain(topic, queue_id)
            queue.begin_at(next_offset)
            queue.floor = floor

    def continue_after(self, ends: Mapping[Path, QueuePosition]) -> set[ConsumeQueue]:
        """Create queues that continue after the contents of these files. Call after `wipe`."""
        queues = set()
        for path, position in ends.items():
            queue = self.obtain(position.topic, position.queue_id)
            queue.continue_after(path, position.next_offset)
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
            self.known_incarnations(),
            self._open_files.take_changes(),
            doomed,
        )

    def remove(self, doomed: Iterable[Path]) -> None:
        """Remove the files of a snapshot that have not been reused since. May be called on any thread."""
        directories = set()
        for path in doomed:
            self._open_files.remove_retired(path)
            directories.add(path.parent)
        for directory in sorted(directories):  # once per directory, because each check lists it
            self._open_files.remove_empty(directory)

    def restore(
        self,
        states: Iterable[QueueState],
        misplaced: Iterable[int] = (),
        incarnations: Iterable[Incarnation] = (),
    ) -> None:
        """Restore a checkpoint. Raises CheckpointMismatch or OSError if the files do not match."""
        self.misplaced.extend(misplaced)
        self.incarnations = {(topic, queue_id): position for topic, queue_id, position in incarnations}
        for state in states:
            self.obtain(state.topic, state.queue_id).restore(state)
        kept = {path for queue in self.all() for path in queue.paths()}
        self._remove_others(kept)

    def forget(self) -> None:
        """Forget all queues without changing their files."""
        self._open_files.close()
        self._open_files.take_changes()
        self._topics.clear()
        self._doomed.clear()
        self.misplaced.clear()
        self.incarnations.clear()

    def wipe(self, kept: Collection[Path] = ()) -> None:
        """Forget all queues and remove all ConsumeQueue files except `kept`. Other files are not removed."""
        self.forget()
        self._remove_others(kept)

    def existing_ends(self, physical_offset: int) -> dict[Path, QueuePosition]:
        """Return the ends of queues whose messages are all before `physical_offset`, by last file.

        Reads the existing files, which this broker or another one has written. Raises OSError.
        """
        ends = {}
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
                            ends[path] = QueuePosition(*queue, offset + 1, 0)
                        break
        return ends

    def _last_unit(self, path: Path) -> tuple[int, ConsumeQueueUnit] | None:
        """Return the last unit of a file with its queue offset, or None if there is none."""
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

    # -- internals ---------------------------------------------------------------------------------------

    def _remove_others(self, kept: Collection[Path]) -> None:
        """Remove the files of queues that are not in `kept`, and directories that a crash has left empty."""
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
        files = []
        for topic in list_directory(self._disk, self._directory):
            for queue in list_directory(self._disk, self._directory / topic):
                directory = self._directory / topic / queue
                for name in list_directory(self._disk, directory):
                    if _QUEUE_NAME.match(queue) and _FILE_NAME.match(name):
                        files.append(directory / name)
                    else:
                        _log.warning(
                            "ignoring a file that is not a ConsumeQueue file", path=str(directory / name)
                        )
        return files
