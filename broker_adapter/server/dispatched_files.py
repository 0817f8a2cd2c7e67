"""What the log was dispatched to, as readers and the role adapter want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.format.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.topic_expiry import Holdings
from broker_adapter.pop.state import DeliveryState
from broker_adapter.store.dispatcher import Dispatcher


class DispatchedFiles:
    """The Dispatcher's files as readers and the role adapter want them."""

    def __init__(self, node: BrokerNode, dispatcher: Dispatcher) -> None:
        self._node = node
        self._dispatcher = dispatcher

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """ReadFailed (NOT_CONFIRMED) while the queues are made again from an image: until its replay is over
        they seem to begin where the image ends, and consumers would skip what there is. So also before."""
        self._check_complete()
        queue = self._dispatcher.queues.get(topic, queue_id)
        found = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        self._check_complete()  # also if that has just begun
        return found

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        queue = self._dispatcher.queues.get(topic, queue_id)
        return [] if queue is None else queue.read(offset, count)

    def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Sequence[int]:
        found = self._dispatcher.index.find(topic, key, begin_ms, end_ms)
        return [offset for offset, _ in zip(found, range(most), strict=False)]

    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        return self._dispatcher.queues.next_offsets()

    async def wait_applied(self, index: int | None = None, timeout_ms: int = 5000) -> int:
        return await self._node.wait_applied(index, timeout_ms)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Committed here and not yet dispatched. What the log writes for itself is not counted."""
        node = self._node
        if node.applied_index >= node.committed_index:
            return 0
        return max(0, node.committed_pos - self._dispatcher.dispatched.end_pos)

    def _check_complete(self) -> None:
        if self._node.applied_index < 0:
            raise ReadFailed(Status.NOT_CONFIRMED, "this broker has still to make its queues of the log")


def needed_from(dispatcher: Dispatcher, delivery: DeliveryState) -> Callable[[], int]:
    """The position from which on the log is read again one day: by delayed messages, those that are not
    dispatched yet included."""

    def position() -> int:
        dispatched = dispatcher.dispatched.end_pos  # before the state, which may be ahead of it then
        first = delivery.first_pos()
        return dispatched if first is None else min(first, dispatched)

    return position


def holdings(
    files: DispatchedFiles, dispatcher: Dispatcher, delivery: DeliveryState, writer: MessageWriter
) -> Holdings:
    """What the expiry of topics asks of the parts of a broker."""
    return Holdings(
        bounds=files.bounds,
        queue_ids=lambda topic: [queue.queue_id for queue in dispatcher.queues.of_topic(topic)],
        is_awaited=delivery.is_awaited,
        last_index=lambda: writer.last_index,
        dispatched_index=lambda: dispatcher.dispatched.index,
    )
