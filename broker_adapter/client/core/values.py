"""Messages, queues and results, under the names of RocketMQ's clients."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from broker_adapter.client.core.checks import check_type
from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand
from broker_adapter.wire import message as record
from broker_adapter.wire.compression import decompress
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from broker_adapter.wire.sys_flag import COMPRESSED, COMPRESSION_MASK

T = TypeVar("T")

DELAY: Final = "DELAY"
WAIT: Final = "WAIT"
RETRY_TOPIC: Final = "RETRY_TOPIC"
MAX_DELAY_LEVEL: Final = 18
KEY_SEPARATOR: Final = " "
#: Properties that only the client or the broker may set. From a program, they would be misinterpreted.
SYSTEM_PROPERTIES: Final = frozenset(
    {
        *(KEYS, TAGS, UNIQ_KEY, DELAY, WAIT, RETRY_TOPIC, "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP"),
        *("MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "MSG_REGION", "TRACE_ON", "TRANSACTION_CHECK_TIMES"),
    }
)
_MAX_INFLATED: Final = MAX_FRAME
#: A step of decoding, which takes 1 to 4 ms: bytes of bodies and properties, plus a number per message.
_STEP_BYTES: Final = 64 << 10
_STEP_PER_MESSAGE: Final = 1 << 10
#: Maximum total of inflated bytes per response, because a few bytes may inflate to a thousand times as many.
_MAX_TOTAL_INFLATED: Final = 64 << 20


#: Work that a caller may interrupt after each step.
Steps: TypeAlias = Generator[None, None, T]


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker. Sorts like RocketMQ's MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


def check_queue(queue: MessageQueue, topic: str | None = None) -> None:
    """Check the form of a queue, and that it belongs to `topic`, if given.

    Raises IllegalMessage: REQUEST_MALFORMED, or FIELD_OUT_OF_RANGE for a negative number, which brokers read
    as another queue.
    """
    check_type("a queue", queue, MessageQueue)
    check_type("topic of a queue", queue.topic, str)
    check_type("broker_name of a queue", queue.broker_name, str)
    check_type("queue_id of a queue", queue.queue_id, int)
    if queue.queue_id < 0:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the number of the queue {queue} is negative")
    if topic not in (None, queue.topic):
        text = f"the queue {queue} does not belong to the message's topic {topic!r}"
        raise IllegalMessage(Status.REQUEST_MALFORMED, text)


class SendStatus(IntEnum):
    """The durability of a stored message.

    Only SEND_OK means that the message is as durable as the broker's settings require.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    `keys`: one or more keys without blanks, or a text of keys separated by blanks, as in Java. `delay_level`:
    1 to 18 (1 s to 2 h); 0 for no delay.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] = ()
    delay_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0

    def __post_init__(self) -> None:
        """Raises IllegalMessage (REQUEST_MALFORMED, FIELD_OUT_OF_RANGE)."""
        check_type("topic of a message", self.topic, str)
        check_type("body of a message", self.body, bytes)
        check_type("tags of a message", self.tags, str)
        check_type("delay_level of a message", self.delay_level, int)
        check_type("flag of a message", self.flag, int)
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"flag {self.flag} is not a 32-bit number")
        check_type("properties of a message", self.properties, Mapping)
        for key, value in self.properties.items():
            check_type("property name of a message", key, str)
            check_type(f"property {key!r:.100} of a message", value, str)
        if isinstance(self.keys, str):
            object.__setattr__(self, "keys", _split_keys(self.keys))
        check_type("keys of a message", self.keys, Sequence)
        for key in self.keys:
            check_type("key of a message", key, str)

    def wire_properties(self, unique_key: str) -> dict[str, str]:
        """Return all properties to send. Raises IllegalMessage (PROPERTIES_INVALID, FIELD_OUT_OF_RANGE)."""
        if reserved := SYSTEM_PROPERTIES & set(self.properties):
            raise IllegalMessage(
                Status.PROPERTIES_INVALID,
                f"properties {sorted(reserved)} are reserved: only the client sets them",
            )
        if blank := [key for key in self.keys if not key or KEY_SEPARATOR in key]:
            text = f"key {blank[0]!r} is empty or contains a blank, which separates keys"
            raise IllegalMessage(Status.PROPERTIES_INVALID, text)
        if not 0 <= self.delay_level <= MAX_DELAY_LEVEL:
            raise IllegalMessage(
                Status.FIELD_OUT_OF_RANGE,
                f"delay level {self.delay_level} is not between 0 and {MAX_DELAY_LEVEL}",
            )
        properties = dict(self.properties)
        if self.tags:
            properties[TAGS] = self.tags
        if self.keys:
            properties[KEYS] = KEY_SEPARATOR.join(self.keys)
        if self.delay_level:
            properties[DELAY] = str(self.delay_level)
        properties[UNIQ_KEY] = unique_key
        properties[WAIT] = "true"
        return properties


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of an acknowledged send.

    `may_be_duplicate`: an earlier attempt got no response, so the message may be stored twice.
    `queue_offset`: offset of the first message. `is_duplicate`: this attempt stored nothing, because an
    earlier one had already stored the message. Only brokers of this project report the node that stored the
    message (`node_id`), and the `term` and `log_index` of the first message's entry (-1 if unknown).
    """

    status: SendStatus
    queue: MessageQueue
    queue_offset: int
    message_ids: tuple[str, ...]  # the producer's ids, one for each message
    offset_message_ids: tuple[str, ...]  # the broker's ids, which contain the address of the record
    transaction_id: str = ""
    may_be_duplicate: bool = False
    node_id: str = ""
    term: int = -1
    log_index: int = -1
    is_duplicate: bool = False

    @property
    def message_id(self) -> str:
        return self.message_ids[0]


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A received message. Times are ms since 1970.

    `body_error`: the reason why a compressed body could not be read. `body` then contains the stored bytes.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    offset_message_id: str
    properties: Mapping[str, str]
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int = 0
    flag: int = 0
    sys_flag: int = 0
    prepared_transaction_offset: int = 0
    size: int = 0  # of the record, in bytes
    body_error: StoredDataDamaged | None = None

    @property
    def message_id(self) -> str:
        """The producer's id of the message, or the broker's id if the producer set none."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def tags(self) -> str:
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> Sequence[str]:
        return _split_keys(self.properties.get(KEYS, ""))


def _split_keys(text: str) -> tuple[str, ...]:
    return tuple(key for key in text.split(KEY_SEPARATOR) if key)


def decode_one(records: bytes, broker_name: str) -> MessageExt:
    """Decode the first message of a body.

    Raises the errors of `first_messages`, and StoredDataDamaged with RECORD_TRUNCATED if the response body is
    empty, and with BODY_UNREADABLE if a compressed body is invalid or too large.
    """
    for found in record.decode_each(records, max_body_bytes=MAX_FRAME):
        message = _received(found, broker_name)
        if message.body_error is not None:
            raise message.body_error
        return message
    raise StoredDataDamaged(Status.RECORD_TRUNCATED, "the response body contains no message")


def first_messages(
    records: bytes, broker_name: str, max_messages: int
) -> Steps[tuple[list[MessageExt], bool]]:
    """Decode the messages of a response body. The second result is True if the body contains no further
    messages.

    Stops at `max_messages` and at the size limit, but returns at least one message. A server that ignores the
    requested number might send 170,000 messages, which would take seconds to decode.

    A compressed body that is invalid or too large does not affect the other messages: see
    `MessageExt.body_error`. Raises StoredDataDamaged under the same conditions as
    `broker_adapter.wire.message.decode_all`, and CompressionUnavailable.
    """
    messages: list[MessageExt] = []
    remaining, step = _MAX_TOTAL_INFLATED, 0
    for found in record.decode_each(records, max_body_bytes=MAX_FRAME):
        message = _received(found, broker_name)
        remaining -= len(message.body)
        if messages and (remaining < 0 or len(messages) >= max_messages):
            return messages, False
        messages.append(message)
        step += message.size + _STEP_PER_MESSAGE
        if step >= _STEP_BYTES:
            step = 0
            yield
    return messages, True


def _received(found: record.MessageRecord, broker_name: str) -> MessageExt:
    size = len(found.body) + len(found.topic) + len(found.properties)
    body, sys_flag, body_error = _readable(found.body, found.sys_flag)
    return MessageExt(
        topic=found.topic,
        body=body,
        queue=MessageQueue(found.topic, broker_name, found.queue_id),
        queue_offset=found.queue_offset,
        physical_offset=found.physical_offset,
        offset_message_id=found.offset_id,
        properties=split_properties(found.properties),
        born_timestamp=found.born_timestamp,
        store_timestamp=found.store_timestamp,
        reconsume_times=found.reconsume_times,
        flag=found.flag,
        sys_flag=sys_flag,
        prepared_transaction_offset=found.prepared_transaction_offset,
        size=max(size, len(body)),
        body_error=body_error,
    )


def decode_reply(request: RemotingCommand) -> MessageExt:
    """Decode the reply in PUSH_REPLY_MESSAGE_TO_CLIENT. The reply has no queue position.

    Raises StoredDataDamaged with BODY_UNREADABLE if a compressed body is invalid or too large, and
    CompressionUnavailable.
    """
    fields = request.fields

    def number(name: str) -> int:
        text = fields.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0

    body, sys_flag, body_error = _readable(request.body, number("sysFlag"))
    if body_error is not None:
        raise body_error
    topic = fields.get("topic", "")
    return MessageExt(
        topic=topic,
        body=body,
        queue=MessageQueue(topic, "", number("queueId")),
        queue_offset=0,
        physical_offset=0,
        offset_message_id="",
        properties=split_properties(fields.get("properties", "")),
        born_timestamp=number("bornTimestamp"),
        store_timestamp=number("storeTimestamp"),
        flag=number("flag"),
        sys_flag=sys_flag,
    )


def _readable(body: bytes, sys_flag: int) -> tuple[bytes, int, StoredDataDamaged | None]:
    """Return a body without compression, and its flag without the bits for compression.

    If the body is invalid or too large, return both unchanged, and the error.
    """
    try:
        content = decompress(body, sys_flag, _MAX_INFLATED)
    except StoredDataDamaged as error:
        return body, sys_flag, error
    return content, sys_flag & ~COMPRESSED & ~COMPRESSION_MASK, None
