"""Parameters of a workload, and the interface of all workloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Protocol

from chaos.trace.operations import ClientTrace, Numbers
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import number_of
from chaos.workloads.tally import LoadTally

#: Broker name shared by all nodes.
BROKER = "broker-a"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Load of a workload. `rate`: messages per second of all clients together; 0: a closed loop with
    `at_once` operations in flight per client (0: enough to keep the servers of this workload busy).
    `max_batch`: maximum messages per batch; sizes are random. `delayed`, `transactional`: the share of all
    messages that is delayed or transactional."""

    clients: int = 4
    at_once: int = 0
    rate: float = 0.0
    max_batch: int = 4
    max_bytes: int = 200
    readers: int = 3  # log only
    topics: int = 2  # brokers only, like all fields below
    queues: int = 3
    consumers: int = 2  # of each group
    delayed: float = 0.0  # released clients only, like all fields below
    transactional: float = 0.0
    push: bool = False  # add groups of push consumers

    def draw_size(self, rng: Random) -> int:
        """Return the number of messages of an operation: one for half of the operations, else random."""
        return 1 if rng.random() < 0.5 else rng.randint(1, self.max_batch)

    @property
    def mean_size(self) -> float:
        """Mean number of messages per operation."""
        return (1 + (1 + self.max_batch) / 2) / 2

    def rate_of_client(self, messages: float) -> float:
        """Return the operations per second of each client, for operations with a mean of `messages`
        messages."""
        return self.rate / max(1, self.clients) / messages


@dataclass(slots=True)
class Setting:
    """Environment of a workload. `new_writer` opens the trace of a client by name; its provider closes it.
    `lines`: payloads from a real file, sent in rotation by all clients together."""

    spec: LoadSpec
    rng: Random
    new_writer: Callable[[str], TraceWriter]
    lines: Sequence[bytes] = ()
    tally: LoadTally = field(default_factory=LoadTally)
    #: True if answers to sends name entries of a replicated log and the terms of its leaders.
    has_indexes: bool = True
    #: Called by the final reader with the payload of every message, if payloads are lines.
    keep_line: Callable[[bytes], object] = lambda payload: None
    _clients: int = 0
    _payloads: Iterator[bytes] | None = None

    def client(self, name: str) -> tuple[TraceWriter, Numbers]:
        """Open the trace and the numbers of another client."""
        number, self._clients = self._clients, self._clients + 1
        return self.new_writer(f"client:{name}"), Numbers(number)

    def sender(self, name: str) -> ClientTrace:
        """Open the same for a client that reports its attempts."""
        return ClientTrace(*self.client(name), number_of)

    def went_through(self, payload: bytes) -> None:
        """Record a payload of the final read."""
        if self.lines:
            self.keep_line(payload)

    def payloads(self) -> Iterator[bytes] | None:
        """Return an endless iterator over the lines, or None if there are none."""
        if self.lines and self._payloads is None:
            self._payloads = cycle(self.lines)
        return self._payloads


class DrainTimeout(Exception):
    """Raised when a reader does not reach the end in time; the text names the reader."""


class Workload(Protocol):
    """Phases of a workload: `prepare`, then `write` and `read` concurrently, `drain` after all faults have
    healed, and `close`."""

    async def prepare(self) -> None:
        """Create everything that the load needs."""

    def logs(self) -> Iterable[Mapping[str, str | int]]:
        """Return all logs that the load uses, each as its fields: `ledger`, or `topic` and `q`."""

    async def write(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set, then wait for operations in flight."""

    async def read(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Run readers until `stop`; the readers present at that time continue until `drained`."""

    async def drain(self, within_s: float) -> None:
        """Record the end of every log, read each log completely, and wait until all readers have reached its
        end. Raises DrainTimeout."""

    async def close(self) -> None:
        """Disconnect."""
