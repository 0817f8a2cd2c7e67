"""Import of a store of RocketMQ: everything has its queue offset again, whatever interrupts the import.

What is there already is found out from the target, so an import that is run again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.classic.store_directory import (
    Contents,
    QueueContents,
    QueueDigest,
    QueueKey,
    StoreDirectory,
)
from broker_adapter.classic.system_names import is_system_group, is_system_topic
from broker_adapter.errors import Status, error_for
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.moving.delayed import move_delayed, pending
from broker_adapter.moving.storing import MOST_BYTES, MOST_RECORDS, Row, store_once
from broker_adapter.moving.target import ImportTarget

_SHOWN_QUEUES = 5


class Plan(NamedTuple):
    """What is imported, and what is left: messages by topic. `groups` with their offsets, none of which is
    beyond its queue; `clamped` were. `delayed`: messages that wait for their time."""

    topics: Mapping[str, TopicConfig]
    queues: Mapping[QueueKey, QueueContents]
    groups: Mapping[str, GroupConfig]
    offsets: Mapping[str, list[QueueOffset]]
    clamped: int
    delayed: int
    left: Mapping[str, int]

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues.values())


def plan_of(store: StoreDirectory, contents: Contents) -> Plan:
    """All topics and groups of users. Messages of topics that topics.json does not know were deleted."""
    topics = {name: config for name, config in store.topics.items() if not is_system_topic(config)}
    queues = {key: queue for key, queue in contents.queues.items() if key[0] in topics}
    left: dict[str, int] = {}
    for key, queue in contents.queues.items():
        if key[0] not in topics and key[0] != SCHEDULE_TOPIC:
            left[key[0]] = left.get(key[0], 0) + queue.messages
    groups = {name: config for name, config in store.groups.items() if not is_system_group(name)}
    offsets: dict[str, list[QueueOffset]] = {}
    clamped = 0
    for group, committed in store.offsets.items():
        if is_system_group(group):
            continue
        for one in committed:
            config = topics.get(one.topic)
            if config is None or one.queue_id >= max(config.read_queues, config.write_queues):
                continue
            found = queues.get((one.topic, one.queue_id))
            end = 0 if found is None else found.end
            clamped += one.offset > end
            offsets.setdefault(group, []).append(one._replace(offset=min(one.offset, end)))
            groups.setdefault(group, GroupConfig(group))
    waiting = sum(end - begin for begin, end in pending(store, contents).values())
    return Plan(topics, queues, groups, offsets, clamped, waiting, left)


class Importer:
    """`say` is told a line now and then."""

    def __init__(
        self,
        store: StoreDirectory,
        target: ImportTarget,
        say: Callable[[str], None],
        *,
        timeout_s: float = 30.0,
        batch_records: int = MOST_RECORDS,
    ) -> None:
        """`timeout_s`: for one batch of messages, changes of the master included."""
        self._store = store
        self._target = target
        self._say = say
        self._timeout_s = timeout_s
        self._batch_records = batch_records
        self._next: dict[QueueKey, int] = {}

    async def run(self, contents: Contents) -> Plan:
        """Messages, then a comparison of all of them, then groups and offsets. IMPORT_DIFFERS, QUEUE_NOT_NEW
        or IMPORT_OUT_OF_ORDER if somebody else has used the topics; else as from StoreDirectory and the
        target."""
        plan = plan_of(self._store, contents)
        await self._prepare(plan)
        await self._copy(plan, contents)
        await self._compare(plan)
        for group in plan.groups.values():
            await self._target.put_group(group)
        for name, offsets in plan.offsets.items():
            for offset in offsets:
                await self._target.commit(name, offset)
        if plan.delayed:
            sent = await move_delayed(self._store, contents, self._target, plan.topics)
            self._say(f"{sent} of {plan.delayed} delayed messages were sent now, to wait here")
        for config in plan.topics.values():
            await self._target.put_topic(config)
        self._say(f"{len(plan.topics)} topics, {len(plan.groups)} groups and their offsets are there")
        return plan

    async def _prepare(self, plan: Plan) -> None:
        """Topics that take all messages, and queues that begin where they begin."""
        known = await self._target.topics()
        wide = dict.fromkeys(plan.topics, 0)
        for topic, queue_id in plan.queues:
            wide[topic] = max(wide[topic], queue_id + 1)
        for name, config in plan.topics.items():
            queues = max(config.write_queues, config.read_queues, wide[name])
            open_one = config._replace(
                read_queues=queues, write_queues=queues, perm=config.perm | PERM_READ | PERM_WRITE
            )
            if name not in known or wide[name]:
                await self._target.put_topic(open_one)
        for (topic, queue_id), queue in plan.queues.items():
            _, end = await self._target.bounds(topic, queue_id)
            if end == 0 and queue.begin:
                await self._target.begin_queue(topic, queue_id, queue.begin)
                end = queue.begin
            if end < queue.begin:
                text = (
                    f"queue {queue_id} of {topic} ends at {end}; the store has {queue.begin} to {queue.end}"
                )
                raise error_for(Status.IMPORT_DIFFERS, text)
            # What came due meanwhile, or was sent since, is behind it.
            self._next[topic, queue_id] = min(end, queue.end)

    async def _copy(self, plan: Plan, contents: Contents) -> None:
        missing = sum(queue.end - self._next[key] for key, queue in plan.queues.items())
        self._say(f"{plan.messages - missing} of {plan.messages} messages are there already")
        if not missing:
            return
        batch: list[Row] = []
        size = done = 0
        told = missing // 10 + 1
        for found in self._store.messages(contents):
            message, record = found.message, found.record
            key = message.topic, message.queue_id
            if key not in plan.queues or message.queue_offset < self._next[key]:
                continue
            if batch and (len(batch) == self._batch_records or size + len(record) > MOST_BYTES):
                await store_once(self._target, batch, self._timeout_s)
                before, done = done, done + len(batch)
                if done // told > before // told:
                    self._say(f"{done} of {missing} messages stored, up to offset {message.physical_offset}")
                batch, size = [], 0
            batch.append(Row(key, message.queue_offset, record))
            size += len(record)
        if batch:
            await store_once(self._target, batch, self._timeout_s)
            done += len(batch)
        self._say(f"{done} of {missing} messages stored")

    async def _compare(self, plan: Plan) -> None:
        """Every queue of the target, read back, with the store."""
        wrong = []
        for key, queue in plan.queues.items():
            digest, offset = QueueDigest(), queue.begin
            await self._target.bounds(*key)  # what is stored can be read from here on
            while offset < queue.end:
                records = await self._target.pull(*key, offset)
                if not records:
                    break
                for record in records[: queue.end - offset]:
                    digest.add(record)
                offset += len(records)
            if offset < queue.end or digest.text() != queue.digest:
                wrong.append(f"queue {queue.queue_id} of {queue.topic}")
        if wrong:
            names = ", ".join(wrong[:_SHOWN_QUEUES])
            raise error_for(Status.IMPORT_DIFFERS, f"{len(wrong)} queues differ from the store: {names}")
        self._say(f"{plan.messages} messages in {len(plan.queues)} queues compared: equal")
