"""Real processes on file systems of a few MiB that are filled up and freed under load (rule 9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.errors import Code
from dledger.status.model import NodeStatus
from tests.node.local import PATIENT
from tests.process.cluster import GROUP, ProcessCluster
from tests.process.small_disks import KINDS, SmallDisks, small_disks
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-full-disks")]

FILE = 128 << 10
CAPACITY = 8 << 20
SETTINGS: dict[str, Any] = {
    "timing": PATIENT,  # leadership moves because a disk is full, or not at all
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
}

Seen = dict[str, NodeStatus]


@pytest.fixture(params=KINDS)
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisks]:
    with small_disks(request.param, tmp_path, CAPACITY) as made:
        yield made


def cluster_on(disks: SmallDisks, folder: Path) -> ProcessCluster:
    cluster = ProcessCluster(folder, settings=SETTINGS, data_file_size=FILE, fault_injection=True)
    disks.attach(cluster)
    return cluster


async def read_everywhere(cluster: ProcessCluster, load: Workload) -> None:
    """A linearizable read of the last acknowledged entry, and what every node has: their disks need not
    have filled up at the same entry, and one that was full first is behind."""
    last = max(load.acknowledged)
    async with AsyncClient(cluster.addresses, group=GROUP, session=False) as client:
        bodies = [e.body async for e in client.read(last, 1, timeout=10)]
        assert bodies == [load.body(load.acknowledged[last])]
        begin = max(s.ledger_begin_index for s in (await cluster.wait_for(lambda seen: seen)).values())
        first = min(i for i in load.acknowledged if i >= begin)
        for address in cluster.addresses:
            bodies = [e.body async for e in client.read(first, 1, mode="local", server=address, timeout=10)]
            assert bodies == [load.body(load.acknowledged[first])]


async def test_rule_9_all_disks_fill_up_and_are_freed_under_load(tmp_path: Path, disks: SmallDisks) -> None:
    async with cluster_on(disks, tmp_path) as cluster:
        await cluster.settle()  # all have started: what the disk lacks then, nobody needs any more
        for node in cluster.members:
            disks.fill(node, leave=3 << 20)
        # Half a second: so long a client tries again before it says that there is no room.
        async with Workload(cluster, size=4000, in_session=False, timeout=0.5) as load:
            await load.progress(100)
            await load.refusals(8, Code.DISK_FULL)

            def full(seen: Seen) -> bool:
                """Of a majority: nothing can be committed then. The third one may have some bytes left."""
                health = [s.health for s in seen.values() if s.no_room]
                return len(health) >= 2 and set(health) == {"the disk is full"}

            await cluster.wait_for(full)
            await read_everywhere(cluster, load)
            seen = {n: await cluster.status(n) for n in cluster.members}
            assert any(s is not None and s.limits_hit.get("disk_reserve_bytes") for s in seen.values())

            for node in cluster.members:
                disks.free(node)
            await load.progress(100)
            await cluster.wait_for(lambda seen: not any(s.no_room for s in seen.values()))

            # It fills up without help this time, and what people do about it is to let entries go.
            await load.refusals(8, Code.DISK_FULL, within_s=60)
            await cluster.wait_for(full)
            await read_everywhere(cluster, load)
            async with AsyncClient(cluster.addresses, group=GROUP, session=False) as client:
                await client.purge(max(load.acknowledged) // 2)
            await load.progress(100)
            await cluster.wait_for(lambda seen: all(s.ledger_begin_index > 0 for s in seen.values()))
        await load.assert_kept()


async def test_rule_9_one_full_disk_costs_nobody_anything(tmp_path: Path, disks: SmallDisks) -> None:
    async with cluster_on(disks, tmp_path) as cluster:
        await cluster.settle()
        leader = await cluster.leader()
        # No more than 400 kB a second, or the other disks fill up, too.
        async with Workload(cluster, at_once=4, size=1000, pause_s=0.01, in_session=False) as load:
            full = others(cluster, leader)[0]
            disks.fill(full)
            await cluster.wait_for(lambda seen: full in seen and seen[full].no_room)
            await load.progress(100)
            await cluster.wait_for(
                lambda seen: seen[full].ledger_end_index + 100 < seen[leader].committed_index
            )
            disks.free(full)
            await cluster.wait_for(
                lambda seen: (
                    seen[full].ledger_end_index >= seen[leader].committed_index - 100
                    and not seen[full].no_room
                )
            )

            old = await cluster.leader()
            disks.fill(old)
            new = await cluster.leader(nodes=others(cluster, old))
            status = await cluster.status(new)
            assert status is not None and "transfer" in [event.cause for event in status.elections]
            await load.progress(200)
            disks.free(old)
            await cluster.wait_for(lambda seen: old in seen and not seen[old].no_room)
            assert Code.DISK_FULL not in load.refused.values(), "there was always one with room"
        await load.assert_kept()
