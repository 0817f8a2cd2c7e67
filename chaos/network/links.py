"""The network between nodes, implemented by proxies on loopback. Each directed link can be impaired
separately, without root privileges.

Each node is configured to reach the other members at proxy addresses, which forward to the real ones::

 links = Links(sources=["n1", "n2"], targets={"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}, rng=Random(1))
 await links.start()
 links.addresses_of("n1")                     # {"n2": "127.0.0.1:40001"}
 fault = links.begin(Impairment(cut=True), [("n1", "n2")])
 links.end(fault)

A target may have several ports: `n1/ha` belongs to n1 and shares its links.

The link (a, b) carries all data from a to b, whichever side opened the connection: requests on a's
connections to b, and answers on b's connections to a. A one-way cut therefore has the same effect as a
firewall: b receives nothing from a, while a still receives data from b.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self

from chaos.network.impairment import CLEAR, Impairment, LinkCounters, combined
from chaos.network.topology import Pair

HOST = "127.0.0.1"
#: Maximum number of open or waiting connections per link; further ones are reset and counted.
MAX_CONNECTIONS = 64


@dataclass(slots=True, eq=False)
class LinkFault:
    """A fault in force: its impairment, its links, and their counters at the start."""

    impairment: Impairment
    pairs: frozenset[Pair]
    before: Mapping[Pair, LinkCounters] = field(default_factory=dict)


class Links:
    """All directed links from `sources` to `targets` (name -> address). Bound to one event loop.

    The address of a target may be empty until it is known (`connect`).
    """

    def __init__(self, sources: Sequence[str], targets: Mapping[str, str], rng: Random) -> None:
        self._targets = dict(targets)
        self._routes = [(a, b) for a in sources for b in targets if a != _owner(b)]
        names = {*sources, *map(_owner, targets)}
        self._gates = {(a, b): LinkGate(rng) for a in names for b in names if a != b}
        self._servers: dict[Pair, asyncio.Server] = {}
        self._connections: dict[Pair, set[asyncio.Task[None]]] = {route: set() for route in self._routes}
        self._faults: list[LinkFault] = []

    async def start(self) -> None:
        """Listen on one free port per route."""
        for route in self._routes:
            self._servers[route] = await asyncio.start_server(self._acceptor(route), HOST, 0)

    async def close(self) -> None:
        """End all connections and stop listening. Idempotent."""
        for server in self._servers.values():
            server.close()
        tasks = [task for tasks in self._connections.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def connect(self, target: str, address: str) -> None:
        """Set the address of a target. Connections to a target without an address are reset."""
        self._targets[target] = address

    def addresses_of(self, source: str) -> dict[str, str]:
        """Return the addresses that `source` must connect to, by target."""
        return {
            target: f"{HOST}:{self._servers[a, target].sockets[0].getsockname()[1]}"
            for a, target in self._routes
            if a == source
        }

    # -- faults

    def begin(self, impairment: Impairment, pairs: Collection[Pair]) -> LinkFault:
        """Impair links, in addition to the faults in force. Raises ValueError for unknown links."""
        unknown = sorted(set(pairs) - set(self._gates))
        if unknown:
            raise ValueError(f"unknown links: {unknown}")
        before = {pair: self.counters(pair) for pair in pairs}
        fault = LinkFault(impairment, frozenset(pairs), before)
        self._faults.append(fault)
        self._apply(fault.pairs)
        if impairment.reset:
            self._reset(fault.pairs)
        return fault

    def end(self, fault: LinkFault) -> LinkCounters:
        """End one fault. Returns the sum of its links' counters since the fault started."""
        self._faults.remove(fault)
        done = self.since(fault)
        if fault.impairment.hang:
            # Swallowed data is lost, and a stream with a gap must not continue.
            self._reset(fault.pairs)
        self._apply(fault.pairs)
        return done

    def heal(self) -> None:
        """End all faults."""
        for fault in list(self._faults):
            self.end(fault)

    def since(self, fault: LinkFault) -> LinkCounters:
        """Return the sum of the counters of the fault's links since it started."""
        return LinkCounters.total(self.counters(pair) - fault.before[pair] for pair in fault.pairs)

    def counters(self, pair: Pair) -> LinkCounters:
        """Return a copy of a link's counters since the start."""
        return self._gates[pair].counters.copy()

    @property
    def faults(self) -> Sequence[LinkFault]:
        """Faults in force, oldest first."""
        return tuple(self._faults)

    # -- inside

    def _apply(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            impairments = [fault.impairment for fault in self._faults if pair in fault.pairs]
            self._gates[pair].set(combined(impairments) if impairments else CLEAR)

    def _reset(self, pairs: Collection[Pair]) -> None:
        """Break the connections that use any of these links, in either direction."""
        for a, b in self._routes:
            there = (a, _owner(b))
            if there in pairs or there[::-1] in pairs:
                for task in self._connections[a, b]:
                    self._gates[there].counters.resets += 1
                    task.cancel()

    def _acceptor(self, route: Pair) -> _Acceptor:
        source, target = route
        return _Acceptor(
            self._connections[route],
            self._gates[source, _owner(target)],
            self._gates[_owner(target), source],
            lambda: self._targets[target],
        )


def _owner(target: str) -> str:
    """Return the node that owns the port."""
    return target.partition("/")[0]


class _Acceptor:
    """Accepts connections of one route and runs each as a task."""

    def __init__(
        self,
        connections: set[asyncio.Task[None]],
        there: LinkGate,
        back: LinkGate,
        address: Callable[[], str],
    ) -> None:
        self._connections = connections
        self._there, self._back = there, back
        self._address = address

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding = ProxiedConnection(reader, writer, self._there, self._back)
        if len(self._connections) >= MAX_CONNECTIONS or self._there.impairment.reset:
            self._there.counters.resets += 1
            forwarding.abort()
            return
        self._there.counters.connections += 1
        task = asyncio.get_running_loop().create_task(self._run(forwarding))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _run(self, forwarding: ProxiedConnection) -> None:
        try:
            with suppress(OSError):
                host, _, port = self._address().rpartition(":")
                if port:
                    await forwarding.run(host, int(port))
        finally:
            forwarding.abort()


_PIECE = 64 << 10
#: Limit on delayed data per direction of a connection. The sender keeps the rest, as in a network.
MAX_WAITING_BYTES = 1 << 20
_LINGER_NOT = struct.pack("ii", 1, 0)  # close() resets the connection


class ConnectionBroken(ConnectionError):
    """Raised when the impairment of the link breaks this connection."""


class LinkGate:
    """One directed link, shared by all connections that use it."""

    def __init__(self, rng: Random) -> None:
        self.impairment = CLEAR
        self.counters = LinkCounters()
        self._rng = rng
        self._changed = asyncio.Event()
        self._free_at = 0.0  # time at which the throttle permits the next piece

    def set(self, impairment: Impairment) -> None:
        """Change the impairment and wake up all waiters."""
        if impairment != self.impairment:
            self.impairment = impairment
            self._free_at = 0.0
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def is_clear(self) -> bool:
        return self.impairment is CLEAR or self.impairment == CLEAR

    async def until_open(self) -> None:
        """Wait while the link is cut."""
        if self.impairment.cut:
            self.counters.held += 1
            while self.impairment.cut:
                await self._changed.wait()

    def breaks(self) -> bool:
        """Draw whether this piece breaks its connection."""
        chance = self.impairment.reset_chance
        if chance and self._rng.random() < chance:
            self.counters.resets += 1
            return True
        return False

    async def until_due(self, arrived_at: float, size: int, last_at: float) -> float:
        """Wait until a piece may arrive, but not before the previous one, and return that time. A changed
        impairment applies immediately, also to waiting pieces."""
        loop = asyncio.get_running_loop()
        luck = self._rng.uniform(-1, 1)
        waited = False
        while True:
            impairment, now = self.impairment, loop.time()
            due = max(arrived_at + (impairment.delay_ms + luck * impairment.jitter_ms) / 1000, last_at)
            if impairment.bytes_per_second:
                due = max(due, self._free_at)
            if due <= now:
                break
            waited = True
            with suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._changed.wait()
        if waited:
            self.counters.delayed += 1
        if impairment.bytes_per_second:
            self._free_at = max(now, self._free_at) + size / impairment.bytes_per_second
        return now


class ProxiedConnection:
    """An accepted connection and the matching connection to the target."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: LinkGate, back: LinkGate
    ) -> None:
        self._reader, self._writer = reader, writer
        self._there, self._back = there, back
        self._target: asyncio.StreamWriter | None = None

    async def run(self, host: str, port: int) -> None:
        """Forward until both sides have ended or one has failed (OSError). Connecting requires both
        directions to be open."""
        while self._there.impairment.cut or self._back.impairment.cut:
            await self._there.until_open()
            await self._back.until_open()
        reader, self._target = await asyncio.open_connection(host, port)
        await _all_of(
            _Direction(self._reader, self._target, self._there).run(),
            _Direction(reader, self._writer, self._back).run(),
        )
        for writer in (self._writer, self._target):
            writer.close()

    def abort(self) -> None:
        """End both connections with a reset, unless they have ended."""
        for writer in (self._writer, self._target):
            if writer is not None and not writer.is_closing():
                sock = writer.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                writer.transport.abort()


class _Direction:
    """Forwards bytes from `reader` to `writer` through `gate`. Without an impairment they pass directly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: LinkGate) -> None:
        self._reader, self._writer, self._gate = reader, writer, gate
        #: (arrival time, piece), oldest first. The end is b"", or None after a reset.
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()  # a piece is waiting
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """Forward all bytes. Raises ConnectionError if a failure must be passed on to the other end, which
        must also pass through the gate."""
        await _all_of(self._read_all(), self._deliver_late())

    async def _read_all(self) -> None:
        gate, loop = self._gate, asyncio.get_running_loop()
        piece: bytes | None = b"-"
        while piece:
            try:
                piece = await self._reader.read(_PIECE)
            except OSError:
                piece = None
            if gate.impairment.hang and piece:
                gate.counters.swallowed += 1
            elif piece and gate.is_clear and not self._waiting:
                await self._pass(piece)
            else:
                self._waiting.append((loop.time(), piece))
                self._waiting_bytes += len(piece or b"")
                self._news.set()
                if self._waiting_bytes > MAX_WAITING_BYTES:
                    self._room.clear()
                await self._room.wait()

    async def _deliver_late(self) -> None:
        gate, last_at = self._gate, 0.0
        while True:
            await self._news.wait()
            arrived_at, piece = self._waiting[0]
            await gate.until_open()
            last_at = await gate.until_due(arrived_at, len(piece or b""), last_at)
            await gate.until_open()
            if piece is None or gate.breaks():
                raise ConnectionBroken("reset")
            if not piece:
                with suppress(OSError):
                    self._writer.write_eof()
                return
            await self._pass(piece)
            self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            if not self._waiting:
                self._news.clear()
            if self._waiting_bytes <= MAX_WAITING_BYTES:
                self._room.set()

    async def _pass(self, piece: bytes) -> None:
        # If the receiver has disconnected, the opposite direction detects and reports it through its own
        # gate.
        if self._writer.is_closing():
            return
        with suppress(OSError):
            self._writer.write(piece)
            await self._writer.drain()
            self._gate.counters.passed += 1
            self._gate.counters.passed_bytes += len(piece)


async def _all_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines. The first error cancels the other coroutines and is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
