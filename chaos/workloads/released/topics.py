"""Topics of which everybody knows in which queue a message is stored: a client's receipt does not say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from broker_adapter.format.java_hash import java_hash


@dataclass(frozen=True, slots=True)
class Topics:
    """`normal`: of one queue each. `fifo`, `lanes`: have `fifo_queues`; the message group decides. `lanes` is
    for push consumers, if there are any: one message group for each queue, as such a consumer may handle
    several groups of a queue at once."""

    normal: tuple[str, ...]
    fifo: str
    fifo_queues: int
    lanes: str = ""

    @classmethod
    def of(cls, normal: int, fifo_queues: int, *, push: bool = False) -> Topics:
        lanes = "lanes" if push else ""
        return cls(tuple(f"normal-{n}" for n in range(normal)), "fifo", fifo_queues, lanes)

    @property
    def names(self) -> list[str]:
        return [topic for topic, _ in self.queues()]

    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, how many queues) of each."""
        for topic in self.normal:
            yield topic, 1
        yield self.fifo, self.fifo_queues
        if self.lanes:
            yield self.lanes, self.fifo_queues

    def queue_of(self, message_group: str) -> int:
        """Of `fifo` and `lanes`."""
        return java_hash(message_group) % self.fifo_queues

    def lane(self, queue: int) -> str:
        """The message group of a queue of `lanes`."""
        names = (f"lane-{n}" for n in count())
        return next(name for name in names if self.queue_of(name) == queue)
