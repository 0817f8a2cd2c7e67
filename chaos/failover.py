"""Measures how long a cluster has no leader that acknowledges appends after a fault of its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

from chaos.cluster.cluster import ChaosCluster
from chaos.faults.faults import Fault, Kill, NetworkFault, PauseProcesses
from chaos.network.impairment import Impairment
from chaos.network.topology import isolate
from chaos.trace.writer import TraceWriter
from chaos.workloads.log import LogWorkload
from chaos.workloads.spec import LoadSpec, Setting
from dledger.client import AsyncClient
from dledger.errors import ConfigError, DLedgerError

How = Literal["kill", "stop", "isolate", "transfer"]
HOWS: tuple[str, ...] = get_args(How)
_OUTAGE_S = 30.0
_POLL_S = 0.005
_LOAD = LoadSpec(clients=2, at_once=4, max_batch=1, readers=0)


@dataclass(frozen=True, slots=True)
class Outage:
    """Time in ns from the fault to the first append that the next leader acknowledged; -1 if none was
    acknowledged in time."""

    victim: str
    old_term: int
    new_term: int
    duration_ns: int


class FailoverMeasurement:
    """Injects `kills` faults on the leader under load, one at a time. `note` receives each measurement."""

    def __init__(
        self,
        run_directory: Path,
        *,
        kills: int,
        how: How,
        nodes: int = 3,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        note: Callable[[Outage], None] = lambda outage: None,
    ) -> None:
        """Prepare a measurement. `settings`: additional keys of every node's configuration."""
        if run_directory.exists() and any(run_directory.iterdir()):
            raise ConfigError(f"{run_directory} is not empty; use an empty or new directory")
        self._directory = run_directory
        self._kills = kills
        self._how = how
        self._nodes = nodes
        self._rng = Random(seed)
        self._settings = settings
        self._note = note
        self._writers: list[TraceWriter] = []

    async def run(self) -> list[Outage]:
        self._directory.mkdir(parents=True, exist_ok=True)
        cluster = await ChaosCluster.create(
            self._directory, nodes=self._nodes, rng=self._rng, settings=self._settings
        )
        setting = Setting(_LOAD, self._rng, self._new_writer)
        stop, outages = asyncio.Event(), []
        try:
            async with cluster:
                workload = LogWorkload(setting, lambda: cluster.addresses, cluster.local.plan.group)
                load = asyncio.create_task(workload.write(stop))
                try:
                    for _ in range(self._kills):
                        outage = await self._measure(cluster, setting)
                        outages.append(outage)
                        self._note(outage)
                finally:
                    stop.set()
                    await asyncio.wait([load], timeout=_OUTAGE_S)
                    load.cancel()
                    await asyncio.gather(load, return_exceptions=True)
        finally:
            for writer in self._writers:
                writer.close()
        return outages

    async def _measure(self, cluster: ChaosCluster, setting: Setting) -> Outage:
        leader = await cluster.wait_healthy()
        loop, tally = asyncio.get_running_loop(), setting.tally
        while leader.term not in tally.first_of_term:  # the load follows this leader
            await asyncio.sleep(_POLL_S)
        # Vary the phase relative to the heartbeats.
        await asyncio.sleep(self._rng.uniform(0.1, 0.4))
        began = self._writers[0].now()
        fault = self._fault(cluster, leader.node_id)
        if fault is None:
            began = await self._transfer(cluster, leader.node_id)
        elif not (await fault.begin()).happened:
            raise ConfigError(f"{self._how} had no effect on {leader.node_id}")
        deadline = loop.time() + _OUTAGE_S
        later: list[int] = []
        while not later and loop.time() < deadline:
            later = sorted(term for term in tally.first_of_term if term > leader.term)
            await asyncio.sleep(_POLL_S)
        if fault is not None and not (await fault.end()).happened:
            raise ConfigError(f"{self._how} on {leader.node_id} ended before the run")
        if not later:
            return Outage(leader.node_id, leader.term, -1, -1)
        return Outage(leader.node_id, leader.term, later[0], tally.first_of_term[later[0]] - began)

    def _fault(self, cluster: ChaosCluster, leader: str) -> Fault | None:
        """Return the fault to inject, or None for a transfer, which is not a fault."""
        if self._how == "kill":
            return Kill(cluster, [leader])
        if self._how == "stop":
            return PauseProcesses(cluster, [leader])
        if self._how == "isolate":
            pairs = isolate(cluster.node_ids, [leader])
            return NetworkFault(cluster, "isolate", [leader], pairs, Impairment(cut=True))
        return None

    async def _transfer(self, cluster: ChaosCluster, leader: str) -> int:
        """Transfer leadership to another node; return the time of the request."""
        others = [node for node in cluster.node_ids if node != leader]
        async with AsyncClient(cluster.addresses, group=cluster.local.plan.group) as client:
            while True:
                began = self._writers[0].now()
                try:
                    await client.transfer_leadership(self._rng.choice(others))
                    return began
                except DLedgerError:
                    await asyncio.sleep(_POLL_S)

    def _new_writer(self, src: str) -> TraceWriter:
        writer = TraceWriter(self._directory, f"failover-{self._how}", src)
        self._writers.append(writer)
        return writer


def quantile(values: list[int], share: float) -> int:
    """Return the smallest of `values` such that at least the share `share` of them does not exceed it.
    `values` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
