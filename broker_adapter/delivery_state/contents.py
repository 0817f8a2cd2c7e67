"""The data of the delivery state: deliveries per queue and group, and indexes of them. Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from broker_adapter.delivery_state.commands import QueueKey
from broker_adapter.delivery_state.deferred_messages import DeferredMessages
from broker_adapter.delivery_state.delay_index import DelayIndex
from broker_adapter.delivery_state.duplicate_filter import DuplicateFilter
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery

_K = TypeVar("_K")


class DeliveryContents:
    """The state, which is replaced as a whole when an image is loaded."""

    def __init__(self, index: DelayIndex | None = None) -> None:
        self.applied_index = -1
        self.queues: dict[QueueKey, QueueDelivery] = {}
        self.deferred = DeferredMessages(index)
        self.ids = DuplicateFilter()
        self.system_offsets: dict[tuple[str, int], int] = {}  # by topic and queue id
        self.pending_count = 0
        self.by_group: dict[str, dict[QueueKey, QueueDelivery]] = {}
        self.pending_of: dict[str, int] = {}  # per group
        self.by_place: dict[tuple[str, int], dict[QueueKey, QueueDelivery]] = {}  # by topic and queue id
        self.by_owner: dict[str, dict[QueueKey, QueueDelivery]] = {}

    def add(self, queue: QueueDelivery) -> None:
        key = queue.key
        self.queues[key] = queue
        self.by_group.setdefault(key.group, {})[key] = queue
        self.by_place.setdefault((key.topic, key.queue_id), {})[key] = queue

    def forget(self, queues: Iterable[QueueDelivery]) -> None:
        """Remove queues with all their messages, in a time that does not depend on the number of messages."""
        for queue in queues:
            key = queue.key
            for owner in queue.owners:
                _discard(self.by_owner, owner, key)
            if queue.pending:
                self._count(key.group, -len(queue.pending))
            del self.queues[key]
            _discard(self.by_group, key.group, key)
            _discard(self.by_place, (key.topic, key.queue_id), key)

    def put(self, queue: QueueDelivery, offset: int, popped: PoppedMessage) -> None:
        """Add or replace a pending message."""
        if (before := queue.pending.get(offset)) is None:
            self._count(queue.key.group, 1)
        queue.put(offset, popped)
        if before is not None and before.owner != popped.owner:
            self._discard_owner(before.owner, queue)
        self.by_owner.setdefault(popped.owner, {})[queue.key] = queue

    def remove(self, queue: QueueDelivery, offset: int) -> None:
        """Remove a pending message."""
        owner = queue.pending[offset].owner
        queue.remove(offset)
        self._count(queue.key.group, -1)
        self._discard_owner(owner, queue)

    def _discard_owner(self, owner: str, queue: QueueDelivery) -> None:
        if owner not in queue.owners:
            _discard(self.by_owner, owner, queue.key)

    def _count(self, group: str, more: int) -> None:
        self.pending_count += more
        self.pending_of[group] = self.pending_of.get(group, 0) + more
        if not self.pending_of[group]:
            del self.pending_of[group]


def _discard(index: dict[_K, dict[QueueKey, QueueDelivery]], name: _K, key: QueueKey) -> None:
    queues = index[name]
    del queues[key]
    if not queues:
        del index[name]
