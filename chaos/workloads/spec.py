"""What a load is made of, and what every load does."""

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
from chaos.workloads.tally import Tally

#: Name of the one broker that all nodes are together.
BROKER = "broker-a"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """`rate`: messages per second of all clients together, 0: as fast as they are answered, with `at_once`
    operations of each client under way (0: what keeps the servers of this workload busy). `max_batch`:
    messages sent as one; how many is drawn. `delayed`, `transactional`: shares of all messages."""

    clients: int = 4
    at_once: int = 0
    rate: float = 0.0
    max_batch: int = 4
    max_bytes: int = 200
    readers: int = 3  # log only
    topics: int = 2  # brokers only, as all that follow
    queues: int = 3
    consumers: int = 2  # of each group
    delayed: float = 0.0  # released clients only, as all that follow
    transactional: float = 0.0
    push: bool = False  # whether there are groups of push consumers, too

    def draw_size(self, rng: Random) -> int:
        """Messages of one operation: every other one is a single message."""
        return 1 if rng.random() < 0.5 else rng.randint(1, self.max_batch)

    @property
    def mean_size(self) -> float:
        """Messages of one operation."""
        return (1 + (1 + self.max_batch) / 2) / 2

    def rate_of_client(self, messages: float) -> float:
        """How often a second each client begins something that sends so many messages in the mean."""
        return self.rate / max(1, self.clients) / messages


@dataclass(slots=True)
class Setting:
    """What loads are given. `new_writer`: the trace of a client by name; whoever gave it closes it. `lines`:
    payloads of a real file, which all clients together send in turn."""

    spec: LoadSpec
    rng: Random
    new_writer: Callable[[str], TraceWriter]
    lines: Sequence[bytes] = ()
    tally: Tally = field(default_factory=Tally)
    #: Whether answers to sends name entries of a log that all nodes have, and terms of its leaders.
    tells_indexes: bool = True
    #: Called by the final reader with the payload of every message, if they are lines.
    keep_line: Callable[[bytes], object] = lambda payload: None
    _clients: int = 0
    _payloads: Iterator[bytes] | None = None

    def client(self, name: str) -> tuple[TraceWriter, Numbers]:
        """Trace and numbers of one more client."""
        number, self._clients = self._clients, self._clients + 1
        return self.new_writer(f"client:{name}"), Numbers(number)

    def sender(self, name: str) -> ClientTrace:
        """The same of a client that tells of its attempts."""
        return ClientTrace(*self.client(name), number_of)

    def went_through(self, payload: bytes) -> None:
        """The final reader has read this."""
        if self.lines:
            self.keep_line(payload)

    def payloads(self) -> Iterator[bytes] | None:
        """The lines, one after the other and then again; None without any."""
        if self.lines and self._payloads is None:
            self._payloads = cycle(self.lines)
        return self._payloads


class DrainTimeout(Exception):
    """Some reader did not get to the end in time; the text names it."""


class Workload(Protocol):
    """`prepare`, `logs`, then `write` and `read` beside each other, `drain` when all has healed, `close`."""

    async def prepare(self) -> None:
        """What there has to be before the load begins."""

    def logs(self) -> Iterable[Mapping[str, str | int]]:
        """All logs that the load uses, as fields that name one: `ledger`, or `topic` and `q`."""

    async def write(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until all that is under way has ended."""

    async def read(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Readers come and go until `stop`; those that are there then stay until `drained`."""

    async def drain(self, within_s: float) -> None:
        """Note where every log ends, read all of it once more, and wait until the readers, too, have got
        there. DrainTimeout if that does not end in time."""

    async def close(self) -> None:
        """Disconnect."""
