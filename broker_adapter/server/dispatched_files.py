"""Access to the dispatched files for readers and the role adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.topic_expiry import Holdings
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit

#: A query waits this long, in seconds, for an index that lags by at most so many messages. The index gathers
#: messages before it adds them.
_INDEX_WAIT_S, _SHORT_LAG = 0.2, 1000


class DispatchedFiles:
    """The Dispatcher's files, for readers and the role adapter."""

    def __init__(self, node: BrokerNode, dispatcher: Dispatcher) -> None:
        self._node = node
        self._dispatcher = dispatcher

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (min offset, max offset) of a queue.

        Raises ReadFailed (NOT_CONFIRMED) before and during a rebuild of the queues from an image. Until the
        replay is complete, queues appear to start at the end of the image, and consumers would skip existing
        messages.
        """
        self._check_complete()
        queue = self._dispatcher.queues.get(topic, queue_id)
        bounds = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        self._check_complete()  # a rebuild may have just started
        return bounds

    def floor(self, topic: str, queue_id: int) -> int:
        """Return the offset at which the queue started when its topic was created or imported."""
        queue = self._dispatcher.queues.get(topic, queue_id)
        return 0 if queue is None else queue.floor

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        queue = self._dispatcher.queues.get(topic, queue_id)
        return [] if queue is None else queue.read(offset, count)

    def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> Sequence[int]:
        if self._dispatcher.figures().index_pending <= _SHORT_LAG:
            self._dispatcher.wait_index(_INDEX_WAIT_S)
        offsets = self._dispatcher.index.find(topic, key, begin_ms, end_ms)
        return [offset for offset, _ in zip(offsets, range(limit), strict=False)]

    def first_position(self, topic: str, queue_id: int) -> int:
        return self._dispatcher.queues.incarnations.get((topic, queue_id), 0)

    def wait_keys(self, timeout_ms: int) -> None:
        """Wait until `find_keys` includes all dispatched messages. Blocks.

        Raises ReadFailed (NOT_CONFIRMED) after the timeout.
        """
        if not self._dispatcher.wait_index(timeout_ms / 1000):
            raise ReadFailed(Status.NOT_CONFIRMED, f"the index has not caught up within {timeout_ms} ms")

    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        return self._dispatcher.queues.next_offsets()

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int:
        return await self._node.wait_applied(index, timeout)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes that are committed on this node but not yet dispatched, excluding entries internal
        to the log.
        """
        node = self._node
        if node.applied_index >= node.committed_index:
            return 0
        return max(0, node.committed_pos - self._dispatcher.dispatched.end_pos)

    def _check_complete(self) -> None:
        if self._node.applied_index < 0:
            raise ReadFailed(Status.NOT_CONFIRMED, "this broker is still rebuilding its queues from the log")


def needed_from(dispatcher: Dispatcher, delivery: DeliveryState) -> Callable[[], int]:
    """Return a function that returns the first log position that delayed messages need, dispatched or not."""

    def position() -> int:
        dispatched = dispatcher.dispatched.end_pos  # read before the state, which may be newer
        first = delivery.first_pos()
        return dispatched if first is None else min(first, dispatched)

    return position


def holdings(
    files: DispatchedFiles, dispatcher: Dispatcher, delivery: DeliveryState, writer: MessageWriter
) -> Holdings:
    """Return the callbacks for the expiry of topics."""
    return Holdings(
        bounds=files.bounds,
        queue_ids=lambda topic: [queue.queue_id for queue in dispatcher.queues.of_topic(topic)],
        is_awaited=delivery.is_awaited,
        last_index=lambda: writer.last_index,
        dispatched_index=lambda: dispatcher.dispatched.index,
    )
