"""What users of the client hand in and get back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker_adapter.api import PullStatus
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.message import decode
from broker_adapter.properties import KEYS, TAGS, UNIQ_KEY, split_properties


class MessageQueue(NamedTuple):
    """One queue of a topic. `broker` is the name of the group of brokers that has it."""

    topic: str
    broker: str
    queue_id: int


class Message(NamedTuple):
    """A message as a consumer gets it. `key`s are those that it can be found by (`Admin.query`)."""

    topic: str
    queue_id: int
    queue_offset: int
    offset_id: str  # leads to the record: `Admin.message_at`
    body: bytes
    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    store_timestamp: int  # ms since 1970, time of the cluster
    born_timestamp: int  # ms since 1970, time of the producer

    @property
    def message_id(self) -> str:
        """What the producer calls it (UNIQ_KEY), or its offset id."""
        return self.properties.get(UNIQ_KEY) or self.offset_id


class SendReceipt(NamedTuple):
    """Where an acknowledged message is."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str  # the producer's own (UNIQ_KEY); "" if that was switched off
    offset_id: str  # the broker's


class PullBatch(NamedTuple):
    """What one pull has found."""

    status: PullStatus
    next_offset: int  # where to go on
    min_offset: int
    max_offset: int  # one behind the last message of the queue
    messages: Sequence[Message]


def message_of(record: bytes) -> Message:
    """A message from its record, checked. StoredDataDamaged if the record is not whole."""
    found = decode(record)
    properties = split_properties(found.properties)
    return Message(
        found.topic,
        found.queue_id,
        found.queue_offset,
        found.offset_id,
        found.body,
        properties.get(TAGS),
        properties[KEYS].split() if KEYS in properties else (),
        properties,
        found.store_timestamp,
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
