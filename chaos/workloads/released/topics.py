"""Topics of which everybody knows in which queue a message is stored: a client's receipt does not say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topics:
    """`normal`: of one queue each. `fifo`: has `fifo_queues`; the message group decides."""

    normal: tuple[str, ...]
    fifo: str
    fifo_queues: int

    @classmethod
    def of(cls, normal: int, fifo_queues: int) -> Topics:
        return cls(tuple(f"normal-{n}" for n in range(normal)), "fifo", fifo_queues)

    @property
    def names(self) -> list[str]:
        return [*self.normal, self.fifo]

    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, how many queues) of each."""
        for topic in self.normal:
            yield topic, 1
        yield self.fifo, self.fifo_queues
