"""Messages, queues and results, by the names that RocketMQ's clients give them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.format import message as record
from broker_adapter.format.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from broker_adapter.format.sys_flag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_ZLIB
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand

DELAY: Final = "DELAY"
WAIT: Final = "WAIT"
RETRY_TOPIC: Final = "RETRY_TOPIC"
MAX_DELAY_LEVEL: Final = 18
#: The client or the broker sets these; programs that set them would be misunderstood.
SYSTEM_PROPERTIES: Final = frozenset(
    {
        *(KEYS, TAGS, UNIQ_KEY, DELAY, WAIT, RETRY_TOPIC, "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP"),
        *("MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "MSG_REGION", "TRACE_ON", "TRANSACTION_CHECK_TIMES"),
    }
)
_MAX_INFLATED: Final = MAX_FRAME
#: Of all messages of one answer: a few bytes may inflate to a thousand times as many.
_MAX_INFLATED_IN_ALL: Final = 64 << 20


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker. Sorted as RocketMQ sorts them."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(IntEnum):
    """How far a stored message is. Only SEND_OK says that it is where the broker's settings want it."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. `delay_level`: 1 to 18 (1 s to 2 h); 0 sends at once."""

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] = ()
    delay_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0

    def wire_properties(self, unique_key: str) -> dict[str, str]:
        """All that go over the wire. IllegalMessage (PROPERTIES_INVALID, FIELD_OUT_OF_RANGE)."""
        if reserved := SYSTEM_PROPERTIES & set(self.properties):
            raise IllegalMessage(
                Status.PROPERTIES_INVALID, f"properties that the client sets itself: {sorted(reserved)}"
            )
        if not 0 <= self.delay_level <= MAX_DELAY_LEVEL:
            raise IllegalMessage(
                Status.FIELD_OUT_OF_RANGE, f"delay level {self.delay_level}: 0 to {MAX_DELAY_LEVEL} may be"
            )
        found = dict(self.properties)
        if self.tags:
            found[TAGS] = self.tags
        if self.keys:
            found[KEYS] = " ".join(self.keys)
        if self.delay_level:
            found[DELAY] = str(self.delay_level)
        found[UNIQ_KEY] = unique_key
        found[WAIT] = "true"
        return found


@dataclass(frozen=True, slots=True)
class SendResult:
    """A send that a broker answered. `may_be_duplicate`: an attempt before had no answer, so the message may
    be stored twice. `queue_offset`: of the first message. Only our brokers say who has stored it: `node_id`,
    and `term` and `log_index` of the first message's entry (-1: not said)."""

    status: SendStatus
    queue: MessageQueue
    queue_offset: int
    message_ids: tuple[str, ...]  # the producer's own, one for each message
    offset_message_ids: tuple[str, ...]  # the broker's, which lead to the records
    transaction_id: str = ""
    may_be_duplicate: bool = False
    node_id: str = ""
    term: int = -1
    log_index: int = -1

    @property
    def message_id(self) -> str:
        return self.message_ids[0]


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A message that was received. Times in ms since 1970."""

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

    @property
    def message_id(self) -> str:
        """The producer's id, or the broker's if it gave none."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def tags(self) -> str:
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> Sequence[str]:
        return self.properties.get(KEYS, "").split()


def decode_messages(records: bytes, broker_name: str) -> list[MessageExt]:
    """The messages of the body of an answer; the first ones of too many bytes, at least one.

    StoredDataDamaged as `format.message.decode_all`, and with RECORD_LENGTHS for a compressed body that
    cannot be read or is too large."""
    return first_messages(records, broker_name)[0]


def first_messages(records: bytes, broker_name: str) -> tuple[list[MessageExt], bool]:
    """As `decode_messages`, and whether these are all."""
    messages: list[MessageExt] = []
    room = _MAX_INFLATED_IN_ALL
    for found in record.decode_all(records, max_body_bytes=MAX_FRAME):
        message = _received(found, broker_name)
        room -= len(message.body)
        if room < 0 and messages:
            return messages, False
        messages.append(message)
    return messages, True


def _received(found: record.Message, broker_name: str) -> MessageExt:
    body, sys_flag = found.body, found.sys_flag
    size = len(body) + len(found.topic) + len(found.properties)
    if sys_flag & COMPRESSED:
        body, sys_flag = _inflated(body, sys_flag), sys_flag & ~COMPRESSED & ~COMPRESSION_MASK
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
    )


def decode_reply(request: RemotingCommand) -> MessageExt:
    """The answer in PUSH_REPLY_MESSAGE_TO_CLIENT. It has no place in a queue. StoredDataDamaged likewise."""
    fields, body = request.fields, request.body

    def number(name: str) -> int:
        text = fields.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0

    sys_flag = number("sysFlag")
    if sys_flag & COMPRESSED:
        body, sys_flag = _inflated(body, sys_flag), sys_flag & ~COMPRESSED & ~COMPRESSION_MASK
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


def _inflated(body: bytes, sys_flag: int) -> bytes:
    if sys_flag & COMPRESSION_MASK not in (0, COMPRESSION_ZLIB):
        raise StoredDataDamaged(Status.RECORD_FIELD, "a body compressed by LZ4 or Zstandard: zlib is read")
    reader = zlib.decompressobj()
    try:
        inflated = reader.decompress(body, _MAX_INFLATED)
    except zlib.error as error:
        raise StoredDataDamaged(Status.RECORD_LENGTHS, f"a compressed body: {error}") from None
    if not reader.eof:
        raise StoredDataDamaged(
            Status.RECORD_LENGTHS, f"a compressed body is cut off or larger than {_MAX_INFLATED} bytes"
        )
    return inflated
