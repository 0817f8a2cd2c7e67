"""The system under test: a cluster of this project with three server processes, and one client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.common import BODY, Operation, cpu_seconds
from dledger.cli.local.local_cluster import LocalCluster
from dledger.client import AsyncClient

NAME = "dledger"
BATCH = 256
BATCHES_IN_FLIGHT = 8
APPENDS_IN_FLIGHT = 64
#: The server's default. With the small data files of a demo, the measurement would include file changes.
DATA_FILE_SIZE = 1 << 30


class Dledger:
    """A running cluster, with a client that appends in one session."""

    def __init__(self, cluster: LocalCluster, client: AsyncClient, leader_id: str) -> None:
        self.cluster = cluster
        self.client = client
        self.leader_id = leader_id
        self._batch = [BODY] * BATCH

    @property
    def append(self) -> Operation:
        return self._append

    @property
    def bulk(self) -> Operation:
        return self._append_batch

    async def _append(self) -> int:
        await self.client.append(BODY)
        return 1

    async def _append_batch(self) -> int:
        await self.client.append_many(self._batch)
        return BATCH

    def node_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds that each running node has used so far."""
        pids = {node: self.cluster.process(node).pid for node in self.cluster.running()}
        return {node: cpu_seconds(pid) for node, pid in pids.items() if pid is not None}

    async def fill(self, entries: int) -> None:
        """Append at least `entries` entries as fast as possible, in whole batches."""
        remaining = -(-entries // BATCH)

        async def loop() -> None:
            nonlocal remaining
            while remaining > 0:
                remaining -= 1
                await self._append_batch()

        await asyncio.gather(*(loop() for _ in range(BATCHES_IN_FLIGHT)))


@asynccontextmanager
async def running(folder: Path, *, data_file_size: int = DATA_FILE_SIZE) -> AsyncIterator[Dledger]:
    """Start three nodes in `folder` and connect. The context stops all processes."""
    with LocalCluster.create(
        folder / "cluster", nodes=3, base_port=0, data_file_size=data_file_size
    ) as cluster:
        await asyncio.to_thread(cluster.start)
        leader = await asyncio.to_thread(cluster.wait_for_leader)
        async with AsyncClient(cluster.addresses, timeout=30) as client:
            await client.append(BODY)
            yield Dledger(cluster, client, leader.node_id)
