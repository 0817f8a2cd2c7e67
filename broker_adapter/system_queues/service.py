"""Delayed messages and halves in RocketMQ's own form; what that has no place for is kept in commands."""

from __future__ import annotations

from collections.abc import Callable

from broker_adapter.deferred.deferring import Deferring, DeferringParts, ToDefer
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC, fitting_level
from broker_adapter.format.topic_names import HALF_TOPIC, OP_TOPIC
from broker_adapter.pop.api import Delayed, Half, OrphanedHalf, Resolution
from broker_adapter.system_queues.levels import LevelDelivery
from broker_adapter.system_queues.transactions import Transactions

#: Topics that the broker alone writes.
OWN_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})


class SystemQueues:
    """Implements Deferring. `own`: for messages with a time of their own, which have no level, and for those
    that were kept there before. `reserved_ms`: halves that are older are given up."""

    def __init__(self, own: Deferring, parts: DeferringParts, *, reserved_ms: int) -> None:
        self._own = own
        self._levels = LevelDelivery(parts)
        self._transactions = Transactions(parts, reserved_ms)

    def start(self) -> None:
        self._own.start()
        self._levels.start()
        self._transactions.start()

    def stop(self) -> None:
        self._own.stop()
        self._levels.stop()
        self._transactions.stop()

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        self._own.on_orphan(ask)
        self._transactions.on_orphan(ask)

    async def delay(self, put: ToDefer, deliver_at_ms: int, level: int) -> Delayed:
        if fitting := fitting_level(level):
            return await self._levels.put(put, fitting)
        return await self._own.delay(put, deliver_at_ms, level)

    async def half(self, put: ToDefer, client_id: str, check_after_ms: int) -> Half:
        return await self._transactions.put(put, check_after_ms)

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str:
        return await self._own.recall(topic, handle, timeout_ms)

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, timeout_ms: int
    ) -> None:
        if not await self._transactions.end(topic, transaction_id, resolution, timeout_ms):
            await self._own.end_transaction(topic, transaction_id, resolution, timeout_ms)
