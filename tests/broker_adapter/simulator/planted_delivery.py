"""Mistakes of delivery, as `planted` has those of the rest of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.delivery import dead_letters
from broker_adapter.delivery.api import AckStatus, Delivery
from broker_adapter.delivery.dead_letters import DeadLetters
from broker_adapter.delivery.receiver import Receiver
from broker_adapter.delivery.service import DeliveryService
from broker_adapter.delivery.upkeep import Upkeep
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import Drop, Pop, QueueKey
from broker_adapter.delivery_state.deferred_messages import DeferredMessages
from broker_adapter.delivery_state.duplicate_filter import DuplicateFilter
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.put.sender import Sender
from broker_adapter.scheduled.deferred_delivery import DeferredDelivery
from broker_adapter.server import replicated_state
from broker_adapter.wire.message import decode
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX
from tests.broker_adapter.simulator import broker_node


def image_without_delivery(patch: pytest.MonkeyPatch) -> None:
    """A node that begins with a checkpoint or an image has forgotten who holds what."""

    class Image:
        load = staticmethod(image.load)

        restore = staticmethod(image.restore)

        @staticmethod
        def save(state: DeliveryState) -> bytes:
            return image.save(DeliveryState())

        @staticmethod
        def checkpoint(state: DeliveryState) -> tuple[bytes, None]:
            return image.save(DeliveryState()), None

    patch.setattr(replicated_state, "image", Image)


def ids_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    """What is sent again is stored again."""

    async def never(*_: Any) -> None: ...

    patch.setattr(Sender, "outcome", never)
    patch.setattr(Sender, "_in_flight", lambda *_: None)
    patch.setattr(Sender, "_stored", lambda *_: None)


def ids_of_rolled_back_messages_stay(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is begun again is answered with the one that was rolled back."""
    patch.setattr(DuplicateFilter, "end_deferred", lambda self, number, stamp_ms: None)


def acks_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """An ack is answered before it is in the log."""

    async def ack(self: DeliveryService, group: str, topic: str, handles: Sequence[str]) -> list[AckStatus]:
        task = asyncio.get_running_loop().create_task(right(self, group, topic, handles))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return [AckStatus.OK] * len(handles)

    right = DeliveryService.ack
    patch.setattr(DeliveryService, "ack", ack)


def two_ends_of_a_deferred_message(patch: pytest.MonkeyPatch) -> None:
    """A master does not keep in mind that it is ending a message already."""

    def end(self: DeferredDelivery, *given: Any) -> asyncio.Future[RequestOutcome]:
        done = right(self, *given)
        self._ending.clear()
        return done

    right = DeferredDelivery._end_message
    patch.setattr(DeferredDelivery, "_end_message", end)


def delayed_messages_purged(patch: pytest.MonkeyPatch) -> None:
    """A leader purges entries of the log that delayed messages are read from when they are due."""
    patch.setattr(broker_node, "needed_from", lambda *_: lambda: 1 << 62)


def carried_messages_lost(patch: pytest.MonkeyPatch) -> None:
    """A delayed message that is carried along is ended by that."""
    patch.setattr(
        DeferredMessages,
        "carried",
        lambda self, deferred_id, place, element, version: bool(self._remove_message(deferred_id)),
    )


def overdue_acks_count(patch: pytest.MonkeyPatch) -> None:
    """A message whose time is over can still be acknowledged, on this version of a node."""

    def done(self: DeliveryState, key: Any, offset: int, pop: int, stamp_ms: int | None) -> bool:
        return right(self, key, offset, pop, None)

    right = DeliveryState._done
    patch.setattr(DeliveryState, "_done", done)


def order_not_kept(patch: pytest.MonkeyPatch) -> None:
    """An orderly group gets more of a queue while something of it is invisible."""
    patch.setattr(QueueDelivery, "has_invisible", lambda *_: False)


def lost_grants_renewed(patch: pytest.MonkeyPatch) -> None:
    """What a receive has granted counts as passed on, whatever becomes of its answer."""

    async def receive(self: DeliveryService, group: str, topic: str, **fields: Any) -> list[Delivery]:
        found = await right(self, group, topic, **fields)
        self.passed_on(group, topic, found)
        return found

    right = DeliveryService.receive
    patch.setattr(DeliveryService, "receive", receive)


def letters_stored_before_the_state_has_spoken(patch: pytest.MonkeyPatch) -> None:
    """A message goes to the dead letters although it was acknowledged, or given again, in front of that."""

    async def move(
        self: DeadLetters, key: QueueKey, offset: int, popped: PoppedMessage, record: bytes
    ) -> bool:
        topic = DEAD_LETTER_PREFIX + key.group
        await self._make_topic(topic)
        host = decode(record, verify_body=False).born_host
        letter = dead_letters._letter(key.topic, record)
        records = self._writer.records(topic, 0, [letter], born_host=host, is_moved=True)
        await self._committer.submit(PutRequest(queued=[records], elements=[Drop(key, offset, popped.pop)]))
        return True

    patch.setattr(DeadLetters, "_move", move)


def first_offset_of_the_proposer(patch: pytest.MonkeyPatch) -> None:
    """A queue that is new to a group begins where the master believed that it does."""

    def pop(self: Receiver, *given: Any) -> Pop:
        return right(self, *given)._replace(first_from_state=False)

    right = Receiver._pop
    patch.setattr(Receiver, "_pop", pop)


def one_group_takes_all_the_room(patch: pytest.MonkeyPatch) -> None:
    """A group that is given messages and is done with none of them stops all others."""

    def room(self: Receiver, group: str) -> int:
        return self._limits.max_pending - self._state.pending_count

    patch.setattr(Receiver, "_room", room)


def purged_messages_stay_pending(patch: pytest.MonkeyPatch) -> None:
    """What was purged takes room of the limits until its group receives again."""
    patch.setattr(Upkeep, "run_step", lambda *_: None)


def grants_without_an_end(patch: pytest.MonkeyPatch) -> None:
    """What a client was given stays its own for hours, whether it has got it or not."""

    def pop(self: Receiver, *given: Any) -> Pop:
        return right(self, *given)._replace(invisible_ms=3_600_000)

    right = Receiver._pop
    patch.setattr(Receiver, "_pop", pop)
