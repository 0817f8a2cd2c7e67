"""Choice of the queues to read, with errors that name the existing queues."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.client import MessageQueue
from broker_adapter.errors import Status, error_for


def choose_queues(topic: str, readable: Sequence[MessageQueue], number: int | None) -> list[MessageQueue]:
    """Return the queue with this number, or all readable queues for None.

    Raises TopicRefused: TOPIC_NOT_READABLE if the topic has no readable queue, QUEUE_UNKNOWN if there is no
    queue with this number.
    """
    if not readable:
        raise error_for(Status.TOPIC_NOT_READABLE, f"{topic} has no readable queue")
    chosen = [queue for queue in readable if number in (None, queue.queue_id)]
    if not chosen:
        last = max(queue.queue_id for queue in readable)
        raise error_for(Status.QUEUE_UNKNOWN, f"{topic} has no queue {number}: its queues are 0 to {last}")
    return chosen
