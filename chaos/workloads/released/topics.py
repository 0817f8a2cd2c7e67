"""Topics whose messages have a predictable queue, because a client's receipt does not name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from broker_adapter.wire.java_hash import java_hash


@dataclass(frozen=True, slots=True)
class PredictableTopics:
    """Topics of a run. `normal`: topics with one queue each. `fifo` and `lanes` have `fifo_queues`, chosen by
    message group. `lanes` is for push consumers, if any: it has one message group per queue, because a push
    consumer may process several groups of a queue concurrently."""

    normal: tuple[str, ...]
    fifo: str
    fifo_queues: int
    lanes: str = ""

    @classmethod
    def of(cls, normal: int, fifo_queues: int, *, push: bool = False) -> PredictableTopics:
        lanes = "lanes" if push else ""
        return cls(tuple(f"normal-{n}" for n in range(normal)), "fifo", fifo_queues, lanes)

    @property
    def names(self) -> list[str]:
        return [topic for topic, _ in self.queues()]

    def queues(self) -> Iterator[tuple[str, int]]:
        """Yield each topic with its number of queues."""
        for topic in self.normal:
            yield topic, 1
        yield self.fifo, self.fifo_queues
        if self.lanes:
            yield self.lanes, self.fifo_queues

    def queue_of(self, message_group: str) -> int:
        """Return the queue of a message group, in `fifo` and `lanes`."""
        return java_hash(message_group) % self.fifo_queues

    def lane(self, queue: int) -> str:
        """Return the message group of a queue of `lanes`."""
        names = (f"lane-{n}" for n in count())
        return next(name for name in names if self.queue_of(name) == queue)
