"""Reads a RocketMQ store directory: its tables, and the messages that its broker would serve after a
start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, StoredDataDamaged, error_for
from broker_adapter.log.classic.commit_log import LogFile, LogScan, StoredMessage, log_files, recovery_begin
from broker_adapter.log.classic.queue_files import MappedQueueFiles
from broker_adapter.log.classic.tables import delays_of, groups_of, offsets_of, table_at, topics_of
from broker_adapter.wire.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

# Fields of StoreCheckpoint: times of the newest durable message in the CommitLog and in the ConsumeQueues.
_CHECKPOINT = struct.Struct(">qq")
_CHECKPOINT_SLACK_MS = 3_000
# sysFlag of a record with several messages and several queue offsets.
_INNER_BATCH = 0x1 << 7
_PHYSICAL_AT, _PHYSICAL_END = 28, 36

QueueKey = tuple[str, int]


class QueueContents(NamedTuple):
    """Contents of a queue: the messages with offsets from `begin`, inclusive, to `end`, exclusive.

    `first_physical`: physical offset of the first message. `digest` covers the records without their physical
    offsets.
    """

    topic: str
    queue_id: int
    begin: int
    end: int
    first_physical: int
    digest: str

    @property
    def messages(self) -> int:
        return self.end - self.begin


class StoreContents(NamedTuple):
    """Contents of a store.

    `queues`: by topic and queue id. `end_reason`: why the log ends at `log_end`. `dirty_bytes`: bytes after
    the end, up to the last non-zero byte. `deleted`: number of messages of deleted topics. `units_compared`,
    `units_missing`: numbers of ConsumeQueue units.
    """

    queues: Mapping[QueueKey, QueueContents]
    log_begin: int
    log_end: int
    end_reason: str
    dirty_bytes: int
    messages: int
    deleted: int
    units_compared: int
    units_missing: int


class QueueDigest:
    """Digest of the records of a queue, in order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, record: bytes) -> None:
        self._hash.update(record[:_PHYSICAL_AT])
        self._hash.update(record[_PHYSICAL_END:])

    def text(self) -> str:
        return self._hash.hexdigest()


class _Run:
    """Consecutive messages of a queue."""

    def __init__(self, begin: int, physical: int) -> None:
        self.begin = self.end = begin
        self.first_physical = physical
        self.digest = QueueDigest()
        self.compared = self.missing = 0


class StoreDirectory:
    """A store directory, opened for reading.

    Raises STORE_UNREADABLE, STORE_DAMAGED or STORE_TABLE_DAMAGED for invalid contents. The broker must not be
    running, because its files would change during the scan.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "commitlog").is_dir():
            raise error_for(
                Status.STORE_UNREADABLE, f"{root} has no commitlog directory, so it is not a RocketMQ store"
            )
        self.files: list[LogFile] = log_files(root / "commitlog")
        # True after a clean stop, which removes the file `abort`.
        self.is_clean = not (root / "abort").exists()
        config = root / "config"
        self.topics: dict[str, TopicConfig] = topics_of(table_at(config / "topics.json"))
        self.groups: dict[str, GroupConfig] = groups_of(table_at(config / "subscriptionGroup.json"))
        self.offsets: dict[str, list[QueueOffset]] = offsets_of(table_at(config / "consumerOffset.json"))
        self.delays: dict[int, int] = delays_of(table_at(config / "delayOffset.json"))
        if not self.topics:
            text = f"{config} has no topics.json with topics (configuration in RocksDB cannot be read)"
            raise error_for(Status.STORE_UNREADABLE, text)

    def scan(self) -> LogScan:
        begin = recovery_begin(self.files, is_clean=self.is_clean, checkpoint_ms=self._checkpoint_ms())
        return LogScan(self.files, begin)

    def queue_files(self) -> MappedQueueFiles:
        """Open the ConsumeQueues. The caller must close them."""
        return MappedQueueFiles(self.root / "consumequeue")

    def survey(self, progress: Callable[[int, int], None] = lambda messages, offset: None) -> StoreContents:
        """Scan the store. `progress` is called periodically with (messages, physical offset)."""
        scan = self.scan()
        runs: dict[QueueKey, _Run] = {}
        deleted = count = 0
        units = self.queue_files()
        try:
            for found in in_queues(scan.messages()):
                message = found.message
                key = message.topic, message.queue_id
                if self.is_clean and units.exists and units.unit(*key, message.queue_offset) is None:
                    deleted += 1  # the ConsumeQueues of a deleted topic are deleted too
                    continue
                run = runs.get(key)
                if run is None or message.queue_offset < run.end:
                    # A recreated topic restarts its queue offsets.
                    deleted += 0 if run is None else run.end - run.begin
                    run = runs[key] = _Run(message.queue_offset, message.physical_offset)
                elif message.queue_offset > run.end:
                    text = f"queue {message.queue_id} of {message.topic} expects offset {run.end} but has "
                    raise StoredDataDamaged(Status.STORE_DAMAGED, f"{text}{message.queue_offset}")
                self._compare(units, run, found)
                run.digest.add(found.record)
                run.end += 1
                count += 1
                if not count % 4096:
                    progress(count, message.physical_offset)
        finally:
            units.close()
        queues = {
            key: QueueContents(*key, run.begin, run.end, run.first_physical, run.digest.text())
            for key, run in sorted(runs.items())
        }
        return StoreContents(
            queues,
            self.files[0].begin,
            scan.end,
            scan.reason,
            scan.dirty_bytes,
            sum(queue.messages for queue in queues.values()),
            deleted,
            sum(run.compared for run in runs.values()),
            sum(run.missing for run in runs.values()),
        )

    def messages(self, contents: StoreContents) -> Iterator[StoredMessage]:
        """Yield the messages of the queues, in log order."""
        for found in in_queues(self.scan().messages()):
            message = found.message
            queue = contents.queues.get((message.topic, message.queue_id))
            if queue is not None and message.physical_offset >= queue.first_physical:
                yield found

    def _compare(self, units: MappedQueueFiles, run: _Run, found: StoredMessage) -> None:
        """Compare a ConsumeQueue unit with its message.

        RocketMQ rebuilds a missing unit but would serve an incorrect one.
        """
        message = found.message
        unit = units.unit(message.topic, message.queue_id, message.queue_offset)
        if unit is None:
            run.missing += 1
        elif (unit.physical_offset, unit.size) == (message.physical_offset, len(found.record)):
            run.compared += 1
        elif unit.physical_offset <= message.physical_offset:
            text = (
                f"{self.root}/consumequeue: queue {message.queue_id} of {message.topic} has at "
                f"{message.queue_offset} the message at {unit.physical_offset} of {unit.size} bytes, the "
                f"CommitLog the message at {message.physical_offset} of {len(found.record)}"
            )
            raise StoredDataDamaged(Status.STORE_DAMAGED, text)

    def _checkpoint_ms(self) -> int:
        """Return the timestamp up to which all messages are on disk; 0 if unknown.

        Source: StoreCheckpoint.getMinTimestamp.
        """
        try:
            with (self.root / "checkpoint").open("rb") as opened:
                found = _CHECKPOINT.unpack(opened.read(_CHECKPOINT.size))
        except (FileNotFoundError, struct.error):
            return 0
        return max(0, int(min(found)) - _CHECKPOINT_SLACK_MS)


def in_queues(messages: Iterator[StoredMessage]) -> Iterator[StoredMessage]:
    """Yield the messages that belong to queues, which excludes half messages and rollbacks.

    Raises STORE_UNSUPPORTED if a record contains several messages.
    """
    for found in messages:
        message = found.message
        if message.sys_flag & _INNER_BATCH:
            text = (
                f"the record at {message.physical_offset} of {message.topic} is a batch (BatchConsumeQueue)"
            )
            raise error_for(Status.STORE_UNSUPPORTED, text)
        if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            yield found
