"""What users of the client hand in and get back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, overload

from zlib_ng.zlib_ng import crc32

from broker_adapter.api import PullStatus, SendResult
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.host import MAX_PORT, Host
from broker_adapter.format.message import MIN_RECORD_SIZE, Version, decode
from broker_adapter.format.message_id import format_offset_id
from broker_adapter.format.properties import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQ_KEY, split_properties
from broker_adapter.format.sys_flag import HOST_BITS
from broker_adapter.format.topic_names import MAX_TOPIC_LENGTH

#: The fixed part of a record with IPv4 hosts (`broker_adapter.format.message`).
_USUAL = struct.Struct(">IIIiiqqiq4siq4siiqi")
_V1 = int(Version.V1)


class MessageQueue(NamedTuple):
    """One queue of a topic. `broker` is the name of the group of brokers that has it."""

    topic: str
    broker: str
    queue_id: int


class Message:
    """A message as a consumer gets it. What few ask for is taken out of the record when it is asked for."""

    __slots__ = (
        "_properties",
        "_store_host",
        "_text",
        "body",
        "born_timestamp",
        "physical_offset",
        "queue_id",
        "queue_offset",
        "store_timestamp",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        body: bytes,
        properties: str,
        store_timestamp: int,
        store_host: tuple[bytes, int],
        born_timestamp: int,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.body = body
        self.store_timestamp = store_timestamp  # ms since 1970, time of the cluster
        self.born_timestamp = born_timestamp  # ms since 1970, time of the producer
        self._text = properties
        self._store_host = store_host
        self._properties: dict[str, str] | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        if self._properties is None:
            self._properties = split_properties(self._text)
        return self._properties

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> Sequence[str]:
        """What it can be found by (`Admin.query`), beside `message_id`."""
        return self.properties.get(KEYS, "").split()

    @property
    def offset_id(self) -> str:
        """The id that leads to the record (`Admin.message`)."""
        return format_offset_id(Host(*self._store_host), self.physical_offset)

    @property
    def message_id(self) -> str:
        """What the producer calls it (UNIQ_KEY), or its offset id."""
        return self.properties.get(UNIQ_KEY) or self.offset_id

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.queue_id} at {self.queue_offset}"
        return f"<Message {where}: {len(self.body)} bytes, tag {self.tag}>"


class SendReceipt(NamedTuple):
    """Where an acknowledged message is."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str  # the producer's own (UNIQ_KEY); "" if that was switched off
    offset_id: str  # the broker's
    term: int = -1  # of the master that has stored it
    node_id: str = ""  # of that master
    #: Of its entry in the log; -1: not said.
    index: int = -1  # type: ignore[assignment]  # hides tuple.index


class Receipts(Sequence[SendReceipt]):
    """Those of one batch, each made where it is looked at: most are not."""

    __slots__ = ("_broker", "_keys", "_result", "_topic")

    def __init__(self, topic: str, broker: str, message_ids: Sequence[str], result: SendResult) -> None:
        self._topic = topic
        self._broker = broker
        self._keys = message_ids
        self._result = result

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, at: slice) -> list[SendReceipt]: ...

    def __getitem__(self, at: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        result = self._result
        return SendReceipt(
            self._topic,
            self._broker,
            result.queue_id,
            result.queue_offset + number,
            self._keys[number],
            result.offset_ids[number],
            result.term,
            result.node_id,
            result.index + number if result.index >= 0 else -1,
        )

    def __repr__(self) -> str:
        return f"<Receipts {list(self)}>"


class PullBatch(NamedTuple):
    """What one pull has found."""

    status: PullStatus
    next_offset: int  # where to go on
    min_offset: int
    max_offset: int  # one behind the last message of the queue
    messages: Sequence[Message]


def message_of(record: bytes) -> Message:
    """A message from its record, checked. StoredDataDamaged if the record is not whole."""
    return _usual(record) or _any(record)


def _usual(record: bytes) -> Message | None:
    """A record of V1 with IPv4 hosts, as nearly all are, at half the price; None for any other."""
    size = len(record)
    if size < MIN_RECORD_SIZE:
        return None
    (
        size_told,
        magic,
        body_crc,
        queue_id,
        _flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        _born_address,
        born_port,
        store_timestamp,
        store_address,
        store_port,
        _reconsume_times,
        _prepared_transaction_offset,
        body_size,
    ) = _USUAL.unpack_from(record)
    if magic != _V1 or size_told != size or sys_flag & HOST_BITS or body_size < 0:
        return None
    body_end = _USUAL.size + body_size
    body = record[_USUAL.size : body_end]
    if crc32(body) & 0x7FFFFFFF != body_crc or body_end >= size:
        return None
    topic_size = record[body_end]
    topic_end = body_end + 1 + topic_size
    properties_size = int.from_bytes(record[topic_end : topic_end + 2], "big")
    if not 1 <= topic_size <= MAX_TOPIC_LENGTH or topic_end + 2 + properties_size != size:
        return None
    if properties_size > MAX_PROPERTIES_BYTES or min(queue_id, queue_offset, physical_offset) < 0:
        return None
    if not (0 <= store_port <= MAX_PORT and 0 <= born_port <= MAX_PORT):
        return None
    try:
        topic = str(record[body_end + 1 : topic_end], "utf-8")
        properties = str(record[topic_end + 2 :], "utf-8")
    except UnicodeDecodeError:
        return None
    return Message(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        body,
        properties,
        store_timestamp,
        (store_address, store_port),
        born_timestamp,
    )


def _any(record: bytes) -> Message:
    found = decode(record)
    return Message(
        found.topic,
        found.queue_id,
        found.queue_offset,
        found.physical_offset,
        found.body,
        found.properties,
        found.store_timestamp,
        found.store_host,
        found.born_timestamp,
    )


def parse_tags(expression: str) -> tuple[str, ...]:
    """The tags of `"a || b"`; () for "*" and "", which mean all messages (RocketMQ's tag expressions).

    IllegalMessage (FIELD_OUT_OF_RANGE) for an expression with an empty part, or "*" among tags.
    """
    text = expression.strip()
    if text in {"", "*"}:
        return ()
    tags = tuple(dict.fromkeys(part.strip() for part in text.split("||")))
    if "" in tags or "*" in tags:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f'{expression!r}: tags are "*" or "a || b"')
    return tags
