"""Restart a follower with a large lag under load; measure its catch-up rate and the effect on clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from benchmarks import ours, yardsticks
from benchmarks.common import (
    BODY_SIZE,
    BenchError,
    Load,
    Operation,
    Row,
    closed_loops,
    percentile,
    say,
    scratch,
    warm,
)
from dledger.status.model import NodeStatus

BEHIND_BYTES = 512 << 20
LONG_BEHIND_BYTES = 2 << 30
LEAST_MB_PER_S = 100.0
LEAST_SHARE = 0.7
#: Rate of a bare stream on the machine for which LEAST_MB_PER_S was chosen.
_SET_STREAM_MB_PER_S = 1_100.0
_STREAM_SECONDS = 3.0
_POLL_SECONDS = 0.05
_LATE_SECONDS = 0.05
#: Lag below which the follower receives the regular pushes from memory instead of catch-up reads.
_NEAR_BYTES = 16 << 20
_GIVE_UP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Clients:
    """Client load during the whole benchmark."""

    name: str
    operation: Callable[[ours.Dledger], Operation]
    in_flight: int
    share: float = 1.0  # of the maximum rate; 1: unlimited


class _Timed:
    """Wraps an operation, records its latencies, and can limit its rate."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._latencies: list[float] = []
        self._between = 0.0
        self._next = 0.0

    def limit(self, rate: float) -> None:
        self._between = 1 / rate

    async def __call__(self) -> int:
        now = time.perf_counter()
        # Missed slots are skipped, not made up for.
        self._next = max(self._next + self._between, now - _LATE_SECONDS)
        if self._next > now:
            await asyncio.sleep(self._next - now)
        began = time.perf_counter()
        done = await self._operation()
        self._latencies.append(time.perf_counter() - began)
        return done

    def pop_latencies(self) -> str:
        """Return p50 and p99 in ms of the operations since the previous call."""
        latencies, self._latencies = self._latencies, []
        return f"{1000 * percentile(latencies, 0.5):.1f} (p99 {1000 * percentile(latencies, 0.99):.1f})"


#: Clients of batches may keep 70 % of their maximum rate, which is more than 100 MB/s. A follower that
#: receives
#: only 100 MB/s would never catch up with that load.
_CLIENTS = (
    _Clients("64 concurrent appends", lambda system: system.append, ours.APPENDS_IN_FLIGHT),
    _Clients("batches of 256, 8 in flight", lambda system: system.bulk, ours.BATCHES_IN_FLIGHT),
    _Clients("half of the appends it could take", lambda system: system.append, ours.APPENDS_IN_FLIGHT, 0.5),
)


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """Result of a catch-up, measured from the first stored bytes until the follower was near the end."""

    seconds: float
    stored_bytes: int
    entries: int  # acknowledged to clients meanwhile
    start_seconds: float  # from the start of the process to the first bytes
    cores: dict[str, float]  # average CPU use by process
    took: str  # latency of client operations, in ms

    @property
    def rate(self) -> float:
        """Catch-up rate in MB/s."""
        return self.stored_bytes / self.seconds / 1e6


class _Late:
    """Tracks the follower through the statuses of all nodes."""

    def __init__(self, system: ours.Dledger, node: str) -> None:
        self.node = node
        self._system = system
        self._address = system.cluster.plan.node(node).address

    async def positions(self) -> tuple[int, int]:
        """Return (end of its log, end of the committed log); -1: unknown."""
        statuses = (await self._system.client.status()).values()
        seen = [status for status in statuses if isinstance(status, NodeStatus)]
        own = next((s.ledger_end_pos for s in seen if s.address == self._address), -1)
        return own, max((s.committed_pos for s in seen), default=-1)

    async def wait(self, *, beyond: int = -1, near: bool = False) -> int:
        """Wait until its log extends beyond a position, and with `near` until its lag is small. Return its
        end.
        """
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        while time.perf_counter() < deadline:
            end, committed = await self.positions()
            if end > beyond and (not near or committed - end < _NEAR_BYTES):
                return end
            await asyncio.sleep(_POLL_SECONDS)
        raise BenchError(f"{self.node} did not catch up within {_GIVE_UP_SECONDS:g} s")


async def run(seconds: float, behind_bytes: int = BEHIND_BYTES) -> AsyncGenerator[Row]:
    # The second load nearly saturates the disks. The lag shrinks only by a quarter of the catch-up rate, so a
    # smaller lag suffices.
    for clients, behind in zip(
        _CLIENTS, (behind_bytes, min(behind_bytes, BEHIND_BYTES), behind_bytes), strict=True
    ):
        for row in await _under(clients, seconds, behind):
            yield row


async def _under(clients: _Clients, seconds: float, behind_bytes: int) -> list[Row]:
    with scratch("catchup") as folder:
        async with yardsticks.echo() as channel:
            stream = await yardsticks.one_way(channel, _STREAM_SECONDS)
        async with ours.running(folder) as system:
            operation, in_flight = _Timed(clients.operation(system)), clients.in_flight
            await warm(operation, in_flight)
            if clients.share < 1:
                most = await closed_loops(operation, in_flight, seconds)
                operation.limit(most.rate * clients.share)
            operation.pop_latencies()
            before = await closed_loops(operation, in_flight, seconds)
            took = operation.pop_latencies()
            leader = (await system.client.leader()).node_id
            late = _Late(system, next(n for n in system.cluster.node_ids if n != leader))
            await late.wait(near=True)
            had, _ = await late.positions()
            await asyncio.to_thread(system.cluster.stop_node, late.node)
            say(f"catchup: writing {behind_bytes >> 20} MiB that {late.node} will lack")
            await system.fill(behind_bytes // (BODY_SIZE + 48))
            without = await closed_loops(operation, in_flight, seconds)
            found = await _catch_up(system, late, had, operation, in_flight)
            after = await closed_loops(operation, in_flight, seconds)
    rows = _rows(clients.name, before, without, found, after, behind_bytes, took)
    return [*rows, _beside_stream(found, stream)]


async def _catch_up(
    system: ours.Dledger, late: _Late, had: int, operation: _Timed, in_flight: int
) -> _CatchUp:
    entries = 0
    going = True

    async def loop() -> None:
        nonlocal entries
        while going:
            stored = await operation()  # `entries += await ...` would read `entries` before the await
            entries += stored

    loops = [asyncio.create_task(loop()) for _ in range(in_flight)]
    started = time.perf_counter()
    try:
        await asyncio.to_thread(system.cluster.start_node, late.node)
        first = await late.wait(beyond=had)
        began, entries_then, cpu_then = time.perf_counter(), entries, _cpu_seconds(system)
        operation.pop_latencies()
        end = await late.wait(beyond=first, near=True)
        seconds = time.perf_counter() - began
        cores = {who: (used - cpu_then[who]) / seconds for who, used in _cpu_seconds(system).items()}
        acknowledged, took = entries - entries_then, operation.pop_latencies()
    finally:
        going = False
        await asyncio.gather(*loops)
    return _CatchUp(seconds, end - first, acknowledged, began - started, cores, took)


def _cpu_seconds(system: ours.Dledger) -> dict[str, float]:
    return {**system.node_cpu_seconds(), "clients": time.process_time()}


def _beside_stream(found: _CatchUp, stream: float) -> Row:
    share, asked = found.rate / stream, LEAST_MB_PER_S / _SET_STREAM_MB_PER_S
    return Row(
        "... and the rate relative to a bare stream of 1 MiB messages",
        f"{share:.2f} of its rate",
        f">= {asked:.2f}",
        share >= asked,
        f"bare stream {stream:,.0f} MB/s just before; {_SET_STREAM_MB_PER_S:,.0f} MB/s on the machine for "
        f"which the target of {LEAST_MB_PER_S:.0f} MB/s was chosen",
        {"share": share, "stream_mb_per_second": stream},
    )


def _rows(
    name: str, before: Load, without: Load, found: _CatchUp, after: Load, behind_bytes: int, took: str
) -> list[Row]:
    rate = found.rate
    clients = found.entries / found.seconds
    # The speed of the machine drifts during a run, so the middle is compared with the mean of both ends.
    alone = (before.rate + after.rate) / 2
    share = clients / alone
    behind = f"{behind_bytes / (1 << 30):g} GiB"
    cores = ", ".join(f"{who} {used:.2f}" for who, used in found.cores.items())
    return [
        Row(
            f"catch-up of a follower that is {behind} behind, under {name}",
            f"{rate:.0f} MB/s",
            f">= {LEAST_MB_PER_S:.0f} MB/s",
            rate >= LEAST_MB_PER_S,
            f"{found.stored_bytes / 1e6:,.0f} MB in {found.seconds:.1f} s, after {found.start_seconds:.1f} s "
            f"for its start; cores kept busy: {cores}",
            {
                "mb_per_second": rate,
                "seconds": found.seconds,
                "bytes": found.stored_bytes,
                "cores": found.cores,
            },
        ),
        Row(
            "... and the clients meanwhile",
            f"{100 * share:.0f} % of their throughput before and after",
            f">= {100 * LEAST_SHARE:.0f} %",
            share >= LEAST_SHARE,
            f"entries/s: {before.rate:,.0f} before, {without.rate:,.0f} without the follower, {clients:,.0f} "
            f"while it caught up, {after.rate:,.0f} afterwards "
            f"({100 * clients / before.rate:.0f} % of before, {100 * clients / after.rate:.0f} % of after); "
            f"p50 of operations: {took} ms before, {found.took} ms while it caught up",
            {
                "share": share,
                "share_of_before": clients / before.rate,
                "share_of_after": clients / after.rate,
                "before": before.rate,
                "without": without.rate,
                "during": clients,
                "after": after.rate,
            },
        ),
    ]
