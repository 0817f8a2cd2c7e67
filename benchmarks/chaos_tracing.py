"""What the traces of chaos runs cost: the same load on clusters that are traced and that are not, in turn."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common import Row, cpu_seconds, say, scratch
from chaos.cluster import ChaosCluster, Kind
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.broker import BrokerWorkload
from chaos.workloads.log import LogWorkload
from chaos.workloads.spec import LoadSpec, Setting, Workload

MOST_PERCENT = 10.0
_PAIRS = 5
_WARM_UP_S = 1.0


class _Silent(TraceWriter):
    """Writes nothing."""

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        return


class _Measured(NamedTuple):
    rate: float  # acknowledged messages per second
    cpu_us: float  # of nodes and clients, for each of them


async def run(seconds: float) -> list[Row]:
    """`seconds` for each cluster. Clusters are made anew, so that none has an older log than another."""
    rows = []
    kinds: tuple[Kind, ...] = ("log", "broker")
    for kind in kinds:
        with scratch("chaos-tracing") as folder:
            found: dict[bool, list[_Measured]] = {False: [], True: []}
            for number in range(_PAIRS):
                # Each is first in every other pair.
                for traced in (False, True) if number % 2 else (True, False):
                    say(f"chaos-tracing: {kind}, {'traced' if traced else 'not traced'}")
                    place = folder / f"{number}-{traced}"
                    found[traced].append(await _measure(place, kind, traced=traced, seconds=seconds))
        rows.append(_row(kind, found[False], found[True]))
    return rows


async def _measure(folder: Path, kind: Kind, *, traced: bool, seconds: float) -> _Measured:
    writer = TraceWriter if traced else _Silent
    writers: list[TraceWriter] = []

    def new_writer(src: str) -> TraceWriter:
        writers.append(writer(folder, "bench", src))
        return writers[-1]

    setting = Setting(LoadSpec(), Random(1), new_writer)
    cluster = await ChaosCluster.create(
        folder, kind=kind, rng=Random(1), trace_run="bench" if traced else None
    )
    async with cluster:
        workload: Workload = LogWorkload(setting, cluster.addresses, cluster.local.plan.group)
        if kind == "broker":
            workload = BrokerWorkload(setting, cluster.namesrv)
        await workload.prepare()
        stop = asyncio.Event()
        load = asyncio.create_task(workload.write(stop))
        await asyncio.sleep(_WARM_UP_S)
        acknowledged, cpu, began = setting.tally.acknowledged, _cpu(cluster), time.perf_counter()
        await asyncio.sleep(seconds)
        acknowledged = setting.tally.acknowledged - acknowledged
        took, cpu = time.perf_counter() - began, _cpu(cluster) - cpu
        stop.set()
        await load
        await workload.close()
    for one in writers:
        one.close()
    return _Measured(acknowledged / took, 1e6 * cpu / max(1, acknowledged))


def _cpu(cluster: ChaosCluster) -> float:
    """Seconds so far of all nodes and of this process."""
    pids = [cluster.local.process(node_id).pid for node_id in cluster.node_ids]
    return time.process_time() + sum(cpu_seconds(pid) for pid in pids if pid is not None)


def _row(kind: Kind, plain: list[_Measured], traced: list[_Measured]) -> Row:
    lost = 100 * (1 - median(one.rate for one in traced) / median(one.rate for one in plain))
    cpu, cpu_plain = (median(one.cpu_us for one in side) for side in (traced, plain))
    return Row(
        f"tracing a chaos run, {kind}",
        f"{lost:.1f} % of throughput",
        f"<= {MOST_PERCENT:.0f} %",
        lost <= MOST_PERCENT,
        f"{median(one.rate for one in traced):,.0f} of {median(one.rate for one in plain):,.0f} messages/s; "
        f"CPU {cpu:.0f} instead of {cpu_plain:.0f} us each ({100 * (cpu / cpu_plain - 1):+.1f} %); "
        f"medians of {len(plain)} runs of both in turn",
        {"lost_percent": lost, "plain": plain, "traced": traced},
    )
