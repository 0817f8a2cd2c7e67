"""Messages in a system topic, whose properties contain their own topic and queue.

Source: ScheduleMessageService, TransactionalMessageBridge and EndTransactionProcessor of RocketMQ 5.5. A
message that is due is stored again in the queue that its properties name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_adapter.api import OutgoingMessage
from broker_adapter.wire.delay_levels import DELAY_LEVEL
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import PropertiesText, replaced, split_properties, text_of
from broker_adapter.wire.sys_flag import TRANSACTION_MASK

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED = "TRAN_MSG"
# Time at which a half message was first stored: log time minus its steps, in ms. Moves do not change it.
SINCE = "__HALF_SINCE"
_WAIT_STORE = "WAIT"
# Properties that exist only in records of system topics. The last one is a checksum of the original
# properties.
_OF_WAITING = frozenset(
    {REAL_TOPIC, REAL_QUEUE, DELAY_LEVEL, PREPARED, CHECK_TIMES, PREPARED_OFFSET, SINCE, "__CRC32#"}
)
_ANY_BODY = 1 << 30


class PendingMessage(NamedTuple):
    """A message in a system topic, and its destination."""

    message: MessageRecord
    properties: Mapping[str, str]
    topic: str
    queue_id: int

    def number(self, name: str, otherwise: int) -> int:
        """Return a property as a number, or `otherwise` if it is missing or not a number."""
        return number_of(self.properties.get(name), otherwise)

    def since_ms(self, steps_ms: int) -> int:
        """Return the time at which a half message was first stored, as log time minus its steps.

        `steps_ms`: total of the steps so far. For a half message that RocketMQ wrote, the result is the time
        of its latest move.
        """
        text = self.properties.get(SINCE, "")
        is_number = text.isascii() and text.isdecimal() and len(text) < 19
        return int(text) if is_number else self.message.store_timestamp - steps_ms

    def restored(self) -> OutgoingMessage:
        """Return the message in the form in which its destination queue stores it."""
        message = self.message
        properties = PropertiesText(replaced(message.properties, {}, without=_OF_WAITING))
        sys_flag = message.sys_flag & ~TRANSACTION_MASK
        return OutgoingMessage(message.body, properties, message.flag, sys_flag, message.born_timestamp)

    def again(self, changes: Mapping[str, str]) -> OutgoingMessage:
        """Return the message with changed properties, to be stored in the system topic again."""
        properties = PropertiesText(replaced(self.message.properties, changes, without=("__CRC32#",)))
        return self.restored()._replace(properties=properties)

    def is_equal(self, other: PendingMessage) -> bool:
        """True if both have the same message and destination topic.

        Properties that a broker adds on a move are ignored.
        """
        one, two = self.restored(), other.restored()
        own, its = (_without_added(restored.properties) for restored in (one, two))
        return (self.topic, one._replace(properties=own)) == (other.topic, two._replace(properties=its))

    @property
    def reconsume_times(self) -> int:
        return self.message.reconsume_times


def _without_added(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without WAIT.

    RocketMQ sets this property on a move, because the move does not wait for the sync.
    """
    return {name: value for name, value in properties.items() if name != _WAIT_STORE}


def number_of(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else otherwise


def waiting(record: bytes) -> PendingMessage | None:
    """Parse a record from a system topic.

    Returns None if the record is not a pending message. Raises StoredDataDamaged.
    """
    message = decode(record, max_body_bytes=_ANY_BODY)
    properties = split_properties(message.properties)
    topic, queue_id = properties.get(REAL_TOPIC, ""), number_of(properties.get(REAL_QUEUE), -1)
    return PendingMessage(message, properties, topic, queue_id) if topic and queue_id >= 0 else None


def put_aside(
    message: OutgoingMessage, topic: str, queue_id: int, more: Mapping[str, str]
) -> OutgoingMessage:
    """Return a message to be stored in a system topic. Its properties contain the destination."""
    where = {REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)}
    properties = PropertiesText(replaced(text_of(message.properties), {**more, **where}))
    return message._replace(properties=properties)
