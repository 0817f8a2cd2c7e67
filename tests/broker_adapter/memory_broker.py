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
    BrokerInfo,
    BrokerRole,
    GetMessageResult,
    GetMessageStatus,
    GroupConfig,
    OutgoingMessage,
    QueueOffset,
    QueueStats,
    TopicConfig,
)
from broker_adapter.errors import (
    IllegalMessage,
    NotMaster,
    ReadFailed,
    Status,
    TopicRefused,
)
from broker_adapter.put.sender import PutResult
from broker_adapter.wire.host import NO_HOST, Host
from broker_adapter.wire.message import MessageRecord, decode, encode, patch_offsets
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, join_properties, split_properties
from broker_adapter.wire.topic_names import check_topic_name

T = TypeVar("T")

_HEADER = 48  # of an entry of the log


class Stored(NamedTuple):
    record: bytes
    tag: str
    store_ms: int


class MemoryCluster:
    """What all brokers agree on, and which of them is the master."""

    def __init__(self, size: int = 2) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.queues: dict[tuple[str, int], list[Stored]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = defaultdict(int)  # least offset of a queue
        self.by_position: dict[int, bytes] = {}
        self.end = 0
        self.group_configs: dict[str, GroupConfig] = {}
        self.offsets: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)  # by group
        self.arrived = asyncio.Event()
        self.term = 0
        self.now_ms = 1_700_000_000_000
        self.auto_create = True
        self.brokers = [MemoryBroker(self, i) for i in range(size)]
        self.master: MemoryBroker | None = None
        self.lead(0)

    def lead(self, number: int | None) -> None:
        """Make a broker the master, None: nobody."""
        self.term += 1
        self.master = None if number is None else self.brokers[number]
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
    ) -> PutResult:
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
    ) -> PutResult:
        cluster = self.cluster
        queue = cluster.queues[topic, queue_id]
        # All are encoded before the first is stored: a batch is stored whole or not at all.
        encoded = [
            encode(
                MessageRecord(
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
        first, positions = len(queue), list[int]()
        for message, record in zip(messages, encoded, strict=True):
            at = cluster.end + _HEADER
            patch_offsets(record, len(queue), at)
            positions.append(at)
            cluster.by_position[at] = bytes(record)
            cluster.end += _HEADER + len(record)
            queue.append(Stored(bytes(record), message.properties.get(TAGS, ""), cluster.now_ms))
        index = len(cluster.by_position) - len(positions)
        return PutResult(queue_id, first, False, positions[0], index, cluster.term, None, positions)

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
        self.pulls += 1
        self.remotes.append(remote)
        try:
            deadline = asyncio.get_running_loop().time() + wait_ms / 1000
            while True:
                arrived = self.cluster.arrived
                result = self._look(topic, queue_id, offset, max_messages, max_bytes, tags)
                if result.status is not GetMessageStatus.NO_NEW_MESSAGE or not wait_ms:
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
    ) -> GetMessageResult:
        config = self._topic(topic, create=False)
        if not config.is_readable:
            raise TopicRefused(Status.TOPIC_NOT_READABLE, f"topic {topic} is not readable")
        if queue_id >= config.read_queues:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"{topic} has no queue {queue_id}")
        queue = self.cluster.queues[topic, queue_id]
        least, end = self.cluster.first[topic, queue_id], len(queue)
        if not least <= offset <= end:
            return GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, min(max(offset, least), end), least, end)
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
            return GetMessageResult(GetMessageStatus.FOUND, at, least, end, records)
        status = GetMessageStatus.NO_NEW_MESSAGE if at == offset else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, at, least, end)

    async def read(
        self, topic: str, queue_id: int, offset: int, *, max_messages: int = 1, remote: str = ""
    ) -> list[bytes]:
        self._topic(topic, create=False)
        queue = self.cluster.queues[topic, queue_id]
        return [record for record, _, _ in queue[offset : offset + max_messages]]

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

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, is_upper: bool = False, remote: str = ""
    ) -> int:
        self._topic(topic, create=False)
        queue = self.cluster.queues[topic, queue_id]
        if is_upper:
            earlier = [i for i, stored in enumerate(queue) if stored.store_ms <= timestamp_ms]
            return max(self.cluster.first[topic, queue_id], *earlier[-1:])
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

    async def change_topic(
        self, name: str, change: Callable[[TopicConfig | None], TopicConfig], *, is_forced: bool = False
    ) -> None:
        await self.put_topic(change(self.cluster.topics.get(name)))

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

    async def change_group(self, name: str, change: Callable[[GroupConfig | None], GroupConfig]) -> None:
        await self.put_group(change(self.cluster.group_configs.get(name)))

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        self._need_master()
        self.cluster.group_configs.pop(name, None)
        self.cluster.offsets.pop(name, None)

    def groups(self) -> list[GroupConfig]:
        return list(self.cluster.group_configs.values())

    # -- offsets

    async def commit_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, client_id: str = ""
    ) -> None:
        self._need_master()
        stored = self.cluster.offsets[group]
        for topic, queue_id, offset in offsets:
            self._topic(topic, create=False)
            stored[topic, queue_id] = max(offset, stored.get((topic, queue_id), 0))

    async def offset(
        self, group: str, topic: str, queue_id: int, *, client_id: str = "", remote: str = ""
    ) -> int | None:
        self._need_master()
        return self.cluster.offsets[group].get((topic, queue_id))

    async def offsets(self, group: str, *, remote: str = "") -> list[QueueOffset]:
        self._need_master()
        return [QueueOffset(*queue, at) for queue, at in sorted(self.cluster.offsets[group].items())]

    async def reset_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, is_import: bool = False
    ) -> int:
        self._need_master()
        self.cluster.offsets[group].update({(topic, queue_id): at for topic, queue_id, at in offsets})
        return 0
