"""Brokers without a log or a disk: what they have agreed on is one object that all of them share.

Slow and obvious, but right: what `broker_adapter.api.BrokerApi` says holds here. A test moves the master with
`MemoryCluster.lead`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from broker_adapter.api import (
    Assignment,
    BrokerInfo,
    BrokerRole,
    GroupConfig,
    OutgoingMessage,
    PullResult,
    PullStatus,
    QueueOffset,
    QueueStats,
    SendResult,
    TopicConfig,
)
from broker_adapter.errors import (
    GroupRefused,
    IllegalMessage,
    NotMaster,
    ReadFailed,
    Status,
    TopicRefused,
)
from broker_adapter.format.host import NO_HOST, Host
from broker_adapter.format.message import Message, decode, encode, patch_offsets
from broker_adapter.format.properties import KEYS, TAGS, UNIQ_KEY, join_properties, split_properties
from broker_adapter.format.topic_names import check_topic_name

T = TypeVar("T")

_HEADER = 48  # of an entry of the log


class Stored(NamedTuple):
    record: bytes
    tag: str
    store_ms: int


class Member(NamedTuple):
    topics: tuple[str, ...]
    expires: float  # of the cluster's clock


class GroupState:
    """What the log knows of a group, and who its members are, which only the master knows."""

    def __init__(self) -> None:
        self.generation = 0
        self.offsets: dict[tuple[str, int], int] = {}
        self.members: dict[str, Member] = {}
        self.queues: dict[str, list[tuple[str, int]]] = {}


class MemoryCluster:
    """What all brokers agree on, and which of them is the master."""

    def __init__(self, size: int = 2, *, clock: Callable[[], float] | None = None) -> None:
        self.clock = asyncio.get_running_loop().time if clock is None else clock
        self.topics: dict[str, TopicConfig] = {}
        self.queues: dict[tuple[str, int], list[Stored]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = defaultdict(int)  # least offset of a queue
        self.by_position: dict[int, bytes] = {}
        self.end = 0
        self.group_configs: dict[str, GroupConfig] = {}
        self.groups: dict[str, GroupState] = defaultdict(GroupState)
        self.arrived = asyncio.Event()
        self.term = 0
        self.now_ms = 1_700_000_000_000
        self.commits: list[tuple[str, int, tuple[QueueOffset, ...]]] = []  # acknowledged, in order
        self.auto_create = True
        self.brokers = [MemoryBroker(self, i) for i in range(size)]
        self.master: MemoryBroker | None = None
        self.lead(0)

    def lead(self, number: int | None) -> None:
        """Make a broker the master, None: nobody. As after a failover, the members are forgotten."""
        self.term += 1
        self.master = None if number is None else self.brokers[number]
        for group in self.groups.values():
            group.members.clear()
            group.queues.clear()
        self.wake()

    def wake(self) -> None:
        """Something has come: let those who wait look again."""
        self.arrived.set()
        self.arrived = asyncio.Event()

    def trim(self, topic: str, queue_id: int, offset: int) -> None:
        """Retention: forget what is below an offset."""
        self.first[topic, queue_id] = offset

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        return [decode(s.record).body for s in self.queues[topic, queue_id]]


class MemoryBroker:
    """One broker of the cluster. Implements BrokerApi."""

    def __init__(self, cluster: MemoryCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.address = ""
        self.pulls = 0  # under way
        self.remotes: list[str] = []  # of pulls and filters
        self.sends: list[tuple[str, int, int]] = []  # topic, queue, messages
        #: Called before a send is looked at: a test may wait there, or raise.
        self.before_send: Callable[[], object] | None = None
        #: ... and after it was stored, before it is answered.
        self.after_send: Callable[[], object] | None = None

    # -- roles

    @property
    def is_master(self) -> bool:
        return self.cluster.master is self

    def info(self) -> BrokerInfo:
        master = self.cluster.master
        return BrokerInfo(
            cluster="memory",
            broker_name="broker-a",
            broker_id=0 if self.is_master else self.number + 1,
            role=BrokerRole.SYNC_MASTER if self.is_master else BrokerRole.SLAVE,
            term=self.cluster.term,
            role_epoch=self.cluster.term,
            node_id=f"n{self.number}",
            address=self.address,
            master_address=master.address if master is not None else None,
        )

    def _need_master(self) -> None:
        if not self.is_master:
            master = self.cluster.master
            raise NotMaster("this is a slave", master_address=master.address if master else None)

    # -- messages

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        self.remotes.append(remote)
        return await asyncio.to_thread(work)

    async def send(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
    ) -> SendResult:
        if self.before_send is not None and asyncio.iscoroutine(wait := self.before_send()):
            await wait
        self._need_master()
        config = self._topic(topic, create=True)
        if not config.is_writable:
            raise TopicRefused(Status.TOPIC_NOT_WRITABLE, f"topic {topic} is not writable")
        if queue_id >= config.write_queues:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"{topic} has no queue {queue_id}")
        queue_id = max(queue_id, 0)
        result = self._store(topic, queue_id, messages, born_host)
        self.sends.append((topic, queue_id, len(messages)))
        self.cluster.wake()
        if self.after_send is not None and asyncio.iscoroutine(wait := self.after_send()):
            await wait
        return result

    def _store(
        self, topic: str, queue_id: int, messages: Sequence[OutgoingMessage], born_host: str
    ) -> SendResult:
        cluster = self.cluster
        queue = cluster.queues[topic, queue_id]
        # All are encoded before the first is stored: a batch is stored whole or not at all.
        encoded = [
            encode(
                Message(
                    topic,
                    m.body,
                    join_properties(m.properties),
                    queue_id,
                    m.flag,
                    sys_flag=m.sys_flag,
                    born_timestamp=m.born_timestamp or cluster.now_ms,
                    born_host=Host.parse(born_host) if born_host else NO_HOST,
                    store_timestamp=cluster.now_ms,
                    store_host=Host.parse(self.address) if self.address else NO_HOST,
                )
            )
            for m in messages
        ]
        first, positions, ids = len(queue), [], []
        for message, record in zip(messages, encoded, strict=True):
            at = cluster.end + _HEADER
            patch_offsets(record, len(queue), at)
            positions.append(at)
            ids.append(decode(record).offset_id)
            cluster.by_position[at] = bytes(record)
            cluster.end += _HEADER + len(record)
            queue.append(Stored(bytes(record), message.properties.get(TAGS, ""), cluster.now_ms))
        index = len(cluster.by_position) - len(positions)
        return SendResult(queue_id, first, positions, ids, cluster.term, self.info().node_id, index)

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
        self.pulls += 1
        self.remotes.append(remote)
        try:
            deadline = asyncio.get_running_loop().time() + wait_ms / 1000
            while True:
                arrived = self.cluster.arrived
                result = self._look(topic, queue_id, offset, max_messages, max_bytes, tags)
                if result.status is not PullStatus.NO_NEW_MESSAGE or not wait_ms:
                    return result
                try:
                    async with asyncio.timeout_at(deadline):
                        await arrived.wait()
                except TimeoutError:
                    return result
        finally:
            self.pulls -= 1

    def _look(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tags: Sequence[str],
    ) -> PullResult:
        config = self._topic(topic, create=False)
        if not config.is_readable:
            raise TopicRefused(Status.TOPIC_NOT_READABLE, f"topic {topic} is not readable")
        if queue_id >= config.read_queues:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"{topic} has no queue {queue_id}")
        queue = self.cluster.queues[topic, queue_id]
        least, end = self.cluster.first[topic, queue_id], len(queue)
        if not least <= offset <= end:
            return PullResult(PullStatus.OFFSET_ILLEGAL, min(max(offset, least), end), least, end)
        records: list[bytes] = []
        size, at = 0, offset
        while at < end and len(records) < max_messages:
            record, tag, _ = queue[at]
            if not tags or tag in tags:
                size += len(record)
                if records and size > max_bytes:
                    break
                records.append(record)
            at += 1
        if records:
            return PullResult(PullStatus.FOUND, at, least, end, records)
        status = PullStatus.NO_NEW_MESSAGE if at == offset else PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, at, least, end)

    async def message_at(self, physical_offset: int, *, remote: str = "") -> bytes:
        record = self.cluster.by_position.get(physical_offset)
        if record is None:
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, f"no message at {physical_offset}")
        return record

    async def query(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int, remote: str = ""
    ) -> list[bytes]:
        found = []
        for record in reversed(self.cluster.by_position.values()):
            message = decode(record)
            properties = split_properties(message.properties)
            keys = {*properties.get(KEYS, "").split(), properties.get(UNIQ_KEY)}
            if message.topic == topic and key in keys and begin_ms <= message.store_timestamp <= end_ms:
                found.append(record)
        return found[:max_messages]

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, remote: str = "") -> int:
        self._topic(topic, create=False)
        queue = self.cluster.queues[topic, queue_id]
        later = (i for i, stored in enumerate(queue) if stored.store_ms >= timestamp_ms)
        return max(next(later, len(queue)), self.cluster.first[topic, queue_id])

    # -- topics and groups

    def _topic(self, name: str, *, create: bool) -> TopicConfig:
        check_topic_name(name)
        config = self.cluster.topics.get(name)
        if config is None:
            if not create or not self.cluster.auto_create:
                raise TopicRefused(Status.TOPIC_UNKNOWN, f"there is no topic {name}")
            config = self.cluster.topics[name] = TopicConfig(name)
        return config

    async def put_topic(self, config: TopicConfig) -> None:
        self._need_master()
        check_topic_name(config.name)
        self.cluster.topics[config.name] = config

    async def delete_topic(self, name: str) -> None:
        self._need_master()
        self._topic(name, create=False)
        del self.cluster.topics[name]
        for key in [key for key in self.cluster.queues if key[0] == name]:
            self.cluster.first[key] = len(self.cluster.queues[key])

    def topics(self) -> list[TopicConfig]:
        return list(self.cluster.topics.values())

    async def queue_stats(self, topic: str, queue_id: int, *, remote: str = "") -> QueueStats:
        return (await self.topic_stats(topic))[queue_id]

    async def topic_stats(self, topic: str, *, remote: str = "") -> list[QueueStats]:
        config = self._topic(topic, create=False)
        cluster = self.cluster
        return [
            QueueStats(
                topic,
                q,
                cluster.first[topic, q],
                len(cluster.queues[topic, q]),
                cluster.queues[topic, q][-1].store_ms if cluster.queues[topic, q] else 0,
            )
            for q in range(config.read_queues)
        ]

    async def put_group(self, config: GroupConfig) -> None:
        self._need_master()
        self.cluster.group_configs[config.name] = config

    async def delete_group(self, name: str) -> None:
        self._need_master()
        self.cluster.group_configs.pop(name, None)
        self.cluster.groups[name].offsets.clear()
        self.cluster.groups[name].generation += 1

    def groups(self) -> list[GroupConfig]:
        return list(self.cluster.group_configs.values())

    # -- offsets and members

    async def commit_offsets(self, group: str, generation: int, offsets: Sequence[QueueOffset]) -> None:
        self._need_master()
        state = self.cluster.groups[group]
        wanted = -1 if not state.members else state.generation
        if generation != wanted:
            raise GroupRefused(Status.GENERATION_STALE, f"generation {generation}; it is {wanted}")
        for topic, queue_id, offset in offsets:
            self._topic(topic, create=False)
            state.offsets[topic, queue_id] = max(offset, state.offsets.get((topic, queue_id), 0))
        self.cluster.commits.append((group, generation, tuple(offsets)))

    async def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        self._need_master()
        return self.cluster.groups[group].offsets.get((topic, queue_id))

    async def offsets(self, group: str, *, remote: str = "") -> tuple[int, list[QueueOffset]]:
        self._need_master()
        state = self.cluster.groups[group]
        return state.generation, [QueueOffset(*queue, at) for queue, at in sorted(state.offsets.items())]

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        self._need_master()
        state = self.cluster.groups[group]
        state.generation += 1
        state.offsets.update({(topic, queue_id): offset for topic, queue_id, offset in offsets})
        return state.generation

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        self._need_master()
        state, now = self.cluster.groups[group], self.cluster.clock()
        for topic in topics:
            self._topic(topic, create=False)
        before = {m: state.members[m].topics for m in state.members}
        state.members[member_id] = Member(tuple(topics), now + lease_ms / 1000)
        self._expire(state, now)
        if before != {m: state.members[m].topics for m in state.members}:
            self._assign(state)
        return Assignment(
            state.generation, state.queues[member_id], len(state.members), max(1, lease_ms // 3)
        )

    async def leave(self, group: str, member_id: str) -> None:
        self._need_master()
        state = self.cluster.groups[group]
        if state.members.pop(member_id, None) is not None:
            self._assign(state)

    def _expire(self, state: GroupState, now: float) -> None:
        for member_id in [m for m, member in state.members.items() if member.expires < now]:
            del state.members[member_id]

    def _assign(self, state: GroupState) -> None:
        """RocketMQ's AllocateMessageQueueAveragely, topic by topic."""
        state.generation += 1
        state.queues = {member_id: [] for member_id in state.members}
        for topic in sorted({topic for member in state.members.values() for topic in member.topics}):
            members = sorted(m for m, member in state.members.items() if topic in member.topics)
            queues = [(topic, q) for q in range(self.cluster.topics[topic].read_queues)]
            size, rest = divmod(len(queues), len(members))
            at = 0
            for i, member_id in enumerate(members):
                share = size + (i < rest)
                state.queues[member_id] += queues[at : at + share]
                at += share
