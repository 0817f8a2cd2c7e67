"""Which queue takes a message. Pure: the time is handed in."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.client.core.values import Message, MessageQueue
from broker_adapter.errors import Status, TopicRefused
from broker_adapter.format.java_hash import java_hash


class QueueChoice:
    """Queues by turns. Brokers that have just failed are avoided as long as others have queues."""

    def __init__(self, avoid_s: float, start: int = 0) -> None:
        """`start`: the first turn; producers that begin with different ones share the load better."""
        self._avoid_s = avoid_s
        self._turn = start
        self._avoided: dict[str, float] = {}  # broker -> until when

    def pick(
        self, queues: Sequence[MessageQueue], now: float, *, tried: frozenset[str] = frozenset()
    ) -> MessageQueue:
        """`tried`: brokers of the attempts before. TopicRefused (TOPIC_NOT_WRITABLE) if there is no queue."""
        if not queues:
            raise TopicRefused(Status.TOPIC_NOT_WRITABLE, "no broker takes messages of this topic now")
        self._turn += 1
        self._avoided = {name: until for name, until in self._avoided.items() if until > now}
        turned = [queues[(self._turn + step) % len(queues)] for step in range(len(queues))]
        for excluded in (tried | self._avoided.keys(), tried, frozenset[str]()):
            for queue in turned:
                if queue.broker_name not in excluded:
                    return queue
        raise AssertionError("the last round excludes nobody")

    def failed(self, broker_name: str, now: float) -> None:
        self._avoided[broker_name] = now + self._avoid_s

    def succeeded(self, broker_name: str) -> None:
        self._avoided.pop(broker_name, None)


class QueueNumber:
    """A selector for one send: the queue of this number at the first broker, sorted by name, that was not
    tried yet. Our nodes have one name each, and the same queues under all of them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._tried: set[str] = set()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """TopicRefused (QUEUE_UNKNOWN) if no broker has it."""
        its = sorted(queue for queue in queues if queue.queue_id == self._number)
        if not its:
            raise TopicRefused(
                Status.QUEUE_UNKNOWN, f"{message.topic} has no queue {self._number} that takes messages"
            )
        chosen = next((queue for queue in its if queue.broker_name not in self._tried), its[0])
        self._tried.add(chosen.broker_name)
        return chosen


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """RocketMQ's SelectMessageQueueByHash for a text: the same queue as Java's as long as the queues stay."""
    # Java takes the absolute value of the hash's remainder, whose sign is the hash's own.
    return queues[abs(java_hash(str(key))) % len(queues)]
