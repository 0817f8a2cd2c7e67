"""The project's own clients, as configured for the workloads, and the selection of queues by number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from random import Random

from broker_adapter.client import (
    ClientOptions,
    Message,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PullStatus,
)
from broker_adapter.errors import ReadFailed, Status, TopicRefused
from chaos.workloads.spec import BROKER

#: A node searches for a master for 3 s before it reports that there is none. With a longer timeout, fewer
#: outcomes are indeterminate. Routes and heartbeats are refreshed faster than by default because a run lasts
#: minutes.
OPTIONS = ClientOptions(
    timeout=5.0,
    request_timeout=4.0,
    poll_name_server_s=1.0,
    heartbeat_broker_s=1.0,
    avoid_broker_s=1.0,
)
#: Time for a send whose first attempt waits for a paused node, and for its repeat at another one.
SEND_OPTIONS = replace(OPTIONS, timeout=10.0)
_BATCH = 256


def queue_of(topic: str, queue_id: int) -> MessageQueue:
    """Return the queue to read from. It names the broker, because released clients may have registered other
    brokers at the same name servers."""
    return MessageQueue(topic, BROKER, queue_id)


class QueueByNumber:
    """A queue selector for one send. It selects a queue by its number, at a node that has not been tried
    yet."""

    def __init__(self, queue_id: int, rng: Random) -> None:
        self._queue_id = queue_id
        self._rng = rng
        self._tried: set[str] = set()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Raises TopicRefused (QUEUE_UNKNOWN) if no node has the queue."""
        its = [
            queue
            for queue in queues
            if queue.queue_id == self._queue_id and queue.broker_name.startswith(BROKER)
        ]
        if not its:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"no node accepts messages for queue {self._queue_id}")
        chosen = self._rng.choice([queue for queue in its if queue.broker_name not in self._tried] or its)
        self._tried.add(chosen.broker_name)
        return chosen


async def batches(
    consumer: PullConsumer, queue: MessageQueue, begin: int, end: int
) -> AsyncGenerator[Sequence[MessageExt]]:
    """Yield the messages in a range of queue offsets. Raises BrokerError, and ReadFailed if an offset is
    outside the queue."""
    at = begin
    while at < end:
        result = await consumer.pull(queue, at, max_messages=_BATCH)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            status = Status.OFFSET_BELOW_MINIMUM if at < result.min_offset else Status.OFFSET_ABOVE_MAXIMUM
            raise ReadFailed(
                status, f"{queue}: offset {at} is not within {result.min_offset} to {result.max_offset}"
            )
        yield result.messages
        at = result.next_offset
