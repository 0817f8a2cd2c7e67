"""Moves messages that have reached the maximum number of attempts to the group's dead letter topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.commands import Bury, ChangeOutcome, Drop, QueueKey
from broker_adapter.delivery_state.queue_state import PoppedMessage
from broker_adapter.put.committer import Committer, PutRequest
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.put.record_writer import BrokerFields
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import (
    UNIQ_KEY,
    PropertiesText,
    split_properties,
    with_those_that_fit,
)
from broker_adapter.wire.sys_flag import TRANSACTION_MASK
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX

#: Properties in which RocketMQ records the original topic and message id.
ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"


class DeadLetters:
    """Implements `broker_adapter.delivery.receiver.DeadLetterMover`.

    A first append, with a Bury, revokes the message from its current holder. The outcome of the Bury decides,
    because an acknowledgment may precede it in the log. Afterwards only the Drop in the append of the dead
    letter can remove the message.
    """

    def __init__(
        self,
        committer: Committer,
        writer: MessageWriter,
        make_topic: Callable[[str], Awaitable[object]],
        *,
        taken_ms: int,
    ) -> None:
        """`make_topic` creates a topic if it does not exist.

        `taken_ms`: if the master changes between the two appends, the message may be delivered again after
        this time.
        """
        self.moved = 0
        self._committer = committer
        self._writer = writer
        self._make_topic = make_topic
        self._taken_ms = taken_ms
        self._moving: set[asyncio.Task[bool]] = set()

    def move(self, key: QueueKey, offset: int, popped: PoppedMessage, record: bytes) -> asyncio.Future[bool]:
        task = asyncio.get_running_loop().create_task(self._move(key, offset, popped, record))
        self._moving.add(task)
        task.add_done_callback(self._ended)
        return asyncio.shield(task)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._moving.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, in case the caller was canceled

    async def _move(self, key: QueueKey, offset: int, popped: PoppedMessage, record: bytes) -> bool:
        topic = DEAD_LETTER_PREFIX + key.group
        await self._make_topic(topic)
        message = decode(record, verify_body=False)
        # RocketMQ counts each delivery.
        own = BrokerFields(reconsume_times=message.reconsume_times + popped.attempts)
        records = self._writer.records(
            topic, 0, [_letter(key.topic, record)], born_host=message.born_host, is_moved=True, own=own
        )
        taking = PutRequest(elements=[Bury(key, offset, popped.pop, self._taken_ms)])
        (taken,) = (await self._committer.submit(taking)).outcomes
        if not isinstance(taken, ChangeOutcome):
            return False
        burying = PutRequest(queued=[records], elements=[Drop(key, offset, taken.pop)])
        await self._committer.submit(burying)
        self.moved += 1
        return True


def _letter(topic: str, record: bytes) -> OutgoingMessage:
    message = decode(record, verify_body=False)
    message_id = split_properties(message.properties).get(UNIQ_KEY, message.offset_id)
    # Omit origin properties that do not fit, because the message could otherwise never be moved.
    origin = {ORIGIN_TOPIC: topic, ORIGIN_MESSAGE_ID: message_id}
    properties = PropertiesText(with_those_that_fit(message.properties, origin))
    sys_flag = message.sys_flag & ~TRANSACTION_MASK  # logs of earlier versions may have such bits
    return OutgoingMessage(message.body, properties, message.flag, sys_flag, message.born_timestamp)
