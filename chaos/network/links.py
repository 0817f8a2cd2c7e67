"""The network between nodes, as proxies on loopback: every directed link can be hurt alone, without root.

A node is configured to reach each other member at an address of ours, and we forward to the real one::

    links = Links(sources=["n1", "n2"], targets={"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}, rng=Random(1))
    await links.start()
    links.addresses_of("n1")                     # {"n2": "127.0.0.1:40001"}
    fault = links.begin(Impairment(cut=True), [("n1", "n2")])
    links.end(fault)

A target may have several ports: `n1/ha` is one of n1, and shares its links.

The link (a, b) is what a *says* to b, whoever connected: requests on a's connections to b, and answers on b's
connections to a. So a one-way cut is one as of a firewall: b hears nothing of a, and a still hears b.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Self

from chaos.network.impairment import CLEAR, Impairment, LinkCounters, combined
from chaos.network.proxy import Forwarding, LinkGate
from chaos.network.topology import Pair

HOST = "127.0.0.1"
#: Connections of one link that are open or waiting; more are reset, and counted.
MAX_CONNECTIONS = 64


@dataclass(slots=True, eq=False)
class LinkFault:
    """One fault in force: what it does, to which links, and what these had carried when it began."""

    impairment: Impairment
    pairs: frozenset[Pair]
    before: Mapping[Pair, LinkCounters] = field(default_factory=dict)


class Links:
    """All directed links from `sources` to `targets` (name -> address). Belongs to one event loop."""

    def __init__(self, sources: Sequence[str], targets: Mapping[str, str], rng: Random) -> None:
        self._targets = dict(targets)
        self._routes = [(a, b) for a in sources for b in targets if a != _owner(b)]
        names = {*sources, *map(_owner, targets)}
        self._gates = {(a, b): LinkGate(rng) for a in names for b in names if a != b}
        self._servers: dict[Pair, asyncio.Server] = {}
        self._connections: dict[Pair, set[asyncio.Task[None]]] = {route: set() for route in self._routes}
        self._faults: list[LinkFault] = []

    async def start(self) -> None:
        """Listen, one free port per route."""
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

    def addresses_of(self, source: str) -> dict[str, str]:
        """Where `source` has to connect to, by target."""
        return {
            target: f"{HOST}:{self._servers[a, target].sockets[0].getsockname()[1]}"
            for a, target in self._routes
            if a == source
        }

    # -- faults

    def begin(self, impairment: Impairment, pairs: Collection[Pair]) -> LinkFault:
        """Hurt these links, beside whatever hurts them already. ValueError for links that do not exist."""
        unknown = sorted(set(pairs) - set(self._gates))
        if unknown:
            raise ValueError(f"there are no links {unknown}")
        before = {pair: self.counters(pair) for pair in pairs}
        fault = LinkFault(impairment, frozenset(pairs), before)
        self._faults.append(fault)
        self._apply(fault.pairs)
        if impairment.reset:
            self._reset(fault.pairs)
        return fault

    def end(self, fault: LinkFault) -> LinkCounters:
        """End one fault; what its links did while it was in force, summed."""
        self._faults.remove(fault)
        done = self.since(fault)
        if fault.impairment.hang:
            # What was swallowed is lost: a stream with a hole in it must not go on.
            self._reset(fault.pairs)
        self._apply(fault.pairs)
        return done

    def heal(self) -> None:
        """End all faults."""
        for fault in list(self._faults):
            self.end(fault)

    def since(self, fault: LinkFault) -> LinkCounters:
        """What the links of `fault` did since it began, summed."""
        return LinkCounters.total(self.counters(pair) - fault.before[pair] for pair in fault.pairs)

    def counters(self, pair: Pair) -> LinkCounters:
        """A copy, since the start."""
        return self._gates[pair].counters.copy()

    @property
    def faults(self) -> Sequence[LinkFault]:
        """Those in force, oldest first."""
        return tuple(self._faults)

    # -- inside

    def _apply(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            impairments = [fault.impairment for fault in self._faults if pair in fault.pairs]
            self._gates[pair].set(combined(impairments) if impairments else CLEAR)

    def _reset(self, pairs: Collection[Pair]) -> None:
        """Break the connections that use any of these links, in either of their directions."""
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
            self._targets[target],
        )


def _owner(target: str) -> str:
    """Whose port it is."""
    return target.partition("/")[0]


class _Acceptor:
    """Of one route: makes each accepted connection a task."""

    def __init__(
        self, connections: set[asyncio.Task[None]], there: LinkGate, back: LinkGate, target: str
    ) -> None:
        self._connections = connections
        self._there, self._back = there, back
        self._host, _, port = target.rpartition(":")
        self._port = int(port)

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding = Forwarding(reader, writer, self._there, self._back)
        if len(self._connections) >= MAX_CONNECTIONS or self._there.impairment.reset:
            self._there.counters.resets += 1
            forwarding.abort()
            return
        self._there.counters.connections += 1
        task = asyncio.get_running_loop().create_task(self._run(forwarding))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _run(self, forwarding: Forwarding) -> None:
        try:
            with suppress(OSError):
                await forwarding.run(self._host, self._port)
        finally:
            forwarding.abort()
