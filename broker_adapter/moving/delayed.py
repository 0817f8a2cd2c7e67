"""Messages of a RocketMQ broker that wait for their time: each is sent to wait here, once.

SCHEDULE_TOPIC_XXXX has a queue for each level; delayOffset.json says how much of each was delivered, and the
unit of a message in the ConsumeQueue when it is due. What has been taken over goes into a topic of that name
here, at its queue offset: an import that is run again begins behind it. A broker on a classic log has that
topic itself, and gets one of another name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, TopicConfig
from broker_adapter.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.classic.queue_files import QueueFiles
from broker_adapter.classic.store_directory import Contents, StoreDirectory
from broker_adapter.errors import Status, TopicRefused
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.format.message import Message, decode, encode
from broker_adapter.format.properties import join_properties, split_properties
from broker_adapter.moving.master import Master
from broker_adapter.moving.several import each
from broker_adapter.moving.target import ImportTarget

_REAL_TOPIC, _REAL_QUEUE, _LEVEL, _DELIVER_MS = "REAL_TOPIC", "REAL_QID", "DELAY", "TIMER_DELIVER_MS"
_QUEUES = 18
#: For brokers that have SCHEDULE_TOPIC_XXXX themselves.
_TAKEN_TOPIC = "SCHEDULE_TOPIC_TAKEN_OVER"


class Delayed(NamedTuple):
    """Where a message goes, with which properties. `topic` "": what RocketMQ would not deliver either."""

    topic: str
    queue_id: int
    properties: str


def pending(store: StoreDirectory, contents: Contents) -> dict[int, tuple[int, int]]:
    """By queue of SCHEDULE_TOPIC_XXXX, (the first offset that was not delivered, the end)."""
    found = {}
    for (topic, queue_id), queue in contents.queues.items():
        if topic == SCHEDULE_TOPIC:
            begin = max(queue.begin, min(store.delays.get(queue_id + 1, 0), queue.end))
            if begin < queue.end:
                found[queue_id] = begin, queue.end
    return found


def delayed(message: Message, due_ms: int) -> Delayed:
    """`due_ms` 0: not known; the message waits from now on for as long as its level says."""
    properties = split_properties(message.properties)
    topic, queue_id = properties.pop(_REAL_TOPIC, ""), properties.pop(_REAL_QUEUE, "")
    is_number = queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 10
    if due_ms > 0:
        properties.pop(_LEVEL, None)
        properties[_DELIVER_MS] = str(due_ms)
    return Delayed(topic, int(queue_id) if is_number else -1, join_properties(properties))


async def move_delayed(
    store: StoreDirectory, contents: Contents, target: ImportTarget, topics: Collection[str]
) -> int:
    """How many were sent now, to `topics`."""
    waiting = pending(store, contents)
    if not waiting:
        return 0
    taken = await _make_taken(target, max(_QUEUES, *(queue_id + 1 for queue_id in waiting)))
    ends = {}
    for queue_id, (begin, _) in waiting.items():
        _, ends[queue_id] = await target.bounds(taken, queue_id)
        if not ends[queue_id]:
            await target.begin_queue(taken, queue_id, begin)
            ends[queue_id] = begin
    units = store.queue_files()
    try:
        return await _send_all(store, contents, target, topics, taken, ends, units)
    finally:
        units.close()


async def mark_delayed(master: Master, target: ImportTarget, delays: Mapping[int, int]) -> int:
    """Note here which messages of a live master wait now: `take_delayed` takes those and no others, however
    late it comes. `delays`: by level, the first offset that was not delivered. How many there are."""
    config = (await master.topics()).get(SCHEDULE_TOPIC)
    queues = _QUEUES if config is None else max(_QUEUES, config.write_queues)
    taken = await _make_taken(target, queues)

    async def mark(queue_id: int) -> int:
        least, end = await master.bounds(SCHEDULE_TOPIC, queue_id)
        begin = max(least, min(delays.get(queue_id + 1, 0), end))
        if begin:
            await target.begin_queue(taken, queue_id, begin)
        return end - begin

    return sum(await each(mark(queue_id) for queue_id in range(queues)))


async def take_delayed(master: Master, target: ImportTarget, topics: Collection[str]) -> int:
    """Send what is behind the marks now, to `topics`, to wait here. How many there were."""
    sent, configs = 0, await target.configs()
    taken = _TAKEN_TOPIC if _TAKEN_TOPIC in configs else SCHEDULE_TOPIC
    for queue_id in range(configs[taken].write_queues):
        _, begin = await target.bounds(taken, queue_id)
        _, end = await master.bounds(SCHEDULE_TOPIC, queue_id)
        for offset in range(begin, end):
            unit = await master.unit(SCHEDULE_TOPIC, queue_id, offset)
            record = await master.record_at(unit.physical_offset)
            message = decode(record, max_body_bytes=MAX_BODY_BYTES)
            wanted = delayed(message, unit.tag_code)
            if wanted.topic in topics:
                await target.send(wanted.topic, wanted.queue_id, message, wanted.properties)
                sent += 1
            await target.store_again(_renamed(message, record, taken), taken, queue_id, offset)
    return sent


async def _make_taken(target: ImportTarget, queues: int) -> str:
    """The topic that has what was taken over."""
    try:
        await target.put_topic(TopicConfig(SCHEDULE_TOPIC, queues, queues, PERM_READ))
    except TopicRefused as error:
        if error.status is not Status.TOPIC_RESERVED:
            raise
    else:
        return SCHEDULE_TOPIC
    await target.put_topic(TopicConfig(_TAKEN_TOPIC, queues, queues, PERM_READ))
    return _TAKEN_TOPIC


def _renamed(message: Message, record: bytes, topic: str) -> bytes:
    return record if message.topic == topic else bytes(encode(message._replace(topic=topic)))


async def _send_all(
    store: StoreDirectory,
    contents: Contents,
    target: ImportTarget,
    topics: Collection[str],
    taken: str,
    ends: dict[int, int],
    units: QueueFiles,
) -> int:
    """`taken`: the topic that has what was taken over; `ends`: of its queues."""
    sent = 0
    for found in store.messages(contents):
        message = found.message
        queue_id, offset = message.queue_id, message.queue_offset
        if message.topic != SCHEDULE_TOPIC or queue_id not in ends or offset < ends[queue_id]:
            continue
        unit = units.unit(SCHEDULE_TOPIC, queue_id, offset)
        wanted = delayed(message, 0 if unit is None else unit.tag_code)
        if wanted.topic in topics:
            await target.send(wanted.topic, wanted.queue_id, message, wanted.properties)
            sent += 1
        await target.store_again(_renamed(message, found.record, taken), taken, queue_id, offset)
        ends[queue_id] = offset + 1
    return sent
