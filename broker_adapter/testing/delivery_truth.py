"""What clients of delivery were told, against what the committed log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from broker_adapter.delivery.api import Delivery
from broker_adapter.delivery.commands import QueueKey
from broker_adapter.message import Message
from broker_adapter.properties import UNIQ_KEY, split_properties
from broker_adapter.testing.delivery_model import DeliveryModel
from broker_adapter.topic_names import DEAD_LETTER_PREFIX
from dledger.testing import Violation

Place = tuple[str, int, int]  # group, queue id, offset


class DeliveryTruth:
    def __init__(self) -> None:
        self.model = DeliveryModel()
        self.buried: set[tuple[str, str]] = set()  # (group, message id)
        self._in_queues: Counter[str] = Counter()  # by message id
        self._stored: set[str] = set()
        self._never: set[str] = set()
        self._acked: dict[Place, int] = {}
        self._given: set[Place] = set()

    # -- the committed log

    def message(self, message: Message) -> None:
        """A message of a queue."""
        message_id = split_properties(message.properties).get(UNIQ_KEY, "")
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            self.buried.add((message.topic.removeprefix(DEAD_LETTER_PREFIX), message_id))
        elif message_id:
            self._in_queues[message_id] += 1
            if self._in_queues[message_id] > 1:
                raise Violation("stored once", f"{message_id} is in the queues twice")
            if message_id in self._never:
                raise Violation("never", f"{message_id} was recalled or rolled back, and is in a queue")

    # -- what clients were told

    def stored(self, message_id: str) -> None:
        """It is in a queue, or comes there."""
        self._stored.add(message_id)

    def never(self, message_id: str) -> None:
        """It was recalled or rolled back."""
        self._never.add(message_id)
        if self._in_queues[message_id]:
            raise Violation("never", f"{message_id} was recalled or rolled back, and is in a queue")

    def acknowledged(self, group: str) -> frozenset[Place]:
        """What is done by now."""
        return frozenset(place for place in self._acked if place[0] == group)

    def given(self, group: str, one: Delivery, before: Iterable[Place]) -> None:
        """`before`: what was done when it was asked for."""
        place = (group, one.queue_id, one.queue_offset)
        if place in before:
            raise Violation("acknowledged ack", f"{place} came back as attempt {one.attempt}")
        self._given.add(place)

    def acked(self, group: str, one: Delivery) -> None:
        place = (group, one.queue_id, one.queue_offset)
        if place in self._acked:
            raise Violation("acknowledged ack", f"{place} was acknowledged twice")
        self._acked[place] = one.attempt

    # -- the end

    def check_end(self) -> None:
        for message_id in self._stored:
            if self._in_queues[message_id] != 1:
                raise Violation("stored", f"{message_id} was acknowledged, and is in no queue")

    def check_given(self, key: QueueKey, offset: int, message_id: str) -> None:
        """A message that was not purged is done: somebody was given it, or it is among the dead letters."""
        if offset >= self.model.least(key):
            raise Violation("delivered", f"{key} {offset} is not done")
        place = (key.group, key.queue_id, offset)
        if place not in self._given and (key.group, message_id) not in self.buried:
            raise Violation("delivered", f"{key} {offset} is done, and nobody was given it")

    @property
    def is_all_moved(self) -> bool:
        """Nothing waits for its time or its transaction any more."""
        return self.model.holds == 0
