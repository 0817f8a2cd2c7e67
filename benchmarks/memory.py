"""Measure the memory of the nodes under the batch load, and its growth."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from benchmarks import ours
from benchmarks.common import BODY_SIZE, RESULTS, Row, say, scratch, slope

LONG_SECONDS = 600.0
MOST_MIB = 200.0
#: Maximum growth in MiB within ten minutes, at the slope of the second half, that counts as flat.
MOST_GROWTH_MIB = 20.0
_SAMPLE_SECONDS = 0.5
#: Share of the free disk space that may be filled; the load is slowed down to fit.
_DISK_SHARE = 0.4


def resident_mib(pid: int) -> float:
    """Return the resident memory without file pages, which the kernel can reclaim."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return (int(fields["RssAnon"].split()[0]) + int(fields["RssShmem"].split()[0])) / 1024


async def run(seconds: float) -> AsyncGenerator[Row]:
    with scratch("memory") as folder:
        async with ours.running(folder) as system:
            pids = {node: system.cluster.process(node).pid or 0 for node in system.cluster.node_ids}
            samples: dict[str, list[tuple[float, float]]] = {node: [] for node in pids}
            rate = await _load(system, seconds, pids, samples)
    worst = max(mib for points in samples.values() for _, mib in points)
    slopes = {node: slope(points[len(points) // 2 :]) for node, points in samples.items()}
    growth = 600 * max(slopes.values())
    long = seconds >= LONG_SECONDS
    yield Row(
        "memory of a node, batch load",
        f"at most {worst:.0f} MiB",
        f"<= {MOST_MIB:.0f} MiB" + (", flat over 10 minutes" if long else ""),
        worst <= MOST_MIB and (not long or growth <= MOST_GROWTH_MIB),
        f"{seconds:.0f} s at {rate:,.0f} entries/s; slope of the second half "
        f"{60 * max(slopes.values()):+.1f} MiB a minute",
        {"max_mib": worst, "mib_per_second": slopes, "samples": samples, "rate": rate},
    )


async def _load(
    system: ours.Dledger, seconds: float, pids: dict[str, int], samples: dict[str, list[tuple[float, float]]]
) -> float:
    """Run the load and sample memory. Return entries per second."""
    free = shutil.disk_usage(RESULTS).free
    most_entries = _DISK_SHARE * free / len(pids) / BODY_SIZE
    started = time.perf_counter()
    until = started + seconds
    entries = 0

    async def loop() -> None:
        nonlocal entries
        while (now := time.perf_counter()) < until:
            ahead = entries - most_entries * (now - started) / seconds
            if ahead > 0:  # an unlimited load would fill the disk
                await asyncio.sleep(min(until - now, ahead * seconds / most_entries))
                continue
            stored = await system.bulk()
            entries += stored

    loops = [asyncio.create_task(loop()) for _ in range(ours.BATCHES_IN_FLIGHT)]
    next_report = started + 60
    while (now := time.perf_counter()) < until:
        for node, pid in pids.items():
            samples[node].append((now - started, resident_mib(pid)))
        if now > next_report:
            next_report += 60
            say(f"memory: {now - started:.0f} s, {max(s[-1][1] for s in samples.values()):.0f} MiB")
        await asyncio.sleep(min(_SAMPLE_SECONDS, max(0.0, until - now)))
    await asyncio.gather(*loops)
    return entries / seconds
