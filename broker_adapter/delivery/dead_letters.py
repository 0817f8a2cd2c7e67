"""Messages that were given as often as they may be: into the dead letter topic of their group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery.commands import Drop, QueueKey
from broker_adapter.delivery.committer import Committer, Request
from broker_adapter.delivery.queue_state import Held
from broker_adapter.message import decode
from broker_adapter.message_writer import MessageWriter
from broker_adapter.properties import (
    MAX_PROPERTIES_BYTES,
    UNIQ_KEY,
    PropertiesText,
    split_properties,
    with_property,
)
from broker_adapter.sys_flag import TRANSACTION_MASK
from broker_adapter.topic_names import DEAD_LETTER_PREFIX

#: RocketMQ's names of what the message was before.
ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"


class DeadLetters:
    """Implements `broker_adapter.delivery.receiver.DeadLetters`."""

    def __init__(
        self,
        committer: Committer,
        writer: MessageWriter,
        make_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        """`make_topic`: so that there is one with this name."""
        self.moved = 0
        self._committer = committer
        self._writer = writer
        self._make_topic = make_topic

    async def move(
        self, key: QueueKey, offset: int, held: Held, record: bytes, release: Callable[[], None]
    ) -> None:
        """One append: the message in its new topic, and what ends it in the old one."""
        topic = DEAD_LETTER_PREFIX + key.group
        try:
            await self._make_topic(topic)
            message = decode(record, verify_body=False)
            records = self._writer.records(
                topic, 0, [_letter(key.topic, record)], born_host=message.born_host, is_moved=True
            )
            drop = Drop(key, offset, held.pop)
            request = Request(queued=[records], elements=[drop], release=release)
            self._committer.submit(request)
        except BaseException:
            release()
            raise
        await asyncio.shield(request.done)
        self.moved += 1


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
