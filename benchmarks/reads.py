"""Measure sequential reads from one node."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from benchmarks import ours
from benchmarks.common import Row, say, scratch

LEAST_RATE = 200_000
_ENTRIES = 500_000


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Read the same entries repeatedly. The page cache is warm, as it is for followers and
    tailing readers.
    """
    rates: list[float] = []
    with scratch("reads") as folder:
        async with ours.running(folder) as system:
            say(f"reads: appending {_ENTRIES:,} entries first")
            await system.fill(_ENTRIES)
            address = system.cluster.plan.node(system.leader_id).address
            await read_all(system, address, _ENTRIES)
            until = time.perf_counter() + seconds
            while len(rates) < 3 or time.perf_counter() < until:
                rates.append(await read_all(system, address, _ENTRIES))
    rate = sorted(rates)[len(rates) // 2]
    yield Row(
        "sequential read from one node",
        f"{rate:,.0f} entries/s",
        f">= {LEAST_RATE:,}/s",
        rate >= LEAST_RATE,
        f"median of {len(rates)} runs over {_ENTRIES:,} entries, {min(rates):,.0f} to {max(rates):,.0f}",
        {"rate": rate, "rates": rates},
    )


async def read_all(system: ours.Dledger, address: str, least: int) -> float:
    """Read the whole log linearizably, with checksums verified by the client. Return entries per second."""
    count = 0
    started = time.perf_counter()
    async for entries in system.client.read_chunks(server=address):
        count += len(entries)
    assert count >= least, f"read only {count} entries"
    return count / (time.perf_counter() - started)
