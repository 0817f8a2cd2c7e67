"""Choice of the queue for a message. No I/O: callers pass the time."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.client.core.checks import check_type
from broker_adapter.client.core.values import Message, MessageQueue
from broker_adapter.errors import Status, TopicRefused
from broker_adapter.wire.java_hash import java_hash


class QueueChoice:
    """Round-robin choice of queues.

    Avoids brokers that failed recently, provided that other brokers have queues.
    """

    def __init__(self, avoid_s: float, start: int = 0) -> None:
        """`start`: the first position. Producers with different positions balance the load."""
        self._avoid_s = avoid_s
        self._turn = start
        self._avoided: dict[str, float] = {}  # end of the avoidance, by broker

    def pick(
        self, queues: Sequence[MessageQueue], now: float, *, tried: frozenset[str] = frozenset()
    ) -> MessageQueue:
        """Return the next queue. `tried`: brokers of earlier attempts.

        Raises TopicRefused (TOPIC_NOT_WRITABLE) if the topic has no writable queue.
        """
        _check_any(queues)
        self._turn += 1
        self._avoided = {name: until for name, until in self._avoided.items() if until > now}
        turned = [queues[(self._turn + step) % len(queues)] for step in range(len(queues))]
        for excluded in (tried | self._avoided.keys(), tried, frozenset[str]()):
            for queue in turned:
                if queue.broker_name not in excluded:
                    return queue
        raise AssertionError("the last round excludes no broker")

    def failed(self, broker_name: str, now: float) -> None:
        self._avoided[broker_name] = now + self._avoid_s

    def succeeded(self, broker_name: str) -> None:
        self._avoided.pop(broker_name, None)


class QueueNumber:
    """A selector for one send.

    It chooses the queue with this number at the first broker by name that was not tried yet. In this project
    each node has its own broker name, and all names have the same queues.
    """

    def __init__(self, number: int) -> None:
        check_type("the number of a queue", number, int)
        self._number = number
        self._tried: set[str] = set()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Choose a queue. Raises TopicRefused (QUEUE_UNKNOWN) if no broker has a queue with this number."""
        candidates = sorted(queue for queue in queues if queue.queue_id == self._number)
        if not candidates:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"{message.topic} has no writable queue {self._number}")
        chosen = next((queue for queue in candidates if queue.broker_name not in self._tried), candidates[0])
        self._tried.add(chosen.broker_name)
        return chosen


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Choose a queue like RocketMQ's SelectMessageQueueByHash.

    Given the same queues, returns the same result as the Java class. Raises TopicRefused (TOPIC_NOT_WRITABLE)
    without queues.
    """
    _check_any(queues)
    # Java takes the absolute value of the remainder, which has the sign of the hash.
    return queues[abs(java_hash(str(key))) % len(queues)]


def _check_any(queues: Sequence[MessageQueue]) -> None:
    if not queues:
        raise TopicRefused(Status.TOPIC_NOT_WRITABLE, "no broker accepts messages of this topic at present")
