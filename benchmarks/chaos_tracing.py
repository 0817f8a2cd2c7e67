"""What the traces of chaos runs cost: a cluster that is traced and one that is not, loaded in turns.

Both run all the time, so that the machine is the same for both, and only one of them is loaded, for a moment;
each is first in every other pair. What counts is the median of the ratios in pairs: a pair is over before a
machine that others keep busy has become another one. After some pairs two new clusters take over, as two of
the same kind differ by some percent as long as they live. The load is that of a run, groups of brokers
included; on a log nobody reads, as readers would begin with what all turns before have written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common import Row, cpu_seconds, say, scratch
from chaos.cluster.cluster import ChaosCluster, Kind
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.broker import BrokerWorkload
from chaos.workloads.log import LogWorkload
from chaos.workloads.spec import LoadSpec, Setting, Workload

MOST_PERCENT = 10.0
_ROUNDS = 4  # each with clusters of its own
_PAIRS = 4  # in each
#: Of what is asked for each figure, a turn takes this part.
_TURN_SHARE = 1 / 3
_WARM_UP_S = 0.5
_SPEC = LoadSpec(readers=0)
_KINDS: tuple[Kind, ...] = ("log", "broker")


class _Silent(TraceWriter):
    """Writes nothing."""

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        return


class _Turn(NamedTuple):
    rate: float  # acknowledged messages per second
    cpu_us: float  # of nodes and clients, for each of them


class _Side:
    """One of the two clusters."""

    def __init__(self, folder: Path, kind: Kind, *, traced: bool) -> None:
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
        """Load for so long, after a moment to warm up, and note what it gave and cost."""
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
        for one in writers:
            one.close()
        self.turns.append(_Turn(acknowledged / took, 1e6 * cpu / max(1, acknowledged)))

    def _workload(self, setting: Setting) -> Workload:
        if self._kind == "broker":
            return BrokerWorkload(setting, self._cluster.namesrv)
        return LogWorkload(setting, self._cluster.addresses, self._cluster.local.plan.group)

    def _cpu(self) -> float:
        """Seconds so far of all nodes and of this process."""
        pids = [self._cluster.local.process(node_id).pid for node_id in self._cluster.node_ids]
        return time.process_time() + sum(cpu_seconds(pid) for pid in pids if pid is not None)


async def run(seconds: float) -> list[Row]:
    """A third of `seconds` for each turn."""
    logging.getLogger().addHandler(logging.NullHandler())  # handlers fail on purpose, which consumers log
    return [await _measure(kind, seconds * _TURN_SHARE) for kind in _KINDS]


async def _measure(kind: Kind, seconds: float) -> Row:
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


def _row(kind: Kind, plain: list[_Turn], traced: list[_Turn]) -> Row:
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
