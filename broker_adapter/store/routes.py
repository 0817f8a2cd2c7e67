"""Where a record belongs, found from its last bytes: topic and properties. Most records share a few."""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.format.delay_levels import DELAY_LEVEL, SCHEDULE_TOPIC, level_ms, level_of
from broker_adapter.format.java_hash import tag_code
from broker_adapter.format.message import Message
from broker_adapter.format.properties import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQ_KEY, split_properties
from broker_adapter.format.topic_names import MAX_TOPIC_LENGTH, check_topic_name
from broker_adapter.store.consume_queue import ConsumeQueue

METADATA_TOPIC = "DLEDGER_SYS_METADATA"
DELIVERY_TOPIC = "DLEDGER_SYS_DELIVERY"

#: Both caches are emptied beyond this: tails with keys of their own are not kept, so few programs get there.
_MOST_KEPT = 10_000
_LONGEST_KEPT = 1024


class Route(NamedTuple):
    """`queues` are those of the topic that were met so far: shared by all routes of the topic.

    The keys are those to be indexed, as the properties have them.
    """

    topic: str
    queues: dict[int, ConsumeQueue]
    tag_code: int
    unique_key: str | None
    keys: str | None
    is_keyed: bool
    is_metadata: bool
    is_delivery: bool
    #: So long after it was stored a message is due, which its unit has instead of a tag; 0: it has its tag.
    delay_ms: int


class Routes:
    def __init__(self) -> None:
        self._by_tail: dict[bytes, Route] = {}
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._tag_codes: dict[str, int] = {}

    def get(self, tail: bytes) -> Route | None:
        """The route of a tail that was met before."""
        return self._by_tail.get(tail)

    def of_tail(self, tail: bytes) -> Route:
        """Of what follows the body in a record of V1. StoredDataDamaged if that cannot be."""
        topic_end = 1 + tail[0] if tail else 0
        properties_at = topic_end + 2
        if not 1 < topic_end <= 1 + MAX_TOPIC_LENGTH or len(tail) < properties_at:
            raise StoredDataDamaged(Status.RECORD_LENGTHS, f"no topic in {len(tail)} bytes")
        size = int.from_bytes(tail[topic_end:properties_at], "big")
        if size != len(tail) - properties_at or size > MAX_PROPERTIES_BYTES:
            raise StoredDataDamaged(Status.RECORD_LENGTHS, "the properties do not reach to the end")
        try:
            route = self._route(tail[1:topic_end].decode(), tail[properties_at:].decode())
        except UnicodeDecodeError as error:
            raise StoredDataDamaged(Status.RECORD_TEXT, f"topic or properties: {error}") from None
        if not route.is_keyed and len(tail) <= _LONGEST_KEPT:
            if len(self._by_tail) >= _MOST_KEPT:
                self._by_tail.clear()
            self._by_tail[tail] = route
        return route

    def of_message(self, message: Message) -> Route:
        """StoredDataDamaged if no topic can have this name."""
        return self._route(message.topic, message.properties)

    def forget(self) -> None:
        """The queues are others now."""
        self._by_tail.clear()
        self._queues.clear()

    def _route(self, topic: str, properties: str) -> Route:
        if topic not in self._queues:
            try:
                check_topic_name(topic)
            except IllegalMessage as error:
                raise StoredDataDamaged(Status.RECORD_FIELD, error.message) from None
            self._queues[topic] = {}
        found = split_properties(properties) if properties else {}
        unique_key, keys = found.get(UNIQ_KEY), found.get(KEYS)
        return Route(
            topic,
            self._queues[topic],
            self._tag_code(found.get(TAGS, "")),
            unique_key,
            keys,
            unique_key is not None or keys is not None,
            topic == METADATA_TOPIC,
            topic == DELIVERY_TOPIC,
            level_ms(level_of(found.get(DELAY_LEVEL))) if topic == SCHEDULE_TOPIC else 0,
        )

    def _tag_code(self, tag: str) -> int:
        code = self._tag_codes.get(tag)
        if code is None:
            code = tag_code(tag)
            if len(tag) <= _LONGEST_KEPT:
                if len(self._tag_codes) >= _MOST_KEPT:
                    self._tag_codes.clear()
                self._tag_codes[tag] = code
        return code
