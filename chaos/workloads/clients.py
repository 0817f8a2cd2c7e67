"""Our clients as the loads use them: which brokers, how long, and queues by their number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
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

#: A node looks for a master for 3 s before it says that there is none: who waits longer knows more. Routes
#: and heartbeats are for what lasts minutes elsewhere.
OPTIONS = ClientOptions(
    timeout_s=5.0,
    request_timeout_s=4.0,
    poll_name_server_s=1.0,
    heartbeat_broker_s=1.0,
    avoid_broker_s=1.0,
)
_BATCH = 256


def queue_of(topic: str, queue_id: int) -> MessageQueue:
    """To read. Named: where strangers have registered brokers, too, nobody could tell which is meant."""
    return MessageQueue(topic, BROKER, queue_id)


class QueueNumber:
    """A selector for one send: a queue by its number, at a node that was not tried yet."""

    def __init__(self, queue_id: int, rng: Random) -> None:
        self._queue_id = queue_id
        self._rng = rng
        self._tried: set[str] = set()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """TopicRefused (QUEUE_UNKNOWN) if no node has it."""
        its = [
            queue
            for queue in queues
            if queue.queue_id == self._queue_id and queue.broker_name.startswith(BROKER)
        ]
        if not its:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"no node takes messages of queue {self._queue_id}")
        chosen = self._rng.choice([queue for queue in its if queue.broker_name not in self._tried] or its)
        self._tried.add(chosen.broker_name)
        return chosen


async def batches(
    consumer: PullConsumer, queue: MessageQueue, begin: int, end: int
) -> AsyncGenerator[Sequence[MessageExt]]:
    """Messages from `begin` up to `end`. BrokerError; ReadFailed if an offset is outside of the queue."""
    at = begin
    while at < end:
        result = await consumer.pull(queue, at, max_messages=_BATCH)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            status = Status.OFFSET_BELOW_MINIMUM if at < result.min_offset else Status.OFFSET_ABOVE_MAXIMUM
            raise ReadFailed(status, f"{queue}: {result.min_offset} to {result.max_offset}, not {at}")
        yield result.messages
        at = result.next_offset
