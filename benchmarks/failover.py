"""Kill the leader under load, and measure the time until the next append is acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from benchmarks import ours
from benchmarks.common import BODY, Row, percentile, say, scratch
from dledger.errors import DLedgerError

KILLS = 30
MOST_P50_MS = 400.0
MOST_MS = 2000.0
_IN_FLIGHT = 8
_SETTLE_SECONDS = 60.0
_DATA_FILE_SIZE = 64 << 20


class _Watch:
    """Appends continuously, and records when an entry of a newer term is acknowledged."""

    def __init__(self, system: ours.Dledger) -> None:
        self._client = system.client
        self.term = 0
        self.acknowledged = 0
        self.ended = False
        self._newer: asyncio.Future[float] | None = None

    def next_leader(self) -> asyncio.Future[float]:
        """Return the future time of the first acknowledged append in a later term."""
        self._newer = asyncio.get_running_loop().create_future()
        return self._newer

    async def loop(self) -> None:
        while not self.ended:
            try:
                result = await self._client.append(BODY)
            except DLedgerError as error:
                say(f"failover: an append failed: {error}")
                continue
            self.acknowledged += 1
            if result.term > self.term:
                self.term = result.term
                if self._newer is not None and not self._newer.done():
                    self._newer.set_result(time.perf_counter())


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Run the benchmark. `seconds` is ignored, because the number of kills is fixed."""
    gaps: list[float] = []
    with scratch("failover") as folder:
        async with ours.running(folder, data_file_size=_DATA_FILE_SIZE) as system:
            watch = _Watch(system)
            loops = [asyncio.create_task(watch.loop()) for _ in range(_IN_FLIGHT)]
            for number in range(KILLS):
                gaps.append(await _kill_once(system, watch))
                say(f"failover: kill {number + 1} of {KILLS}: {gaps[-1]:.0f} ms")
            watch.ended = True
            await asyncio.gather(*loops)
    p50, worst = percentile(gaps, 0.5), max(gaps)
    yield Row(
        f"failover, {KILLS} kills of the leader",
        f"p50 {p50:.0f} ms, max {worst:.0f} ms",
        f"p50 <= {MOST_P50_MS:.0f}, max <= {MOST_MS:.0f} ms",
        p50 <= MOST_P50_MS and worst <= MOST_MS,
        f"p90 {percentile(gaps, 0.9):.0f} ms; {watch.acknowledged:,} appends acknowledged meanwhile",
        {"p50_ms": p50, "max_ms": worst, "gaps_ms": gaps},
    )


async def _kill_once(system: ours.Dledger, watch: _Watch) -> float:
    """Kill the leader, measure, restart it, and wait until its lag is small. Return the gap in ms."""
    cluster = system.cluster
    leader = await asyncio.to_thread(cluster.wait_for_leader)
    acknowledged = watch.next_leader()
    started = time.perf_counter()
    await asyncio.to_thread(cluster.kill, leader.node_id)
    gap = 1000 * (await asyncio.wait_for(acknowledged, _SETTLE_SECONDS) - started)
    await asyncio.to_thread(cluster.start_node, leader.node_id)
    await asyncio.to_thread(_wait_until_in_step, system)
    return gap


def _wait_until_in_step(system: ours.Dledger) -> None:
    """Wait until both followers are connected to the leader and lag by less than 1000 entries."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        for node_id in system.cluster.node_ids:
            status = system.cluster.node_status(node_id)
            if status is not None and status.is_leader:
                followers = status.followers
                if len(followers) == 2 and all(f.connected and f.lag_entries < 1000 for f in followers):
                    return
        time.sleep(0.05)
    raise TimeoutError(f"a follower is missing or lags after {_SETTLE_SECONDS:g} s")
