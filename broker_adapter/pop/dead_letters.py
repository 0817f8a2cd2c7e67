"""Messages that were given as often as they may be: into the dead letter topic of their group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.api import OutgoingMessage
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.format.message import decode
from broker_adapter.format.properties import (
    MAX_PROPERTIES_BYTES,
    UNIQ_KEY,
    PropertiesText,
    split_properties,
    with_property,
)
from broker_adapter.format.sys_flag import TRANSACTION_MASK
from broker_adapter.format.topic_names import DEAD_LETTER_PREFIX
from broker_adapter.pop.commands import Bury, Changed, Drop, QueueKey
from broker_adapter.pop.committer import Committer, Request

#: RocketMQ's names of what the message was before.
ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"


class DeadLetters:
    """Implements `broker_adapter.pop.receiver.DeadLetters`.

    First the message is taken away from whoever holds it: only what the state says of that counts, as an ack
    may be in front of it. From then on nothing but the Drop that comes with the letter ends it.
    """

    def __init__(
        self,
        committer: Committer,
        writer: MessageWriter,
        make_topic: Callable[[str], Awaitable[None]],
        *,
        taken_ms: int,
    ) -> None:
        """`make_topic`: so that there is one with this name. `taken_ms`: a message whose move ended between
        its two steps, with its master, may be given again after this."""
        self.moved = 0
        self._committer = committer
        self._writer = writer
        self._make_topic = make_topic
        self._taken_ms = taken_ms
        self._moving: set[asyncio.Task[bool]] = set()

    def move(self, key: QueueKey, offset: int, pop: int, record: bytes) -> asyncio.Future[bool]:
        task = asyncio.get_running_loop().create_task(self._move(key, offset, pop, record))
        self._moving.add(task)
        task.add_done_callback(self._ended)
        return asyncio.shield(task)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._moving.discard(task)
        if not task.cancelled():
            task.exception()  # who asked may have gone: then nobody else looks at it

    async def _move(self, key: QueueKey, offset: int, pop: int, record: bytes) -> bool:
        topic = DEAD_LETTER_PREFIX + key.group
        await self._make_topic(topic)
        message = decode(record, verify_body=False)
        records = self._writer.records(
            topic, 0, [_letter(key.topic, record)], born_host=message.born_host, is_moved=True
        )
        taking = Request(elements=[Bury(key, offset, pop, self._taken_ms)])
        (taken,) = (await self._committer.submit(taking)).outcomes
        if not isinstance(taken, Changed):
            return False
        burying = Request(queued=[records], elements=[Drop(key, offset, taken.pop)])
        await self._committer.submit(burying)
        self.moved += 1
        return True


def _letter(topic: str, record: bytes) -> OutgoingMessage:
    message = decode(record, verify_body=False)
    message_id = split_properties(message.properties).get(UNIQ_KEY, message.offset_id)
    properties = PropertiesText(message.properties)
    for name, value in ((ORIGIN_TOPIC, topic), (ORIGIN_MESSAGE_ID, message_id)):
        longer = with_property(properties, name, value)
        # What no record can hold is left out: nobody would be rid of the message otherwise.
        if len(longer.text.encode()) <= MAX_PROPERTIES_BYTES:
            properties = longer
    sys_flag = message.sys_flag & ~TRANSACTION_MASK  # logs of earlier versions may have such bits
    return OutgoingMessage(message.body, properties, message.flag, sys_flag, message.born_timestamp)
