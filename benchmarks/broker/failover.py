"""Kill the master under load, and measure the time until the next message is acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from benchmarks.broker import brokers
from benchmarks.common import BODY, Row, percentile, say, scratch
from broker_adapter.client import Message
from broker_adapter.errors import BrokerError

KILLS = 30
MOST_P50_MS = 600.0
MOST_MS = 3000.0
MOST_WRITABLE_P50_MS = 50.0
_IN_FLIGHT = 8
_SETTLE_SECONDS = 60.0
_DATA_FILE_SIZE = 64 << 20


class _Watch:
    """Sends continuously, and records when a broker other than the killed one acknowledges a message."""

    def __init__(self, system: brokers.Brokers) -> None:
        self._producer = system.producer
        self.acknowledged = 0
        self.unknown = 0
        self.ended = False
        self._killed = ""
        self._acknowledged: asyncio.Future[float] | None = None

    def next_master(self, killed: str) -> asyncio.Future[float]:
        """Return the future time at which a node other than `killed` first acknowledges a message."""
        self._killed = killed
        self._acknowledged = asyncio.get_running_loop().create_future()
        return self._acknowledged

    async def loop(self) -> None:
        while not self.ended:
            try:
                result = await self._producer.send(Message(brokers.TOPIC, BODY, tags=brokers.TAG))
            except BrokerError:
                self.unknown += 1  # in flight when the master was killed
                continue
            self.acknowledged += 1
            waited = self._acknowledged
            if waited is None or waited.done():
                continue
            # Responses of the killed node may still be in the socket buffer. The response to a duplicate has
            # no
            # node id.
            if result.node_id not in ("", self._killed):
                waited.set_result(time.perf_counter())


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Run the benchmark. `seconds` is ignored, because the number of kills is fixed."""
    gaps: list[float] = []
    writable: list[float] = []
    with scratch("broker-failover") as folder:
        async with brokers.running(folder, data_file_size=_DATA_FILE_SIZE) as system:
            watch = _Watch(system)
            loops = [asyncio.create_task(watch.loop()) for _ in range(_IN_FLIGHT)]
            for number in range(KILLS):
                gap, took = await _kill_once(system, watch)
                gaps.append(gap)
                writable.append(took)
                say(
                    f"broker-failover: kill {number + 1} of {KILLS}: {gap:.0f} ms, of which from elected to "
                    f"writable {took:.0f} ms"
                )
            watch.ended = True
            await asyncio.gather(*loops)
    p50, worst, writable_p50 = percentile(gaps, 0.5), max(gaps), percentile(writable, 0.5)
    yield Row(
        f"failover of the broker, {KILLS} kills of the master",
        f"p50 {p50:.0f} ms, max {worst:.0f} ms",
        f"p50 <= {MOST_P50_MS:.0f}, max <= {MOST_MS:.0f} ms",
        p50 <= MOST_P50_MS and worst <= MOST_MS,
        f"p90 {percentile(gaps, 0.9):.0f} ms; {watch.acknowledged:,} messages acknowledged meanwhile, "
        f"{watch.unknown} with unknown outcome",
        {"p50_ms": p50, "max_ms": worst, "gaps_ms": gaps},
    )
    yield Row(
        "... from elected to writable",
        f"p50 {writable_p50:.0f} ms, max {max(writable):.0f} ms",
        f"p50 <= {MOST_WRITABLE_P50_MS:.0f} ms",
        writable_p50 <= MOST_WRITABLE_P50_MS,
        "from the status of the new masters",
        {"p50_ms": writable_p50, "took_ms": writable},
    )


async def _kill_once(system: brokers.Brokers, watch: _Watch) -> tuple[float, float]:
    """Kill the master once; return (ms to the next acknowledgement, ms from elected to writable).

    Restarts the node, and waits until all three nodes have dispatched all entries.
    """
    cluster = system.cluster
    leader = await asyncio.to_thread(cluster.wait_for_leader)
    acknowledged = watch.next_master(leader.node_id)
    began = time.perf_counter()
    await asyncio.to_thread(cluster.kill, leader.node_id)
    gap = 1000 * (await asyncio.wait_for(acknowledged, _SETTLE_SECONDS) - began)
    took = await asyncio.to_thread(_elected_to_writable_ms, system, leader.node_id)
    await asyncio.to_thread(cluster.start_node, leader.node_id)
    await asyncio.to_thread(system.wait_in_step)
    return gap, took


def _elected_to_writable_ms(system: brokers.Brokers, killed: str) -> float:
    for node in system.cluster.node_ids:
        shown = system.shown(node) if node != killed else {}
        if shown.get("writable"):
            return float(shown["role_change"]["elected_to_writable_ms"])
    raise TimeoutError("no broker reports that it is writable")
