"""Measure the time until a restarted node with a log of 2 GiB serves reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from benchmarks import ours
from benchmarks.common import BODY_SIZE, BenchError, Row, percentile, say, scratch
from dledger.client import AsyncClient
from dledger.errors import DLedgerError

LOG_BYTES = 2 << 30
MOST_SECONDS = 3.0
_TIMES = 3
_GIVE_UP_SECONDS = 60.0


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Run the benchmark. `seconds` is ignored, because the number of restarts is fixed."""
    times: list[float] = []
    with scratch("restart") as folder:
        async with ours.running(folder) as system:
            say("restart: writing a log of 2 GiB first")
            await system.fill(LOG_BYTES // (BODY_SIZE + 48))
            last = (await system.client.leader()).committed_index
            node = next(n for n in system.cluster.node_ids if n != system.leader_id)
            for _ in range(_TIMES):
                times.append(await _restart_once(system, node, last))
                say(f"restart: {times[-1]:.2f} s")
    median = percentile(times, 0.5)
    yield Row(
        "restart with a log of 2 GiB",
        f"{median:.2f} s",
        f"<= {MOST_SECONDS:g} s",
        max(times) <= MOST_SECONDS,
        f"{_TIMES} times SIGKILL and start, {min(times):.2f} to {max(times):.2f} s from the start of the "
        "process until it serves its last entry",
        {"median_s": median, "times_s": times},
    )


async def _restart_once(system: ours.Dledger, node: str, last: int) -> float:
    """Kill and restart a node. Return the seconds until a linearizable read from it returns entry `last`."""
    await asyncio.to_thread(system.cluster.kill, node)
    started = time.perf_counter()
    await asyncio.to_thread(system.cluster.start_node, node)
    address = system.cluster.plan.node(node).address
    async with AsyncClient([address]) as client:
        while time.perf_counter() - started < _GIVE_UP_SECONDS:
            try:
                async for entry in client.read(last, 1, server=address, timeout=_GIVE_UP_SECONDS):
                    assert entry.index == last
                return time.perf_counter() - started
            except DLedgerError:
                await asyncio.sleep(0.02)
    raise BenchError(f"{node} does not serve {_GIVE_UP_SECONDS:g} s after its start")
