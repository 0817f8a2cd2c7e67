"""Measure the cost of tracing chaos runs by loading a traced and an untraced cluster in turns.

Both clusters run throughout, so both see the same machine. A pair of turns loads each cluster briefly; the
order alternates between pairs. The result is the median of the ratios within pairs, because a pair is short
enough for the machine's speed to stay constant. Two identical clusters can differ by some percent for their
whole lifetime, so both are replaced after some pairs. The load equals that of a chaos run, including consumer
groups for the broker. The log has no readers, because a reader would start with the data of all earlier
turns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common import Row, cpu_seconds, say, scratch
from chaos.cluster.cluster import ChaosCluster
from chaos.cluster.node_configs import ClusterVariant
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.broker import BrokerWorkload
from chaos.workloads.log import LogWorkload
from chaos.workloads.spec import LoadSpec, Setting, Workload

MOST_PERCENT = 10.0
_ROUNDS = 4  # each with new clusters
_PAIRS = 4  # per round
#: Length of a turn, as a share of the duration given for the benchmark.
_TURN_SHARE = 1 / 3
_WARM_UP_S = 0.5
_SPEC = LoadSpec(readers=0)
_KINDS: tuple[ClusterVariant, ...] = ("log", "broker")


class _Silent(TraceWriter):
    """Trace writer that discards all events."""

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        return


class _Turn(NamedTuple):
    rate: float  # acknowledged messages per second
    cpu_us: float  # CPU time of nodes and clients per message


class _Side:
    """One of the two clusters."""

    def __init__(self, folder: Path, kind: ClusterVariant, *, traced: bool) -> None:
        self.turns: list[_Turn] = []
        self._folder = folder
        self._kind = kind
        self._traced = traced

    async def start(self) -> ChaosCluster:
        self._cluster = await ChaosCluster.create(
            self._folder, kind=self._kind, rng=Random(1), trace_run="bench" if self._traced else None
        )
        return self._cluster

    async def turn(self, seconds: float) -> None:
        """Load the cluster for `seconds` after a warm-up; record rate and CPU time."""
        number, writers = len(self.turns), list[TraceWriter]()

        def new_writer(src: str) -> TraceWriter:
            kind = TraceWriter if self._traced else _Silent
            writers.append(kind(self._folder / f"turn-{number}", "bench", src))
            return writers[-1]

        setting = Setting(_SPEC, Random(number), new_writer)
        workload = self._workload(setting)
        await workload.prepare()
        stop, drained = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as load:
            load.create_task(workload.write(stop))
            load.create_task(workload.read(stop, drained))
            await asyncio.sleep(_WARM_UP_S)
            acknowledged, cpu, began = setting.tally.acknowledged, self._cpu(), time.perf_counter()
            await asyncio.sleep(seconds)
            acknowledged = setting.tally.acknowledged - acknowledged
            took, cpu = time.perf_counter() - began, self._cpu() - cpu
            stop.set()
            drained.set()
        await workload.close()
        for writer in writers:
            writer.close()
        self.turns.append(_Turn(acknowledged / took, 1e6 * cpu / max(1, acknowledged)))

    def _workload(self, setting: Setting) -> Workload:
        if self._kind == "broker":
            return BrokerWorkload(setting, self._cluster.namesrv)
        return LogWorkload(setting, lambda: self._cluster.addresses, self._cluster.local.plan.group)

    def _cpu(self) -> float:
        """Return the CPU seconds that all nodes and this process have used so far."""
        pids = [self._cluster.local.process(node_id).pid for node_id in self._cluster.node_ids]
        return time.process_time() + sum(cpu_seconds(pid) for pid in pids if pid is not None)


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Run the benchmark. Each turn takes a third of `seconds`."""
    logging.getLogger().addHandler(
        logging.NullHandler()
    )  # consumers log failures of handlers, which are intended
    for kind in _KINDS:
        yield await _measure(kind, seconds * _TURN_SHARE)


async def _measure(kind: ClusterVariant, seconds: float) -> Row:
    plain, traced = list[_Turn](), list[_Turn]()
    for number in range(_ROUNDS):
        with scratch("chaos-tracing") as folder:
            sides = [_Side(folder / str(on), kind, traced=on) for on in (False, True)]
            ordered = sides if number % 2 else sides[::-1]
            async with AsyncExitStack() as clusters:
                for side in ordered:
                    await clusters.enter_async_context(await side.start())
                for pair in range(_PAIRS):
                    say(f"chaos-tracing: {kind}, pair {number * _PAIRS + pair + 1} of {_ROUNDS * _PAIRS}")
                    for side in ordered if pair % 2 else ordered[::-1]:
                        await side.turn(seconds)
            plain += sides[0].turns
            traced += sides[1].turns
    return _row(kind, plain, traced)


def _row(kind: ClusterVariant, plain: list[_Turn], traced: list[_Turn]) -> Row:
    lost = [100 * (1 - on.rate / off.rate) for off, on in zip(plain, traced, strict=True)]
    more = [100 * (on.cpu_us / off.cpu_us - 1) for off, on in zip(plain, traced, strict=True)]
    rates = [median(one.rate for one in side) for side in (traced, plain)]
    costs = [median(one.cpu_us for one in side) for side in (traced, plain)]
    return Row(
        f"tracing a chaos run, {kind}",
        f"{median(lost):.1f} % of throughput, {median(more):+.1f} % CPU per message",
        f"<= {MOST_PERCENT:.0f} %",
        median(lost) <= MOST_PERCENT,
        f"{rates[0]:,.0f} of {rates[1]:,.0f} messages/s, CPU {costs[0]:.0f} instead of {costs[1]:.0f} us "
        f"each; medians of {len(lost)} pairs of turns ({min(lost):.0f} to {max(lost):.0f} % of throughput)",
        {"lost_percent": lost, "more_cpu_percent": more, "plain": plain, "traced": traced},
    )
