"""The broker, which implements the client operations with the help of its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

from broker_adapter.api import (
    BrokerInfo,
    GetMessageResult,
    GetMessageStatus,
    GroupConfig,
    QueueOffset,
    QueueStats,
    TopicConfig,
)
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.errors import IllegalMessage, ReadFailed, Status, error_for
from broker_adapter.metadata.commands import (
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
)
from broker_adapter.metadata.config_changes import ConfigChanges
from broker_adapter.metadata.group_service import GroupService
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.reset_barriers import Pull, PullVerdict, RemotingCaller
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import Group
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.server.pulled_offsets import PulledOffsets
from broker_adapter.store.queue_reader import MAX_SMALL_READ, QueueFiles, QueueReader
from dledger import DLedgerError
from dledger.infra.loops.turns import settle, wake_queue
from dledger.infra.quotas import client_of

T = TypeVar("T")

_MAX_PULLED_MESSAGES = 4096
_MAX_PULLED_BYTES = 4 << 20
#: Offset that stands for the last message.
_LAST = -1
_MAX_QUERIED = 1024
#: Pause between two pulls of a client that was sent a reset, until it has handled the reset.
_NOTIFIED_PAUSE_S = 1.0


class ReadPoint(Protocol):
    """The part of `dledger.NodeServer` that waits until appends acknowledged before a call are applied."""

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...


class Readers(Protocol):
    """Interface of `broker_adapter.server.reader_threads.ReaderThreads`."""

    async def run(self, work: Callable[[], T], address: str = "") -> T: ...

    async def read(self, work: Callable[[], T], address: str = "") -> T: ...

    async def run_filter(self, work: Callable[[], T], address: str) -> T: ...


class BrokerFiles(QueueFiles, Protocol):
    """Interface of `broker_adapter.server.dispatched_files.DispatchedFiles`."""

    def floor(self, topic: str, queue_id: int) -> int: ...


class GivenOffsets(Protocol):
    """Interface to `DeliveryState` for the offsets of single-message delivery. May be used on any thread."""

    def offsets_of(self, group: str) -> Mapping[tuple[str, int], int]: ...

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def topics_of(self, group: str) -> Set[str]: ...

    def system_offsets(self) -> Mapping[tuple[str, int], int]: ...


class Broker:
    """Serves the operations of clients. Implements `broker_adapter.api.BrokerApi`.

    Runs on the node's event loop. Blocking work runs on `readers`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        node: ReadPoint,
        writer: MessageWriter,
        files: BrokerFiles,
        reader: QueueReader,
        metadata: MetadataState,
        proposals: Proposals,
        groups: GroupService,
        readers: Readers,
        info: Callable[[], BrokerInfo],
        given: GivenOffsets,
        used: Callable[[str], None] = lambda _: None,
        on_pull: Callable[[str, str, int, int], None] = lambda group, topic, messages, size: None,
    ) -> None:
        """Create the broker. `used` is called with each topic that a client uses, and `on_pull` with (group,
        topic, messages, bytes) for each pull that returned messages.
        """
        self.long_polls = LongPolls(settings.max_held_pulls)
        self._pulled = PulledOffsets(time.monotonic)
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
        self._on_pull = on_pull
        self._config_changes = ConfigChanges(
            metadata, proposals.propose, self.topic_stats, writer.topics.closing
        )

    def info(self) -> BrokerInfo:
        return self._info()

    # -- messages -----------------------------------------------------------------------------------------

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
        client_id: str = "",
        remote: str = "",
    ) -> GetMessageResult:
        if offset < 0 or max_messages < 1 or max_bytes < 1 or wait_ms < 0:
            text = f"offset {offset}, max_messages {max_messages}, max_bytes {max_bytes}, wait_ms {wait_ms}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        read = partial(
            self._reader.read,
            topic,
            queue_id,
            max_messages=min(max_messages, _MAX_PULLED_MESSAGES),
            max_bytes=min(max_bytes, _MAX_PULLED_BYTES),
            tags=frozenset(tags),
        )
        read_on = self._readers.read if max_messages <= MAX_SMALL_READ else self._readers.run
        loop, address = asyncio.get_running_loop(), client_of(remote)
        deadline = loop.time() + min(wait_ms, self._settings.max_wait_ms) / 1000
        has_confirmed = False
        barriers = self._groups.barriers
        reset_index = barriers.reset_index(group, topic, queue_id)
        pull = Pull(topic, queue_id, offset, group, RemotingCaller(client_id, remote), reset_index)
        while True:
            # Repeat the checks: topic and group may have changed while the pull waited.
            self._check_readable(topic, queue_id)
            self._check_enabled(group)
            # A reset also completes waiting pulls.
            reset_index = barriers.reset_index(group, topic, queue_id)
            # Read first, because this may raise an error. After `judge_pull`, the client would then miss the
            # redirect.
            bounds = self._files.bounds(topic, queue_id)
            verdict = barriers.judge_pull(pull)
            if verdict.move_to is not None:
                return await self._redirected(pull, verdict, bounds, deadline)
            result = await read_on(partial(read, offset), address)
            if offset > result.max_offset and not has_confirmed and self._writer.expected is not None:
                # A slave may have dispatched and served messages that this master has not dispatched yet.
                await self._confirm()
                has_confirmed = True
                continue
            if (
                result.status is GetMessageStatus.NO_MATCHED_MESSAGE
                and result.next_offset < result.max_offset
            ):
                barriers.passed_over(pull, result.next_offset)
                if loop.time() >= deadline:
                    return self._noted(pull, result)
                offset = result.next_offset  # continue with further messages
                continue
            if result.status not in (GetMessageStatus.NO_NEW_MESSAGE, GetMessageStatus.NO_MATCHED_MESSAGE):
                if result.records:
                    barriers.served(pull, result.next_offset)
                    self._on_pull(group, topic, len(result.records), sum(map(len, result.records)))
                return self._noted(pull, result)
            barriers.passed_over(pull, result.next_offset)
            if loop.time() >= deadline or self.long_polls.is_closed:
                return self._noted(pull, result)
            offset = result.next_offset
            has_changed = partial(self._has_changed, pull, offset, reset_index)
            await self.long_polls.wait(topic, queue_id, offset, has_changed, deadline)

    def _noted(self, pull: Pull, result: GetMessageResult) -> GetMessageResult:
        if pull.group and result.status is not GetMessageStatus.OFFSET_ILLEGAL:
            self._pulled.note(pull.group, pull.topic, pull.queue_id, result.next_offset)
        return result

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        return self._pulled.offset(group, topic, queue_id)

    async def _redirected(
        self, pull: Pull, verdict: PullVerdict, bounds: tuple[int, int], deadline: float
    ) -> GetMessageResult:
        """Return the response to a member that has not followed a reset.

        If a request has notified the client of the new offset, the response contains no messages. The client
        pulls again until it has handled the request.
        """
        assert verdict.move_to is not None
        if not verdict.is_notified:
            return GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, verdict.move_to, *bounds)
        pause_s = min(_NOTIFIED_PAUSE_S, deadline - asyncio.get_running_loop().time())
        await asyncio.sleep(max(0.0, pause_s))
        return GetMessageResult(GetMessageStatus.NO_NEW_MESSAGE, pull.offset, *bounds)

    def offsets_reset(self, offsets: Sequence[QueueOffset]) -> None:
        """Wake pulls that wait in these queues, so that they check for the reset."""
        self.long_polls.wake((offset.topic, offset.queue_id) for offset in offsets)

    async def message_at(self, physical_offset: int, *, remote: str = "") -> bytes:
        if physical_offset < 0:
            raise ReadFailed(
                Status.MESSAGE_NOT_FOUND, f"no message starts at physical offset {physical_offset}"
            )
        return await self._readers.read(partial(self._reader.message_at, physical_offset), client_of(remote))

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

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, is_upper: bool = False, remote: str = ""
    ) -> int:
        self._check_queue(topic, queue_id)
        self._used(topic)
        search = partial(self._reader.offset_by_time, topic, queue_id, timestamp_ms, is_upper=is_upper)
        return await self._read(search, remote)

    async def read(
        self, topic: str, queue_id: int, offset: int, *, max_messages: int = 1, remote: str = ""
    ) -> list[bytes]:
        self._check_queue(topic, queue_id)
        return list((await self._read(self._stored(topic, queue_id, offset, max_messages), remote)).records)

    # -- topics -------------------------------------------------------------------------------------------

    async def put_topic(self, config: TopicConfig) -> None:
        self._writer.check_master()
        (await self._proposals.propose(PutTopic(config))).check()

    async def change_topic(
        self, name: str, change: Callable[[TopicConfig | None], TopicConfig], *, is_forced: bool = False
    ) -> None:
        self._writer.check_master()
        await self._config_changes.change_topic(name, change, is_forced=is_forced)

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

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> GetMessageResult:
        """Implement `ImportApi.read_queue`."""
        self._check_queue(topic, queue_id)
        if offset < _LAST:
            raise IllegalMessage(
                Status.FIELD_OUT_OF_RANGE, f"queue {queue_id} of topic {topic} has no offset {offset}"
            )
        await self._confirm()

        def read() -> GetMessageResult:
            least, end = self._files.bounds(topic, queue_id)
            at = max(least, end - 1) if offset == _LAST else offset
            return self._stored(topic, queue_id, at, _MAX_PULLED_MESSAGES)()

        return await self._read(read)

    async def queue_stats(self, topic: str, queue_id: int, *, remote: str = "") -> QueueStats:
        await self._confirm()
        self._check_queue(topic, queue_id)
        return await self._read(partial(self._queue_stats, topic, queue_id), remote)

    # -- groups -------------------------------------------------------------------------------------------

    async def put_group(self, config: GroupConfig) -> None:
        self._writer.check_master()
        (await self._proposals.propose(PutGroup(config))).check()

    async def change_group(self, name: str, change: Callable[[GroupConfig | None], GroupConfig]) -> None:
        self._writer.check_master()
        await self._config_changes.change_group(name, change)

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        self._writer.check_master()
        (await self._proposals.propose(DeleteGroup(name, keeps_offsets))).check()

    def groups(self) -> list[GroupConfig]:
        return [group.config for group in self._metadata.groups()]

    async def commit_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, client_id: str = ""
    ) -> None:
        self._use_all(offset.topic for offset in offsets)
        await self._groups.commit(group, offsets, client_id)

    async def offsets(self, group: str, *, remote: str = "") -> list[QueueOffset]:
        await self._confirm()
        return await self._read(partial(self._offsets_of, self._known_group(group)), remote)

    async def all_offsets(self) -> dict[str, list[QueueOffset]]:
        await self._confirm()
        groups = list(self._metadata.groups())
        return await self._read(lambda: {group.name: self._offsets_of(group) for group in groups})

    def system_offsets(self) -> Mapping[tuple[str, int], int]:
        return self._given.system_offsets()

    def _offsets_of(self, group: Group) -> list[QueueOffset]:
        """Return the group's offsets. Runs on any thread."""
        offsets = dict(group.offsets)
        for queue, offset in self._given.offsets_of(group.name).items():
            # A read must not return less than a committed offset. Only a reset lowers offsets, of both kinds.
            offsets[queue] = max(offset, offsets.get(queue, offset))
        return [QueueOffset(*queue, offsets[queue]) for queue in sorted(offsets)]

    async def offset(
        self, group: str, topic: str, queue_id: int, *, client_id: str = "", remote: str = ""
    ) -> int | None:
        await self._confirm()
        barriers = self._groups.barriers
        reset_index = barriers.reset_index(group, topic, queue_id)
        committed = self._known_group(group).offsets.get((topic, queue_id))
        given = self._given.offset_of(group, topic, queue_id)
        offset = max((known for known in (given, committed) if known is not None), default=None)
        if offset is not None:
            caller = RemotingCaller(client_id, remote)
            barriers.offset_given(group, topic, queue_id, caller, offset, reset_index)
        return offset

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        return await self._readers.run_filter(work, client_of(remote))

    async def groups_of(self, topic: str) -> list[str]:
        await self._confirm()
        groups = self._metadata.groups()

        def uses(group: Group) -> bool:
            is_given = topic in self._given.topics_of(group.name)
            return is_given or any(queue[0] == topic for queue in group.offsets)

        return await self._read(lambda: sorted(group.name for group in groups if uses(group)))

    async def reset_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, is_import: bool = False
    ) -> int:
        self._use_all(offset.topic for offset in offsets)
        index = await self._groups.reset(group, offsets, is_import=is_import)
        for one in offsets:
            self._pulled.forget(group, one.topic, one.queue_id)
        return index

    # -- internal -------------------------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Wait until all appends acknowledged before the call are applied on this node."""
        try:
            await self._node.wait_applied()
        except DLedgerError as error:
            raise ReadFailed(Status.NOT_CONFIRMED, error.message) from error

    def _stored(
        self, topic: str, queue_id: int, offset: int, max_messages: int
    ) -> Callable[[], GetMessageResult]:
        """Return a read, for a reader thread."""
        return partial(
            self._reader.read,
            topic,
            queue_id,
            offset,
            max_messages=min(max_messages, _MAX_PULLED_MESSAGES),
            max_bytes=_MAX_PULLED_BYTES,
            tags=frozenset(),
        )

    def _queue_stats(self, topic: str, queue_id: int) -> QueueStats:
        """Return the statistics of a queue. Blocks."""
        least, end = self._files.bounds(topic, queue_id)
        is_imported = queue_id in self._metadata.imported_queues(topic)
        initial = None if is_imported else self._files.floor(topic, queue_id)
        return QueueStats(topic, queue_id, least, end, self._reader.newest_ms(topic, queue_id), initial)

    def _known_topic(self, topic: str) -> TopicConfig:
        if (config := self._metadata.topic(topic)) is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {topic[:255]!r}")
        return config

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config = self._known_topic(topic)
        if not 0 <= queue_id < max(config.read_queues, config.write_queues):
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic} has no queue {queue_id}")

    def _known_group(self, group: str) -> Group:
        self._groups.known(group)
        known = self._metadata.group(group)
        if known is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}")
        return known

    def _use_all(self, topics: Iterable[str]) -> None:
        for topic in {topic for topic in topics if topic in self._metadata.topics}:
            self._used(topic)

    def _check_readable(self, topic: str, queue_id: int) -> None:
        config = self._known_topic(topic)
        self._used(topic)
        if not config.is_readable:
            raise error_for(Status.TOPIC_NOT_READABLE, f"topic {topic} is not readable (perm {config.perm})")
        if not 0 <= queue_id < config.read_queues:
            text = f"topic {topic} has {config.read_queues} readable queues, no queue {queue_id}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)

    def _check_enabled(self, group: str) -> None:
        self._groups.known(group)
        known = self._metadata.group(group)
        if known is not None and not known.config.consume_enable:
            raise ReadFailed(
                Status.GROUP_NOT_ENABLED, f"group {group} must not consume (consume_enable is off)"
            )

    def _has_changed(self, pull: Pull, offset: int, reset_index: int) -> bool:
        """Return True if the queue has messages at or after the offset, or was reset since it was read."""
        if self._groups.barriers.reset_index(pull.group, pull.topic, pull.queue_id) != reset_index:
            return True
        return self._files.bounds(pull.topic, pull.queue_id)[1] > offset

    async def _read(self, work: Callable[[], T], remote: str = "") -> T:
        return await self._readers.run(work, client_of(remote))


Queue = tuple[str, int]


class LongPolls:
    """Pulls that wait for messages, as in RocketMQ's PullRequestHoldService.

    RocketMQ's periodic scans are not needed, because each arrival wakes the pulls of its queue.
    """

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._held: dict[Queue, dict[asyncio.Future[None], int]] = {}
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def wait(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        has_grown: Callable[[], bool] = lambda: False,
        deadline: float | None = None,
    ) -> None:
        """Wait until the queue has a message at `offset`, `wake_all` is called, or `deadline` (loop time) has
        passed.

        `has_grown` is called once, after the registration, so that no arrival is missed. Raises ReadFailed if
        the maximum number of pulls is already waiting.
        """
        if self._closed:
            return
        if self._count >= self._max_held:
            raise ReadFailed(
                Status.TOO_MANY_HELD_PULLS,
                f"too many pulls are waiting for messages: the limit is {self._max_held}; try again later",
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None
        if deadline is not None:  # many deadlines may coincide
            timer = loop.call_at(deadline, wake_queue().settle, topic, future)
        waiting = self._held.setdefault((topic, queue_id), {})
        waiting[future] = offset
        self._count += 1
        try:
            if not has_grown():
                await future
        finally:
            if timer is not None:
                timer.cancel()
            self._count -= 1
            waiting.pop(future, None)
            if not waiting and self._held.get((topic, queue_id)) is waiting:
                del self._held[topic, queue_id]

    def arrived(self, arrivals: Iterable[tuple[str, int, int]]) -> None:
        """Wake the pulls of queues that have grown. Each item is (topic, queue id, max offset)."""
        if not self._held:
            return
        for topic, queue_id, max_offset in arrivals:
            waiting = self._held.get((topic, queue_id), {})
            woken = [future for future, offset in waiting.items() if offset < max_offset]
            for future in woken:
                del waiting[future]  # already scheduled for a wake-up
            wake_queue().each(topic, woken, settle)

    def wake(self, queues: Iterable[Queue]) -> None:
        """Wake the pulls of these queues."""
        for queue in queues:
            if waiting := self._held.get(queue):
                wake_queue().each(queue[0], list(waiting), settle)

    def wake_all(self) -> None:
        """Wake all pulls, because the role or the queues have changed."""
        if self._held:
            wake_queue().each(None, [pull for waiting in self._held.values() for pull in waiting], settle)

    def close(self) -> None:
        """Wake all pulls. Later pulls return without waiting."""
        self._closed = True
        self.wake_all()
