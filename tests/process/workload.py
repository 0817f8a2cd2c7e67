"""Numbered entries appended without pause while nodes come and go, and what was acknowledged of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from dledger.client.async_client import AsyncClient
from tests.process.cluster import GROUP, ProcessCluster

ENTRY = b"entry-%08d"


class Workload:
    """`async with Workload(cluster) as load:` writes in one session, several appends at a time."""

    def __init__(self, cluster: ProcessCluster, at_once: int = 8) -> None:
        self._cluster = cluster
        self._at_once = at_once
        self.acknowledged: dict[int, int] = {}  # index -> number
        self._number = 0
        self._changed = asyncio.Condition()
        self._going = True

    async def __aenter__(self) -> Workload:
        self._client = AsyncClient(self._cluster.addresses, group=GROUP, timeout=30.0)
        self._tasks = [asyncio.create_task(self._write()) for _ in range(self._at_once)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._going = False
        if error is not None:
            for task in self._tasks:
                task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        if error is None:
            failed = [r for r in results if isinstance(r, BaseException)]
            assert not failed, failed

    async def _write(self) -> None:
        while self._going:
            self._number += 1
            number = self._number
            result = await self._client.append(ENTRY % number)
            async with self._changed:
                self.acknowledged[result.index] = number
                self._changed.notify_all()

    async def progress(self, more: int, within_s: float = 20.0) -> None:
        """Until `more` further entries have been acknowledged."""
        goal = len(self.acknowledged) + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.acknowledged) >= goal)


async def assert_nothing_lost(cluster: ProcessCluster, acknowledged: dict[int, int]) -> None:
    """Stops the cluster, then compares what its nodes hold on disk, byte by byte and entry by entry."""
    await cluster.settle()
    statuses = await asyncio.gather(*(cluster.status(node) for node in cluster.members))
    low = min(s.committed_pos for s in statuses if s is not None)
    await cluster.kill(*cluster.members)
    first, *others = [cluster.data_bytes(node, 0, low) for node in cluster.members]
    assert len(first) == low
    assert all(other == first for other in others), "data files differ below the committed end"
    for node in cluster.members:
        entries = {e.index: e.body for e in cluster.stored_entries(node)}
        missing = [(i, n) for i, n in acknowledged.items() if entries.get(i) != ENTRY % n]
        assert not missing, f"{node} lacks {len(missing)} acknowledged entries, such as {missing[:3]}"
        bodies = [body for body in entries.values() if body.startswith(b"entry-")]
        assert len(set(bodies)) == len(bodies), "an entry of a session was stored twice"


def others(cluster: ProcessCluster, node: str) -> Sequence[str]:
    return [each for each in cluster.members if each != node]
