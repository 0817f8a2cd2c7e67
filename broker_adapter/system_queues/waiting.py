"""Messages that wait in a topic of the broker's own: there they have their topic and queue as properties.

Facts: ScheduleMessageService, TransactionalMessageBridge and EndTransactionProcessor of RocketMQ 5.5. What is
due is stored again, in the queue that the properties name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_adapter.api import OutgoingMessage
from broker_adapter.commitlog.record_writer import BrokerFields
from broker_adapter.format.delay_levels import DELAY_LEVEL
from broker_adapter.format.message import Message, decode
from broker_adapter.format.properties import PropertiesText, replaced, split_properties, text_of
from broker_adapter.format.sys_flag import TRANSACTION_MASK
from broker_adapter.format.topic_names import RETRY_PREFIX

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED = "TRAN_MSG"
RECONSUME_TIME = "RECONSUME_TIME"
#: What a message has only while it waits; the last one is a checksum of the properties as they were.
_OF_WAITING = frozenset(
    {REAL_TOPIC, REAL_QUEUE, DELAY_LEVEL, PREPARED, CHECK_TIMES, PREPARED_OFFSET, "__CRC32#"}
)
_ANY_BODY = 1 << 30


class Waiting(NamedTuple):
    """A message, and where it goes one day."""

    message: Message
    properties: Mapping[str, str]
    topic: str
    queue_id: int

    def number(self, name: str, otherwise: int) -> int:
        """Of a property; `otherwise` for none, and for what is no number."""
        return number_of(self.properties.get(name), otherwise)

    def restored(self) -> OutgoingMessage:
        """As its queue is to have it."""
        message = self.message
        properties = PropertiesText(replaced(message.properties, {}, without=_OF_WAITING))
        sys_flag = message.sys_flag & ~TRANSACTION_MASK
        return OutgoingMessage(message.body, properties, message.flag, sys_flag, message.born_timestamp)

    def again(self, changes: Mapping[str, str]) -> OutgoingMessage:
        """To wait on, with other properties."""
        properties = PropertiesText(replaced(self.message.properties, changes, without=("__CRC32#",)))
        return self.restored()._replace(properties=properties)

    @property
    def reconsume_times(self) -> int:
        return self.message.reconsume_times


def number_of(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else otherwise


def waiting(record: bytes) -> Waiting | None:
    """None: no message that waits. StoredDataDamaged."""
    message = decode(record, max_body_bytes=_ANY_BODY)
    properties = split_properties(message.properties)
    topic, queue_id = properties.get(REAL_TOPIC, ""), number_of(properties.get(REAL_QUEUE), -1)
    return Waiting(message, properties, topic, queue_id) if topic and queue_id >= 0 else None


def put_aside(
    message: OutgoingMessage, topic: str, queue_id: int, more: Mapping[str, str]
) -> OutgoingMessage:
    """A message for `topic` as it waits."""
    where = {REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    properties = PropertiesText(replaced(text_of(message.properties), {**more, **where}))
    return message._replace(properties=properties)


def fields_of(topic: str, properties: Mapping[str, str]) -> BrokerFields:
    """How often a message was sent back is a field of its record, too."""
    times = number_of(properties.get(RECONSUME_TIME), 0) if topic.startswith(RETRY_PREFIX) else 0
    return BrokerFields(reconsume_times=times)
