"""What clients of delivery were told, against what the committed log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from broker_adapter.delivery.api import Delivery
from broker_adapter.delivery_state import records
from broker_adapter.delivery_state.commands import ChangeKind, ChangeVisibility, ConfirmReceipt, QueueKey
from broker_adapter.delivery_state.handles import parse_receipt
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.wire.message import MessageRecord
from broker_adapter.wire.properties import UNIQ_KEY, split_properties
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX
from dledger.testing import Violation
from tests.broker_adapter.simulator.delivery_model import DeliveryModel

Position = tuple[str, int, int]  # group, queue id, offset


class DeliveryTruth:
    def __init__(self) -> None:
        self.model = DeliveryModel(is_strict=True)
        self.buried: set[tuple[str, str]] = set()  # (group, message id)
        self._in_queues: Counter[str] = Counter()  # by message id
        self._stored: set[str] = set()
        self._never: set[str] = set()
        self._acked: dict[Position, int] = {}
        self._given: set[Position] = set()
        self._reached: set[tuple[QueueKey, int, int]] = set()  # queue, offset and pop that a client has got

    # -- the committed log

    def message(self, message: MessageRecord) -> None:
        """A message of a queue."""
        message_id = split_properties(message.properties).get(UNIQ_KEY, "")
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            letter = (message.topic.removeprefix(DEAD_LETTER_PREFIX), message_id)
            if letter in self.buried:
                raise Violation("one letter", f"{letter} is among the dead letters twice")
            self.buried.add(letter)
        elif message_id:
            self._in_queues[message_id] += 1
            if self._in_queues[message_id] > 1:
                raise Violation("stored once", f"{message_id} is in the queues twice")
            if message_id in self._never:
                raise Violation("never", f"{message_id} was recalled or rolled back, and is in a queue")

    def command(self, body: bytes) -> None:
        """Of delivery, before the model takes it."""
        try:
            command = records.decode(body)
        except StoredDataDamaged:
            return
        for element in command.elements if command is not None else ():
            match element:
                case ConfirmReceipt(key, pop, offsets):
                    self._check_reached(key, pop, offsets)
                case ChangeVisibility(key, offset, pop, _, ChangeKind.RENEW):
                    self._check_reached(key, pop, (offset,))

    def _check_reached(self, key: QueueKey, pop: int, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if (key, offset, pop) not in self._reached:
                raise Violation("renewed", f"{key} {offset} under {pop}, which has reached nobody")

    # -- what clients were told

    def stored(self, message_id: str) -> None:
        """It is in a queue, or comes there."""
        self._stored.add(message_id)

    def never(self, message_id: str) -> None:
        """It was recalled or rolled back."""
        self._never.add(message_id)
        if self._in_queues[message_id]:
            raise Violation("never", f"{message_id} was recalled or rolled back, and is in a queue")

    def acknowledged(self, group: str) -> frozenset[Position]:
        """What is done by now."""
        return frozenset(place for place in self._acked if place[0] == group)

    def given(self, group: str, topic: str, one: Delivery, before: Iterable[Position]) -> None:
        """`before`: what was done when it was asked for."""
        receipt = parse_receipt(topic, one.handle)
        assert receipt is not None
        self._reached.add((QueueKey(group, topic, one.queue_id), one.queue_offset, receipt.pop))
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
        if (key, offset) in self.model.acked and (key.group, message_id) in self.buried:
            raise Violation("one letter", f"{key} {offset} was acknowledged, and is among the dead letters")
        if place not in self._given and (key.group, message_id) not in self.buried:
            raise Violation("delivered", f"{key} {offset} is done, and nobody was given it")

    @property
    def is_all_moved(self) -> bool:
        """Nothing waits for its time or its transaction any more."""
        return self.model.holds == 0
