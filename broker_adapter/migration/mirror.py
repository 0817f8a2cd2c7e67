"""Mirrors a live RocketMQ master into a broker group. Every message keeps its queue offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import (
    AnswerMissing,
    NameServerUnavailable,
    PutIndeterminate,
    PutRefused,
    ReadFailed,
    Status,
    error_for,
)
from broker_adapter.log.classic.commit_log import StoredMessage
from broker_adapter.log.classic.ha.link import Link
from broker_adapter.log.classic.ha.records import RecordReader
from broker_adapter.log.classic.ha.transfers import first_report, supplied
from broker_adapter.log.classic.store_directory import QueueDigest, QueueKey, in_queues
from broker_adapter.log.classic.system_names import is_system_group, is_system_name, user_topics
from broker_adapter.migration.master import Master, QueueUnit
from broker_adapter.migration.several import each
from broker_adapter.migration.storing import ImportRow, in_batches, store_once
from broker_adapter.migration.target import ImportTarget, pause
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.message import MessageRecord

# Errors after which a retry may succeed, because the master or the target is unavailable or changes.
_PASSING = (AnswerMissing, NameServerUnavailable, PutIndeterminate, PutRefused, ReadFailed)
_FINAL = frozenset({Status.IMPORT_OUT_OF_ORDER, Status.CHANGE_NOT_ALLOWED, Status.STORE_UNSUPPORTED})


class MirrorSettings(NamedTuple):
    """Settings of a mirror, in seconds.

    `step_s`: timeout of a step, which includes waiting for a new master of the target. `sync_s`: interval of
    metadata copies. `pause_s`: delay before a reconnect. `report_s`: interval of progress lines.
    """

    step_s: float = 30.0
    sync_s: float = 3.0
    pause_s: float = 1.0
    report_s: float = 10.0


@dataclass
class MirrorProgress:
    """Progress of a mirror.

    `position`: offset up to which the master's log is stored and acknowledged. `stored`: number of messages
    stored by this process. `left`: number of messages of topics that are not mirrored, by topic.
    """

    position: int
    stored: int
    connections: int
    left: dict[str, int]


class Mirror:
    """Mirrors a master from `follow` until `stop`.

    Temporary errors are reported and retried. `follow` raises all other errors.
    """

    def __init__(
        self,
        master: Master,
        target: ImportTarget,
        ha_address: str,
        say: Callable[[str], None],
        settings: MirrorSettings | None = None,
    ) -> None:
        self.queues = MirroredQueues(master, target)
        self.metadata = MetadataSync(master, target, self.queues.end, say)
        self.figures = MirrorProgress(0, 0, 0, {})
        self._master = master
        self._target = target
        self._ha_address = ha_address
        self._report = say
        self._settings = settings or MirrorSettings()
        self._following: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._metadata_lock = asyncio.Lock()  # serializes changes of topics, groups and offsets

    async def follow(self) -> None:
        """Mirror until `stop`. The first connection must succeed."""
        self._following = asyncio.current_task()
        try:
            await self._follow_with_retries()
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
        finally:
            self._following = None

    async def stop(self) -> None:
        """Stop the mirror. After this call returns, nothing is stored."""
        if self._following is not None:
            self._is_stopped = True
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow_with_retries(self) -> None:
        while True:
            try:
                await self._follow_once()
            except _PASSING as error:
                if error.status in _FINAL or not self.figures.connections:
                    raise
                self._report(f"{error}; connecting again")
            await asyncio.sleep(self._settings.pause_s)

    async def sync_metadata(self) -> None:
        async with self._metadata_lock:
            await self.metadata.sync()

    # -- internals ---------------------------------------------------------------------------------------

    async def _follow_once(self) -> None:
        async with self._metadata_lock:
            await self.metadata.sync_topics()
            position = await self.queues.resume(self.metadata.queues())
            await self.metadata.sync_groups()
            await self.metadata.sync_offsets()
        link = await Link.open(self._ha_address, first_report(position))
        works = [
            asyncio.ensure_future(work)
            for work in (
                self._store_all(link, position),
                self._sync_metadata_periodically(),
                self._report_progress(),
            )
        ]
        try:
            self.figures.connections += 1
            self._report(f"following {self._ha_address} from offset {position} on")
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await link.close()

    async def _store_all(self, link: Link, position: int) -> None:
        records = RecordReader(position)
        pieces: list[bytes | memoryview] = [supplied(position)]
        while True:
            rows: list[ImportRow] = []
            for piece in pieces:
                for found in in_queues(records.feed(piece)):
                    if (row := await self._row(found)) is not None:
                        rows.append(row)
            for batch in in_batches(rows):
                await store_once(self._target, batch, self._settings.step_s)
                self.queues.stored(batch)
                self.figures.stored += len(batch)
            self.figures.position = records.position
            link.report(records.position)
            pieces = [transfer.data for transfer in await link.read()]

    async def _row(self, found: StoredMessage) -> ImportRow | None:
        """Return the row to store, or None if the message is not mirrored or is already stored."""
        message = found.message
        key = topic, queue_id = message.topic, message.queue_id
        if topic == SCHEDULE_TOPIC:
            return None  # the takeover migrates pending delayed messages
        if not await self._is_mirrored(topic, message.queue_offset):
            self.figures.left[topic] = self.figures.left.get(topic, 0) + 1
            return None
        if not self.queues.is_known(key):
            async with self._metadata_lock:
                await self.metadata.ensure_queue(topic, queue_id)
            await self.queues.begin(key)
        return self.queues.add(found) if self.queues.is_next(message) else None

    async def _is_mirrored(self, topic: str, offset: int) -> bool:
        """True if the topic is mirrored.

        A topic is in the master's topic table before the log has a message for it, unless the topic was
        deleted.
        """
        if topic in self.metadata.topics:
            return True
        if is_system_name(topic):
            return False
        if topic not in self.figures.left or not offset:
            async with self._metadata_lock:
                await self.metadata.sync_topics()
        return topic in self.metadata.topics

    async def _sync_metadata_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sync_s)
            await self.sync_metadata()

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(self._settings.report_s)
            end = await self._master.log_end()
            figures = self.figures
            behind = max(0, end - figures.position)
            place = f"up to offset {figures.position}, {behind} bytes behind the master"
            self._report(f"{figures.stored} messages stored, {place}")


# Copy topics, groups and offsets of a live master to the target, as RocketMQ's SlaveSynchronize does.
#
# Mirrored topics have permission 0 at the target, so that clients with routes to both brokers use only the
# master's queues.


class MetadataSync:
    """Copies metadata from the master.

    `topics`: the mirrored topics. `ends`: returns the stored end of a queue.
    """

    def __init__(
        self,
        master: Master,
        target: ImportTarget,
        ends: Callable[[QueueKey], int],
        say: Callable[[str], None],
    ) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self._master = master
        self._target = target
        self._ends = ends
        self._report = say
        self._at_target: dict[str, TopicConfig] | None = None
        self._committed: dict[tuple[str, QueueKey], int] = {}

    async def sync_topics(self) -> None:
        """Copy topics.

        The first call raises MASTER_DIFFERS if a topic is open to clients at the target and has messages.
        """
        current = user_topics((await self._master.topics()).values())
        for name in sorted(set(self.topics) - set(current)):
            self._report(f"topic {name} was deleted at the master; the target keeps it, without permissions")
        if self._at_target is None:
            self._at_target = await self._target.configs()
            await self._check_closed(current)
        self.topics = current
        for config in current.values():
            await self._put_hidden(config, max(config.read_queues, config.write_queues))

    async def ensure_queue(self, topic: str, queue_id: int) -> None:
        """Create a queue whose id exceeds the topic's current queue count, because the topic may have had
        more queues before.
        """
        await self._put_hidden(self.topics[topic], queue_id + 1)

    def queues(self) -> list[QueueKey]:
        """Return all queues of mirrored topics at the target. There may be more than at the master."""
        assert self._at_target is not None
        return [
            (name, queue_id)
            for name in sorted(self.topics)
            for queue_id in range(self._at_target[name].write_queues)
        ]

    async def sync_groups(self) -> None:
        for name, config in (await self._master.groups()).items():
            if not is_system_group(name):
                await self._put_group(config)

    async def sync_offsets(self, *, only_up: bool = False) -> int:
        """Copy group offsets. Return the number of changes.

        `only_up`: never lower an offset, because groups may already consume at the target.
        """
        rows = []
        for group, offsets in (await self._master.offsets()).items():
            mirrored = [offset for offset in offsets if self._has_queue(offset)]
            if not mirrored or is_system_group(group):
                continue
            if group not in self.groups:
                await self._put_group(GroupConfig(group))
            rows += [(group, offset) for offset in mirrored]
        return sum(await each(self._put_offset(group, offset, only_up=only_up) for group, offset in rows))

    async def sync(self) -> None:
        await self.sync_topics()
        await self.sync_groups()
        await self.sync_offsets()

    async def open_topics(self, mask: int) -> None:
        """Set the permissions of the topics at the target to those at the master, restricted by `mask`."""
        assert self._at_target is not None
        await each(
            self._target.put_topic(
                config._replace(
                    read_queues=max(config.read_queues, self._at_target[config.name].read_queues),
                    perm=config.perm & mask,
                )
            )
            for config in self.topics.values()
        )

    async def load_topics(self) -> bool:
        """Load topics without changing them; return True if a topic is writable at both brokers."""
        topics = user_topics((await self._master.topics()).values())
        at_target = self._at_target = await self._target.configs()
        self.topics = {name: config for name, config in topics.items() if name in at_target}
        return any(at_target[name].is_writable and config.is_writable for name, config in self.topics.items())

    # -- internals ---------------------------------------------------------------------------------------

    async def _check_closed(self, topics: dict[str, TopicConfig]) -> None:
        """Raise MASTER_DIFFERS if a topic is open to clients at the target and has messages.

        Empty topics are permitted, because consumers of the target create retry topics.
        """
        assert self._at_target is not None
        for name in sorted(set(topics) & set(self._at_target)):
            config = self._at_target[name]
            if not config.perm:
                continue
            for queue_id in range(max(config.read_queues, config.write_queues)):
                if (await self._target.bounds(name, queue_id))[1]:
                    text = f"topic {name} is open at the target (perm {config.perm}) and has messages"
                    raise error_for(
                        Status.MASTER_DIFFERS,
                        f"{text}: mirroring requires an empty topic or one that is closed to clients",
                    )

    async def _put_hidden(self, config: TopicConfig, queues: int) -> None:
        assert self._at_target is not None
        present = self._at_target.get(config.name)
        if present is not None:
            queues = max(queues, present.read_queues, present.write_queues)
        hidden = config._replace(read_queues=queues, write_queues=queues, perm=0)
        if present != hidden:
            await self._target.put_topic(hidden)
            self._at_target[config.name] = hidden

    async def _put_group(self, config: GroupConfig) -> None:
        if self.groups.get(config.name) != config:
            await self._target.put_group(config)
            self.groups[config.name] = config

    def _has_queue(self, offset: QueueOffset) -> bool:
        config = self.topics.get(offset.topic)
        return config is not None and offset.queue_id < max(config.read_queues, config.write_queues)

    async def _put_offset(self, group: str, offset: QueueOffset, *, only_up: bool) -> bool:
        key = offset.topic, offset.queue_id
        offset = offset._replace(offset=min(offset.offset, self._ends(key)))
        before = self._committed.get((group, key))
        if before == offset.offset or (only_up and before is not None and offset.offset < before):
            return False
        if only_up or (before is not None and before < offset.offset):
            await self._target.commit(group, offset)
        else:
            await self._target.reset(group, offset)
        self._committed[group, key] = offset.offset
        return True


# Track the mirrored position of each queue and the next expected message.
#
# The mirror stores no other progress. At a start it derives the log position to read from: the first position
# at which a message is missing in any queue.


class _MirroredQueue(NamedTuple):
    """The mirrored state of one queue.

    `next`: next expected offset. `last_physical`: physical offset, at the master, of the message before it;
    -1 if there is none. `end`: offset up to which the queue is known to be stored.
    """

    next: int
    last_physical: int
    end: int


class _MasterRange(NamedTuple):
    """Physical offsets at the master; -1: unknown.

    `missing`: offset of the first missing message. `last_end`: end of the last stored message.
    """

    missing: int
    last_end: int


class MirroredQueues:
    def __init__(self, master: Master, target: ImportTarget) -> None:
        self._master = master
        self._target = target
        self._queues: dict[QueueKey, _MirroredQueue] = {}

    def end(self, key: QueueKey) -> int:
        """Return the end of the stored part of the queue."""
        queue = self._queues.get(key)
        return 0 if queue is None else queue.end

    async def resume(self, keys: Iterable[QueueKey]) -> int:
        """Compare these queues at both brokers.

        Return the physical offset to read from. Raises MASTER_DIFFERS.
        """
        # Read the frontier first, because messages after it may not be in their queues yet. The frontier is
        # not necessarily a record boundary.
        frontier = await self._master.frontier()
        places = await each(self._begin(key) for key in keys)
        missing = min(
            (place.missing for place in places if place.missing >= 0), default=frontier.dispatched + 1
        )
        if missing <= frontier.dispatched:
            return missing
        ends = (place.last_end for place in places if place.last_end <= frontier.dispatched)
        return max(frontier.log_begin, *ends, 0)

    def is_known(self, key: QueueKey) -> bool:
        return key in self._queues

    async def begin(self, key: QueueKey) -> None:
        """Add a queue that was created after `resume`."""
        part = await self._target.read_queue(*key, -1)
        self._queues[key] = _MirroredQueue(part.end, -1, part.end)

    def is_next(self, message: MessageRecord) -> bool:
        """True if the message is the next one, False if it is already stored.

        Raises MASTER_DIFFERS for any other message.
        """
        key = message.topic, message.queue_id
        queue = self._queues[key]
        if message.queue_offset == queue.next:
            return True
        if message.queue_offset < queue.next and message.physical_offset <= queue.last_physical:
            return False
        text = f"has message {message.queue_offset} at the master, but the target expects {queue.next}"
        raise _differs(key, f"{text}: the topic was recreated")

    def add(self, found: StoredMessage) -> ImportRow:
        """Advance the queue past a message that will be stored, and return its row.

        If storing fails, `resume` determines the actual position.
        """
        message = found.message
        key = message.topic, message.queue_id
        self._queues[key] = _MirroredQueue(
            message.queue_offset + 1, message.physical_offset, self._queues[key].end
        )
        return ImportRow(key, message.queue_offset, found.record)

    def stored(self, rows: Iterable[ImportRow]) -> None:
        """Advance the stored end of each queue past `rows`."""
        for row in rows:
            self._queues[row.key] = self._queues[row.key]._replace(end=row.offset + 1)

    async def unequal(self, keys: Iterable[QueueKey]) -> list[str]:
        """Describe the queues whose end differs at the master.

        Raises MASTER_DIFFERS if the last messages differ.
        """

        async def describe(key: QueueKey) -> str:
            _, end = await self._master.bounds(*key)
            if self.end(key) != end:
                return f"queue {key[1]} of {key[0]} ends at {self.end(key)} here, at {end} there"
            here = await self._target.read_queue(*key, -1)
            if here.end == end:
                await self._compare_last(key, here.end, here.records)
            return (
                "" if here.end == end else f"queue {key[1]} of {key[0]} ends at {here.end} here, {end} there"
            )

        return [difference for difference in await each(describe(key) for key in keys) if difference]

    async def meet(self, key: QueueKey) -> None:
        """Find the common prefix of a queue to which both brokers have since added messages."""
        here = await self._target.read_queue(*key, -1)
        least, end = await self._master.bounds(*key)
        low, high = min(max(here.begin, least), here.end), min(here.end, end)
        while low < high:
            middle = (low + high) // 2
            record = (await self._target.read_queue(*key, middle)).records[0]
            unit = await self._master.unit(*key, middle)
            if _digest(record) == _digest(await self._master.record_at(unit.physical_offset)):
                low = middle + 1
            else:
                high = middle
        self._queues[key] = _MirroredQueue(low, -1, low)

    async def _begin(self, key: QueueKey) -> _MasterRange:
        here = await self._target.read_queue(*key, -1)
        least, end = await self._master.bounds(*key)
        here_end = here.end
        if not here_end and least:
            await self._target.begin_queue(*key, least)
            here_end = least
        if here_end > end:
            end = await self._settled_end(key)
        if here_end > end:
            raise _differs(
                key,
                f"has {here_end} messages at the target but only {end} at the master, which has lost "
                "messages",
            )
        if here_end < least:
            raise _differs(
                key,
                f"ends at {here_end} at the target but starts at {least} at the master: messages are missing",
            )
        last = await self._compare_last(key, here_end, here.records)
        first = -1
        if here_end < end:
            first = (await self._master.unit(*key, here_end)).physical_offset
        before = max(-1 if last is None else last.physical_offset, first - 1)
        self._queues[key] = _MirroredQueue(here_end, before, here_end)
        return _MasterRange(first, -1 if last is None else last.end)

    async def _settled_end(self, key: QueueKey) -> int:
        """Return the queue's end at the master once the master has dispatched its log.

        A slave may receive messages before the master has dispatched them.
        """
        end, attempt = (await self._master.frontier()).log_end, 0
        while (await self._master.frontier()).dispatched < end:
            await pause(attempt)
            attempt += 1
        return (await self._master.bounds(*key))[1]

    async def _compare_last(self, key: QueueKey, end: int, records: list[bytes]) -> QueueUnit | None:
        """Return the master's unit of the last stored message.

        Returns None if no message is stored or the master has purged it.
        """
        if not records:
            return None
        try:
            unit = await self._master.unit(*key, end - 1)
            record = await self._master.record_at(unit.physical_offset)
        except ReadFailed as error:
            if error.status is not Status.MESSAGE_NOT_FOUND:
                raise
            return None
        if _digest(record) != _digest(records[-1]):
            raise _differs(
                key, f"has a different message {end - 1} at the master: the topic was recreated there"
            )
        return unit


def _digest(record: bytes) -> str:
    digest = QueueDigest()
    digest.add(record)
    return digest.text()


def _differs(key: QueueKey, what: str) -> Exception:
    return error_for(Status.MASTER_DIFFERS, f"queue {key[1]} of {key[0]} {what}")
