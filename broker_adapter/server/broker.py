"""The broker: everything that clients may ask, put together of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

from broker_adapter.api import (
    Assignment,
    BrokerInfo,
    GroupConfig,
    OutgoingMessage,
    PullResult,
    PullStatus,
    QueueOffset,
    QueueStats,
    SendResult,
    TopicConfig,
)
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.errors import IllegalMessage, ReadFailed, Status, error_for
from broker_adapter.format.host import known_host
from broker_adapter.metadata.commands import (
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
    check_user_topic,
)
from broker_adapter.metadata.creation_limits import CreationLimits
from broker_adapter.metadata.group_service import GroupService
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_creation import TopicCreation, check_writable
from broker_adapter.metadata.values import Group
from broker_adapter.server.long_polls import LongPolls
from broker_adapter.store.queue_reader import QueueFiles, QueueReader
from dledger import DLedgerError
from dledger.platform import client_of

T = TypeVar("T")

_MAX_PULLED_MESSAGES = 4096
_MAX_PULLED_BYTES = 4 << 20
#: The offset that stands for the last message.
_LAST = -1
_MAX_QUERIED = 1024


class ReadPoint(Protocol):
    """`dledger.NodeServer.wait_applied`: all that was acknowledged before the call is applied here."""

    async def wait_applied(self, index: int | None = None, timeout_ms: int = 5000) -> int: ...


class Readers(Protocol):
    """`broker_adapter.server.reader_threads.ReaderThreads`."""

    async def run(self, work: Callable[[], T], address: str = "") -> T: ...

    async def run_filter(self, work: Callable[[], T], address: str) -> T: ...


class GivenOffsets(Protocol):
    """`broker_adapter.pop.state.DeliveryState`: what groups are given one by one. For any thread."""

    def offsets_of(self, group: str) -> Mapping[tuple[str, int], int]: ...

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def topics_of(self, group: str) -> Set[str]: ...

    def system_offsets(self) -> Mapping[tuple[str, int], int]: ...


class Broker:
    """Implements `broker_adapter.api.BrokerApi`. On the node's event loop; `readers` do what blocks."""

    def __init__(
        self,
        settings: BrokerSettings,
        node: ReadPoint,
        writer: MessageWriter,
        files: QueueFiles,
        reader: QueueReader,
        metadata: MetadataState,
        proposals: Proposals,
        groups: GroupService,
        readers: Readers,
        info: Callable[[], BrokerInfo],
        given: GivenOffsets,
        used: Callable[[str], None] = lambda _: None,
        told: Callable[[str, str, int, int], None] = lambda group, topic, messages, size: None,
    ) -> None:
        """`used` is told each topic that a client uses, `told` (group, topic, messages, bytes) of each pull
        that found some."""
        self.long_polls = LongPolls(settings.max_held_pulls)
        self._settings = settings
        self._node = node
        self._writer = writer
        self._files = files
        self._reader = reader
        self._metadata = metadata
        self._proposals = proposals
        self._groups = groups
        self._readers = readers
        self._info = info
        self._given = given
        self._used = used
        self._told = told
        self.creation = TopicCreation(metadata.topic)
        self._limits = CreationLimits(
            "topics", Status.TOO_MANY_TOPICS, settings.auto_create_up_to, settings.auto_create_per_client
        )

    def info(self) -> BrokerInfo:
        return self._info()

    # -- messages -----------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
    ) -> SendResult:
        self._writer.check_master()
        config = await self.topic_to_write(topic, born_host)
        queue_id = self._writer.queue_of(config, queue_id)
        host = known_host(born_host)
        return await self._writer.put(topic, queue_id, messages, born_host=host, timeout_ms=timeout_ms)

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 1 << 20,
        tags: Sequence[str] = (),
        wait_ms: int = 0,
        group: str = "",
        remote: str = "",
    ) -> PullResult:
        self._check_readable(topic, queue_id)
        self._check_enabled(group)
        if offset < 0 or max_messages < 1 or max_bytes < 1 or wait_ms < 0:
            text = f"offset {offset}, max_messages {max_messages}, max_bytes {max_bytes}, wait_ms {wait_ms}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        look = partial(
            self._reader.read,
            topic,
            queue_id,
            max_messages=min(max_messages, _MAX_PULLED_MESSAGES),
            max_bytes=min(max_bytes, _MAX_PULLED_BYTES),
            tags=frozenset(tags),
        )
        loop, address = asyncio.get_running_loop(), client_of(remote)
        deadline = loop.time() + min(wait_ms, self._settings.max_wait_ms) / 1000
        has_confirmed = False
        while True:
            result = await self._readers.run(partial(look, offset), address)
            if offset > result.max_offset and not has_confirmed and self._writer.expected is not None:
                # A slave may have dispatched more, and shown it, than this master has.
                await self._confirm()
                has_confirmed = True
                continue
            if result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_offset < result.max_offset:
                if loop.time() >= deadline:
                    return result
                offset = result.next_offset  # there are more to look at
                continue
            if result.status not in (PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE):
                if result.records:
                    self._told(group, topic, len(result.records), sum(map(len, result.records)))
                return result
            if loop.time() >= deadline or self.long_polls.is_closed:
                return result
            offset = result.next_offset
            has_grown = partial(self._has, topic, queue_id, offset)
            await self.long_polls.wait(topic, queue_id, offset, has_grown, deadline)

    async def message_at(self, physical_offset: int, *, remote: str = "") -> bytes:
        if physical_offset < 0:
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, f"no message at {physical_offset}")
        return await self._read(partial(self._reader.message_at, physical_offset), remote)

    async def query(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int, remote: str = ""
    ) -> list[bytes]:
        if not key or begin_ms < 0 or end_ms < begin_ms or max_messages < 1:
            text = f"key {key!r}, begin_ms {begin_ms}, end_ms {end_ms}, max_messages {max_messages}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        self._known_topic(topic)
        return await self._read(
            partial(
                self._reader.query,
                topic,
                key,
                begin_ms=begin_ms,
                end_ms=end_ms,
                max_messages=min(max_messages, _MAX_QUERIED),
            ),
            remote,
        )

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, remote: str = "") -> int:
        self._check_readable(topic, queue_id)
        return await self._read(partial(self._reader.offset_by_time, topic, queue_id, timestamp_ms), remote)

    # -- topics -------------------------------------------------------------------------------------------

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        """The topic, which comes into being by this if it may. `remote`: host:port of the client."""
        self._writer.check_master()
        return await self.creation.topic(name, partial(self._create, name, remote))

    def topic_or_default(self, name: str) -> TopicConfig:
        """The topic, or what it would be if it came into being now: nothing is created. TopicRefused,
        IllegalMessage, NotMaster."""
        self._writer.check_master()
        config = self._metadata.topic(name)
        if config is not None:
            self._used(name)
        return config or self._default(name)

    async def put_topic(self, config: TopicConfig) -> None:
        self._writer.check_master()
        (await self._proposals.propose(PutTopic(config))).check()

    async def delete_topic(self, name: str) -> None:
        self._writer.check_master()
        (await self._proposals.propose(DeleteTopic(name))).check()

    def topics(self) -> list[TopicConfig]:
        return list(self._metadata.topics.values())

    async def topic_stats(self, topic: str, *, remote: str = "") -> list[QueueStats]:
        await self._confirm()
        config = self._known_topic(topic)
        count = max(config.read_queues, config.write_queues)
        return await self._read(
            lambda: [self._queue_stats(topic, queue_id) for queue_id in range(count)], remote
        )

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> PullResult:
        """As `ImportApi` has it."""
        config = self._known_topic(topic)
        if not 0 <= queue_id < max(config.read_queues, config.write_queues) or offset < _LAST:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"queue {queue_id} of {topic} from {offset} on")
        await self._confirm()

        def read() -> PullResult:
            least, end = self._files.bounds(topic, queue_id)
            at = max(least, end - 1) if offset == _LAST else offset
            return self._reader.read(
                topic,
                queue_id,
                at,
                max_messages=_MAX_PULLED_MESSAGES,
                max_bytes=_MAX_PULLED_BYTES,
                tags=frozenset(),
            )

        return await self._read(read)

    async def queue_stats(self, topic: str, queue_id: int, *, remote: str = "") -> QueueStats:
        await self._confirm()
        config = self._known_topic(topic)
        if not 0 <= queue_id < max(config.read_queues, config.write_queues):
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic} has no queue {queue_id}")
        return await self._read(partial(self._queue_stats, topic, queue_id), remote)

    # -- groups -------------------------------------------------------------------------------------------

    async def put_group(self, config: GroupConfig) -> None:
        self._writer.check_master()
        (await self._proposals.propose(PutGroup(config))).check()

    async def delete_group(self, name: str) -> None:
        self._writer.check_master()
        (await self._proposals.propose(DeleteGroup(name))).check()

    def groups(self) -> list[GroupConfig]:
        return [group.config for group in self._metadata.groups()]

    async def commit_offsets(self, group: str, generation: int, offsets: Sequence[QueueOffset]) -> None:
        self._use_all(one.topic for one in offsets)
        await self._groups.commit(group, generation, offsets)

    async def offsets(self, group: str, *, remote: str = "") -> tuple[int, list[QueueOffset]]:
        await self._confirm()
        found = self._known_group(group)

        return found.generation, await self._read(partial(self._offsets_of, found), remote)

    async def all_offsets(self) -> dict[str, list[QueueOffset]]:
        await self._confirm()
        groups = list(self._metadata.groups())
        return await self._read(lambda: {group.name: self._offsets_of(group) for group in groups})

    def system_offsets(self) -> Mapping[tuple[str, int], int]:
        return self._given.system_offsets()

    def _offsets_of(self, group: Group) -> list[QueueOffset]:
        """On any thread."""
        offsets = dict(group.offsets)
        for queue, offset in self._given.offsets_of(group.name).items():
            # An offset that was committed reads back: only a reset lowers it, and that concerns both.
            offsets[queue] = max(offset, offsets.get(queue, offset))
        return [QueueOffset(*queue, offsets[queue]) for queue in sorted(offsets)]

    async def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        await self._confirm()
        committed = self._known_group(group).offsets.get((topic, queue_id))
        given = self._given.offset_of(group, topic, queue_id)
        return max((one for one in (given, committed) if one is not None), default=None)

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        return await self._readers.run_filter(work, client_of(remote))

    async def groups_of(self, topic: str) -> list[str]:
        await self._confirm()
        groups = self._metadata.groups()

        def uses(group: Group) -> bool:
            is_given = topic in self._given.topics_of(group.name)
            return is_given or any(queue[0] == topic for queue in group.offsets)

        return await self._read(lambda: sorted(group.name for group in groups if uses(group)))

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        self._use_all(one.topic for one in offsets)
        return await self._groups.reset(group, offsets)

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        self._check_enabled(group)
        self._use_all(topics)
        return await self._groups.join(group, member_id, topics, lease_ms)

    async def leave(self, group: str, member_id: str) -> None:
        await self._groups.leave(group, member_id)

    # -- for delivery -------------------------------------------------------------------------------------

    async def topic_to_write(self, topic: str, remote: str = "") -> TopicConfig:
        """Created if it may be. TopicRefused, IllegalMessage, Busy, and what a proposal may raise."""
        config = await self.creation.topic(topic, partial(self._create, topic, remote))
        self._used(topic)
        return check_writable(config)

    async def make_topic(self, topic: str) -> None:
        """One of the broker's own making, with one queue, if there is none yet."""
        wanted = TopicConfig(topic, read_queues=1, write_queues=1, auto_created=True)
        await self.creation.topic(topic, partial(self._propose, wanted))

    # -- inside -------------------------------------------------------------------------------------------

    async def _create(self, topic: str, remote: str) -> TopicConfig:
        """A topic that nobody has created, if it may be created automatically."""
        wanted, topics = self._default(topic), self._metadata.topics
        now_s = asyncio.get_running_loop().time()
        self._limits.take(client_of(remote), topic, topics, len(topics), now_s)
        return await self._propose(wanted)

    def _default(self, topic: str) -> TopicConfig:
        """What a topic is that is created automatically, if it may."""
        check_user_topic(topic)
        if not self._settings.auto_create_topics:
            text = f"there is no topic {topic}; create it first (auto_create_topics is off)"
            raise error_for(Status.TOPIC_UNKNOWN, text)
        queues = self._settings.default_queues
        return TopicConfig(topic, read_queues=queues, write_queues=queues, auto_created=True)

    async def _propose(self, wanted: TopicConfig) -> TopicConfig:
        (await self._proposals.propose(PutTopic(wanted, create_only=True))).check()
        return self._known_topic(wanted.name)

    async def _confirm(self) -> None:
        """Until all that was acknowledged before the call is applied here."""
        try:
            await self._node.wait_applied()
        except DLedgerError as error:
            raise ReadFailed(Status.NOT_CONFIRMED, error.message) from error

    def _queue_stats(self, topic: str, queue_id: int) -> QueueStats:
        """Blocks."""
        least, end = self._files.bounds(topic, queue_id)
        return QueueStats(topic, queue_id, least, end, self._reader.newest_ms(topic, queue_id))

    def _known_topic(self, topic: str) -> TopicConfig:
        if (config := self._metadata.topic(topic)) is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {topic[:255]!r}")
        return config

    def _known_group(self, group: str) -> Group:
        self._groups.known(group)
        found = self._metadata.group(group)
        if found is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}")
        return found

    def _use_all(self, topics: Iterable[str]) -> None:
        for topic in {topic for topic in topics if topic in self._metadata.topics}:
            self._used(topic)

    def _check_readable(self, topic: str, queue_id: int) -> None:
        config = self._known_topic(topic)
        self._used(topic)
        if not config.is_readable:
            raise error_for(
                Status.TOPIC_NOT_READABLE, f"topic {topic} gives no messages (perm {config.perm})"
            )
        if not 0 <= queue_id < config.read_queues:
            text = f"topic {topic} has {config.read_queues} queues to read, none is {queue_id}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)

    def _check_enabled(self, group: str) -> None:
        self._groups.known(group)
        known = self._metadata.group(group)
        if known is not None and not known.config.consume_enable:
            raise ReadFailed(
                Status.GROUP_NOT_ENABLED, f"group {group} may not consume (consume_enable is off)"
            )

    def _has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the queue has grown to there since it was read, on another thread, when nobody waited."""
        return self._files.bounds(topic, queue_id)[1] > offset

    async def _read(self, work: Callable[[], T], remote: str = "") -> T:
        return await self._readers.run(work, client_of(remote))
