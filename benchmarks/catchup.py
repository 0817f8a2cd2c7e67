"""A follower that is far behind comes back under full load: how fast it catches up, and what that costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
#: What a bare stream made where that rate was set.
_SET_STREAM_MB_PER_S = 1_100.0
_STREAM_SECONDS = 3.0
_POLL_SECONDS = 0.05
_LATE_SECONDS = 0.05
#: Nearer than this to the leader's end it gets what is pushed to all, from memory.
_NEAR_BYTES = 16 << 20
_GIVE_UP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Clients:
    """What clients do meanwhile, all the time."""

    name: str
    operation: Callable[[ours.Dledger], Operation]
    in_flight: int
    share: float = 1.0  # of what they could do; 1: as fast as it goes


class _Timed:
    """An operation that tells how long it takes, and is done at most so many times a second."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._latencies: list[float] = []
        self._between = 0.0
        self._next = 0.0

    def limit(self, rate: float) -> None:
        self._between = 1 / rate

    async def __call__(self) -> int:
        now = time.perf_counter()
        # What could not be done in time is not made up for.
        self._next = max(self._next + self._between, now - _LATE_SECONDS)
        if self._next > now:
            await asyncio.sleep(self._next - now)
        began = time.perf_counter()
        done = await self._operation()
        self._latencies.append(time.perf_counter() - began)
        return done

    def told(self) -> str:
        """What operations took since this was asked last."""
        found, self._latencies = self._latencies, []
        return f"{1000 * percentile(found, 0.5):.1f} (p99 {1000 * percentile(found, 0.99):.1f})"


#: 70 % of what batches append at most are more than 100 MB/s where that was asked for: a follower that got no
#: more would never arrive.
_CLIENTS = (
    _Clients("64 concurrent appends", lambda system: system.append, ours.APPENDS_IN_FLIGHT),
    _Clients("batches of 256, 8 in flight", lambda system: system.bulk, ours.BATCHES_IN_FLIGHT),
    _Clients("half of the appends it could take", lambda system: system.append, ours.APPENDS_IN_FLIGHT, 0.5),
)


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """From the first bytes that the follower stored until it was near the end of the log."""

    seconds: float
    stored_bytes: int
    entries: int  # of clients, acknowledged meanwhile
    start_seconds: float  # from the start of its process to the first bytes
    cores: dict[str, float]  # that each process kept busy
    took: str  # ms, what clients did

    @property
    def rate(self) -> float:
        """MB/s."""
        return self.stored_bytes / self.seconds / 1e6


class _Late:
    """The follower, as the others' statuses and its own show it."""

    def __init__(self, system: ours.Dledger, node: str) -> None:
        self.node = node
        self._system = system
        self._address = system.cluster.plan.node(node).address

    async def look(self) -> tuple[int, int]:
        """(the end of its log, the end of what is committed); -1 for what nobody says."""
        found = (await self._system.client.status()).values()
        seen = [status for status in found if isinstance(status, NodeStatus)]
        own = next((s.ledger_end_pos for s in seen if s.address == self._address), -1)
        return own, max((s.committed_pos for s in seen), default=-1)

    async def wait(self, *, beyond: int = -1, near: bool = False) -> int:
        """Until its log ends beyond a position, or near the end of the leader's. Its end."""
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        while time.perf_counter() < deadline:
            end, committed = await self.look()
            if end > beyond and (not near or committed - end < _NEAR_BYTES):
                return end
            await asyncio.sleep(_POLL_SECONDS)
        raise BenchError(f"{self.node} did not catch up within {_GIVE_UP_SECONDS:g} s")


async def run(seconds: float, behind_bytes: int = BEHIND_BYTES) -> list[Row]:
    rows = await _under(_CLIENTS[0], seconds, behind_bytes)
    # Under a load that the disks hardly bear it comes nearer by a quarter of that only: it need not be far.
    rows += await _under(_CLIENTS[1], seconds, min(behind_bytes, BEHIND_BYTES))
    return rows + await _under(_CLIENTS[2], seconds, behind_bytes)


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
            operation.told()
            before = await closed_loops(operation, in_flight, seconds)
            took = operation.told()
            leader = (await system.client.leader()).node_id
            late = _Late(system, next(n for n in system.cluster.node_ids if n != leader))
            await late.wait(near=True)
            had, _ = await late.look()
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
            stored = await operation()  # not in one line: that would add to what was known before
            entries += stored

    loops = [asyncio.create_task(loop()) for _ in range(in_flight)]
    started = time.perf_counter()
    try:
        await asyncio.to_thread(system.cluster.start_node, late.node)
        first = await late.wait(beyond=had)
        began, entries_then, cpu_then = time.perf_counter(), entries, _cpu_seconds(system)
        operation.told()
        end = await late.wait(beyond=first, near=True)
        seconds = time.perf_counter() - began
        cores = {who: (used - cpu_then[who]) / seconds for who, used in _cpu_seconds(system).items()}
        acknowledged, took = entries - entries_then, operation.told()
    finally:
        going = False
        await asyncio.gather(*loops)
    return _CatchUp(seconds, end - first, acknowledged, began - started, cores, took)


def _cpu_seconds(system: ours.Dledger) -> dict[str, float]:
    return {**system.node_cpu_seconds(), "clients": time.process_time()}


def _beside_stream(found: _CatchUp, stream: float) -> Row:
    share, asked = found.rate / stream, LEAST_MB_PER_S / _SET_STREAM_MB_PER_S
    return Row(
        "... and the rate beside a bare stream of 1 MiB messages",
        f"{share:.2f} of its rate",
        f">= {asked:.2f}",
        share >= asked,
        f"the stream alone made {stream:,.0f} MB/s just before; {_SET_STREAM_MB_PER_S:,.0f} where "
        f"{LEAST_MB_PER_S:.0f} were asked for",
        {"share": share, "stream_mb_per_second": stream},
    )


def _rows(
    name: str, before: Load, without: Load, found: _CatchUp, after: Load, behind_bytes: int, took: str
) -> list[Row]:
    rate = found.rate
    clients = found.entries / found.seconds
    # What a machine gives drifts within such a run: its middle is held against both ends.
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
            f"({100 * clients / before.rate:.0f} % of before, {100 * clients / after.rate:.0f} % of that); "
            f"p50 of what they did: {took} ms before, {found.took} ms while it caught up",
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
