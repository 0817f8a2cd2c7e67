"""Migrate pending delayed messages of a RocketMQ broker by sending each once to the target.

SCHEDULE_TOPIC_XXXX has a queue per delay level. delayOffset.json records the delivered part of each queue,
and the tag code of a ConsumeQueue unit is the time at which its message is due. The records of migrated
messages are stored at the target in a topic of the same name, at the same queue offsets, so that a repeated
import continues after them. A broker on a classic log uses that topic itself, so its records are stored in
another topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, TopicConfig
from broker_adapter.errors import Status, TopicRefused
from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.log.classic.queue_files import MappedQueueFiles
from broker_adapter.log.classic.store_directory import StoreContents, StoreDirectory
from broker_adapter.migration.master import Master
from broker_adapter.migration.several import each
from broker_adapter.migration.target import ImportTarget
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.message import MessageRecord, decode, encode
from broker_adapter.wire.properties import join_properties, split_properties

_REAL_TOPIC, _REAL_QUEUE, _LEVEL, _DELIVER_MS = "REAL_TOPIC", "REAL_QID", "DELAY", "TIMER_DELIVER_MS"
_QUEUES = 18
# Topic for records of migrated messages if the target uses SCHEDULE_TOPIC_XXXX itself.
_MIGRATED_TOPIC = "SCHEDULE_TOPIC_TAKEN_OVER"


class DelayedTarget(NamedTuple):
    """Destination and properties of a delayed message.

    `topic`: "" if the message has no destination. RocketMQ does not deliver such a message either.
    """

    topic: str
    queue_id: int
    properties: str


def pending(store: StoreDirectory, contents: StoreContents) -> dict[int, tuple[int, int]]:
    """Map each queue of SCHEDULE_TOPIC_XXXX to (first undelivered offset, end)."""
    ranges = {}
    for (topic, queue_id), queue in contents.queues.items():
        if topic == SCHEDULE_TOPIC:
            begin = max(queue.begin, min(store.delays.get(queue_id + 1, 0), queue.end))
            if begin < queue.end:
                ranges[queue_id] = begin, queue.end
    return ranges


def delayed(message: MessageRecord, due_ms: int) -> DelayedTarget:
    """Return the destination of a delayed message.

    `due_ms`: 0 if unknown; the delay of the message's level then starts now.
    """
    properties = split_properties(message.properties)
    topic, queue_id = properties.pop(_REAL_TOPIC, ""), properties.pop(_REAL_QUEUE, "")
    is_number = queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 10
    if due_ms > 0:
        properties.pop(_LEVEL, None)
        properties[_DELIVER_MS] = str(due_ms)
    return DelayedTarget(topic, int(queue_id) if is_number else -1, join_properties(properties))


async def move_delayed(
    store: StoreDirectory, contents: StoreContents, target: ImportTarget, topics: Collection[str]
) -> int:
    """Send the pending delayed messages whose destination is in `topics`. Return their number."""
    waiting = pending(store, contents)
    if not waiting:
        return 0
    migrated = await _create_migrated_topic(target, max(_QUEUES, *(queue_id + 1 for queue_id in waiting)))
    ends = {}
    for queue_id, (begin, _) in waiting.items():
        _, ends[queue_id] = await target.bounds(migrated, queue_id)
        if not ends[queue_id]:
            await target.begin_queue(migrated, queue_id, begin)
            ends[queue_id] = begin
    units = store.queue_files()
    try:
        return await _send_all(store, contents, target, topics, migrated, ends, units)
    finally:
        units.close()


async def mark_delayed(master: Master, target: ImportTarget, delays: Mapping[int, int]) -> int:
    """Record at the target which delayed messages of a live master are pending. Return their number.

    A later `send_marked` sends these messages. `delays`: first undelivered offset by level.
    """
    config = (await master.topics()).get(SCHEDULE_TOPIC)
    queues = _QUEUES if config is None else max(_QUEUES, config.write_queues)
    migrated = await _create_migrated_topic(target, queues)

    async def mark(queue_id: int) -> int:
        least, end = await master.bounds(SCHEDULE_TOPIC, queue_id)
        begin = max(least, min(delays.get(queue_id + 1, 0), end))
        if begin:
            await target.begin_queue(migrated, queue_id, begin)
        return end - begin

    return sum(await each(mark(queue_id) for queue_id in range(queues)))


async def send_marked(master: Master, target: ImportTarget, topics: Collection[str]) -> int:
    """Send the marked messages whose destination is in `topics` to the target. Return their number."""
    sent, configs = 0, await target.configs()
    migrated = _MIGRATED_TOPIC if _MIGRATED_TOPIC in configs else SCHEDULE_TOPIC
    for queue_id in range(configs[migrated].write_queues):
        _, begin = await target.bounds(migrated, queue_id)
        _, end = await master.bounds(SCHEDULE_TOPIC, queue_id)
        for offset in range(begin, end):
            unit = await master.unit(SCHEDULE_TOPIC, queue_id, offset)
            record = await master.record_at(unit.physical_offset)
            message = decode(record, max_body_bytes=MAX_BODY_BYTES)
            destination = delayed(message, unit.tag_code)
            if destination.topic in topics:
                await target.send(destination.topic, destination.queue_id, message, destination.properties)
                sent += 1
            await target.store_again(_renamed(message, record, migrated), migrated, queue_id, offset)
    return sent


async def _create_migrated_topic(target: ImportTarget, queues: int) -> str:
    """Create the topic for records of migrated messages. Return its name."""
    try:
        await target.put_topic(TopicConfig(SCHEDULE_TOPIC, queues, queues, PERM_READ))
    except TopicRefused as error:
        if error.status is not Status.TOPIC_RESERVED:
            raise
    else:
        return SCHEDULE_TOPIC
    await target.put_topic(TopicConfig(_MIGRATED_TOPIC, queues, queues, PERM_READ))
    return _MIGRATED_TOPIC


def _renamed(message: MessageRecord, record: bytes, topic: str) -> bytes:
    return record if message.topic == topic else bytes(encode(message._replace(topic=topic)))


async def _send_all(
    store: StoreDirectory,
    contents: StoreContents,
    target: ImportTarget,
    topics: Collection[str],
    migrated: str,
    ends: dict[int, int],
    units: MappedQueueFiles,
) -> int:
    """Send the pending messages and store each record in the topic `migrated`, whose queues end at `ends`."""
    sent = 0
    for found in store.messages(contents):
        message = found.message
        queue_id, offset = message.queue_id, message.queue_offset
        if message.topic != SCHEDULE_TOPIC or queue_id not in ends or offset < ends[queue_id]:
            continue
        unit = units.unit(SCHEDULE_TOPIC, queue_id, offset)
        destination = delayed(message, 0 if unit is None else unit.tag_code)
        if destination.topic in topics:
            await target.send(destination.topic, destination.queue_id, message, destination.properties)
            sent += 1
        await target.store_again(_renamed(message, found.record, migrated), migrated, queue_id, offset)
        ends[queue_id] = offset + 1
    return sent
