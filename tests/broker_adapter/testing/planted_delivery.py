"""Mistakes of delivery, as `planted` has those of the rest of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter import replicated_state
from broker_adapter.delivery import image
from broker_adapter.delivery.api import AckStatus
from broker_adapter.delivery.committer import Done
from broker_adapter.delivery.holder import Holder
from broker_adapter.delivery.queue_state import QueueDelivery
from broker_adapter.delivery.sender import Sender
from broker_adapter.delivery.service import DeliveryService
from broker_adapter.delivery.state import DeliveryState


def image_without_delivery(patch: pytest.MonkeyPatch) -> None:
    """A node that begins with a checkpoint or an image has forgotten who holds what."""

    class Image:
        load = staticmethod(image.load)

        @staticmethod
        def save(state: DeliveryState) -> bytes:
            return image.save(DeliveryState())

    patch.setattr(replicated_state, "image", Image)


def ids_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    """What is sent again is stored again."""

    async def never(*_: Any) -> None: ...

    patch.setattr(Sender, "outcome", never)


def acks_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """An ack is answered before it is in the log."""

    async def ack(self: DeliveryService, group: str, topic: str, handles: Sequence[str]) -> list[AckStatus]:
        task = asyncio.get_running_loop().create_task(right(self, group, topic, handles))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return [AckStatus.OK] * len(handles)

    right = DeliveryService.ack
    patch.setattr(DeliveryService, "ack", ack)


def two_ends_of_a_held_message(patch: pytest.MonkeyPatch) -> None:
    """A master does not keep in mind that it is ending a message already."""

    def end(self: Holder, *given: Any) -> asyncio.Future[Done]:
        done = right(self, *given)
        self._ending.clear()
        return done

    right = Holder._end
    patch.setattr(Holder, "_end", end)


def overdue_acks_count(patch: pytest.MonkeyPatch) -> None:
    """A message whose time is over can still be acknowledged, on this version of a node."""

    def done(self: DeliveryState, key: Any, offset: int, pop: int, stamp_ms: int | None) -> bool:
        return right(self, key, offset, pop, None)

    right = DeliveryState._done
    patch.setattr(DeliveryState, "_done", done)


def order_not_kept(patch: pytest.MonkeyPatch) -> None:
    """An orderly group gets more of a queue while something of it is held."""
    patch.setattr(QueueDelivery, "is_held", lambda *_: False)
