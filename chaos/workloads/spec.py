"""What a load is made of, and what every load does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from chaos.trace.operations import Numbers
from chaos.trace.writer import TraceWriter
from chaos.workloads.tally import Tally


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """`rate`: messages per second of all clients together, 0: as fast as they are answered, with `at_once`
    operations of each client under way. `max_batch`: messages sent as one; how many is drawn."""

    clients: int = 4
    at_once: int = 4
    rate: float = 0.0
    max_batch: int = 4
    max_bytes: int = 200
    readers: int = 2
    topics: int = 2  # brokers only, as all that follow
    queues: int = 3
    consumers: int = 3

    def rate_of_client(self) -> float:
        """Operations per second, each of (1 + max_batch) / 2 messages in the mean."""
        return self.rate / max(1, self.clients) / ((1 + self.max_batch) / 2)


@dataclass(slots=True)
class Setting:
    """What loads are given. `new_writer`: the trace of a client by name; whoever gave it closes it. `lines`:
    payloads of a real file."""

    spec: LoadSpec
    rng: Random
    new_writer: Callable[[str], TraceWriter]
    lines: Sequence[bytes] = ()
    tally: Tally = field(default_factory=Tally)
    _clients: int = 0

    def client(self, name: str) -> tuple[TraceWriter, Numbers]:
        """Trace and numbers of one more client."""
        number, self._clients = self._clients, self._clients + 1
        return self.new_writer(f"client:{name}"), Numbers(number)


class Workload(Protocol):
    async def prepare(self) -> None:
        """What there has to be before the load begins."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until all that is under way has ended."""

    async def drain(self, within_s: float) -> None:
        """Read everything once more, after all has healed. TimeoutError if that does not end in time."""
