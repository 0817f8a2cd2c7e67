"""Imports a RocketMQ store. Every message keeps its queue offset, even if the import is interrupted.

The importer queries the target for the messages that are already stored, so a repeated import continues where
the last one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.log.classic.store_directory import (
    QueueContents,
    QueueDigest,
    QueueKey,
    StoreContents,
    StoreDirectory,
)
from broker_adapter.log.classic.system_names import is_system_group, user_topics
from broker_adapter.migration.delayed import move_delayed, pending
from broker_adapter.migration.storing import MOST_BYTES, MOST_RECORDS, ImportRow, store_once
from broker_adapter.migration.target import ImportTarget
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC

_SHOWN_QUEUES = 5


class ImportPlan(NamedTuple):
    """Topics, queues and groups to import.

    `offsets`: by group, reduced to the end of the queue if they are greater. `clamped`: number of offsets
    that were reduced. `delayed`: number of pending delayed messages. `left`: number of messages that are not
    imported, by topic.
    """

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


def plan_of(store: StoreDirectory, contents: StoreContents) -> ImportPlan:
    """Plan the import of all user topics and groups.

    Messages whose topic is not in topics.json are not imported, because the topic was deleted.
    """
    topics = user_topics(store.topics.values())
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
        for offset in committed:
            config = topics.get(offset.topic)
            if config is None or offset.queue_id >= max(config.read_queues, config.write_queues):
                continue
            known = queues.get((offset.topic, offset.queue_id))
            end = 0 if known is None else known.end
            clamped += offset.offset > end
            offsets.setdefault(group, []).append(offset._replace(offset=min(offset.offset, end)))
            groups.setdefault(group, GroupConfig(group))
    waiting = sum(end - begin for begin, end in pending(store, contents).values())
    return ImportPlan(topics, queues, groups, offsets, clamped, waiting, left)


class Importer:
    """Imports a store into a target. `say` receives progress lines."""

    def __init__(
        self,
        store: StoreDirectory,
        target: ImportTarget,
        say: Callable[[str], None],
        *,
        timeout_s: float = 30.0,
        batch_records: int = MOST_RECORDS,
    ) -> None:
        """Create an importer. `timeout_s`: timeout of a batch of messages, including changes
        of the master.
        """
        self._store = store
        self._target = target
        self._report = say
        self._timeout_s = timeout_s
        self._batch_records = batch_records
        self._next: dict[QueueKey, int] = {}

    async def run(self, contents: StoreContents) -> ImportPlan:
        """Copy the messages, compare all of them, then copy groups and offsets.

        Raises IMPORT_DIFFERS, QUEUE_NOT_NEW or IMPORT_OUT_OF_ORDER if another client has used the topics, and
        the errors of StoreDirectory and of the target.
        """
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
            self._report(f"{sent} of {plan.delayed} delayed messages sent to wait here")
        for config in plan.topics.values():
            await self._target.put_topic(config)
        self._report(f"{len(plan.topics)} topics, {len(plan.groups)} groups and their offsets imported")
        return plan

    async def _prepare(self, plan: ImportPlan) -> None:
        """Create topics with enough queues. Set the start of each queue to its first offset in the store."""
        known = await self._target.topics()
        wide = dict.fromkeys(plan.topics, 0)
        for topic, queue_id in plan.queues:
            wide[topic] = max(wide[topic], queue_id + 1)
        for name, config in plan.topics.items():
            queues = max(config.write_queues, config.read_queues, wide[name])
            writable = config._replace(
                read_queues=queues, write_queues=queues, perm=config.perm | PERM_READ | PERM_WRITE
            )
            if name not in known or wide[name]:
                await self._target.put_topic(writable)
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
            # The queue may also have later messages, which became due or were sent after an earlier import.
            self._next[topic, queue_id] = min(end, queue.end)

    async def _copy(self, plan: ImportPlan, contents: StoreContents) -> None:
        missing = sum(queue.end - self._next[key] for key, queue in plan.queues.items())
        self._report(f"{plan.messages - missing} of {plan.messages} messages are already stored")
        if not missing:
            return
        batch: list[ImportRow] = []
        size = done = 0
        step = missing // 10 + 1
        for found in self._store.messages(contents):
            message, record = found.message, found.record
            key = message.topic, message.queue_id
            if key not in plan.queues or message.queue_offset < self._next[key]:
                continue
            if batch and (len(batch) == self._batch_records or size + len(record) > MOST_BYTES):
                await store_once(self._target, batch, self._timeout_s)
                before, done = done, done + len(batch)
                if done // step > before // step:
                    self._report(
                        f"{done} of {missing} messages stored, up to offset {message.physical_offset}"
                    )
                batch, size = [], 0
            batch.append(ImportRow(key, message.queue_offset, record))
            size += len(record)
        if batch:
            await store_once(self._target, batch, self._timeout_s)
            done += len(batch)
        self._report(f"{done} of {missing} messages stored")

    async def _compare(self, plan: ImportPlan) -> None:
        """Read every queue back from the target, and compare its digest with the digest of the store."""
        wrong = []
        for key, queue in plan.queues.items():
            digest, offset = QueueDigest(), queue.begin
            await self._target.bounds(*key)  # waits until all stored messages are readable
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
            raise error_for(
                Status.IMPORT_DIFFERS, f"{len(wrong)} imported queues differ from the store: {names}"
            )
        self._report(f"{plan.messages} messages in {len(plan.queues)} queues compared: equal")
