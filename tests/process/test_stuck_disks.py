"""Real processes whose fsync does not return: one leader's, and the disk that all of them share (rule 9)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.errors import Code, ReadFailed
from dledger.rpc.log_client import LogClient
from dledger.status.model import NodeStatus
from tests.node.local import PATIENT
from tests.process.cluster import GROUP, ProcessCluster
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-stuck-disks")]

#: fsync_stall_ms is two election_max_ms if nothing is configured.
USUAL: dict[str, Any] = {"timing": PATIENT}
#: Long time-outs, so that a busy machine costs no leadership, and a short patience with disks.
BRISK: dict[str, Any] = {"timing": {**PATIENT, "fsync_stall_ms": 2000}}
#: A checkpoint, which is several syncs, takes longer than the patience, and there are many.
SHARED: dict[str, Any] = {
    "timing": {**PATIENT, "fsync_stall_ms": 1000, "checkpoint_ms": 500},
}

Seen = dict[str, NodeStatus]


def stuck_for_s(status: NodeStatus) -> float:
    """For how long an fsync of this node has not returned, as it says itself."""
    found = re.search(r"an fdatasync has taken ([\d.]+) s so far", status.health)
    return float(found[1]) if found else 0.0


def terms(seen: Seen) -> set[int]:
    return {status.term for status in seen.values()}


async def bodies_at(cluster: ProcessCluster, node: str, load: Workload, *, linearizable: bool) -> list[bytes]:
    """The first acknowledged entry, read from this node."""
    index = min(load.acknowledged)
    mode = "linearizable" if linearizable else "local"
    async with AsyncClient(cluster.addresses, group=GROUP, session=False) as client:
        entries = client.read(index, 1, mode=mode, server=cluster.members[node], timeout=5)
        return [entry.body async for entry in entries]


async def test_rule_9_an_fsync_of_the_leader_is_stuck_for_30_seconds(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings=USUAL, fault_injection=True) as cluster:
        await cluster.settle()
        old = await cluster.leader()
        async with Workload(cluster, pause_s=0.02) as load:
            await load.progress(200)
            before = await cluster.wait_for(lambda seen: seen.get(old))
            cluster.inject(old, stuck=True)
            new = await cluster.leader(nodes=others(cluster, old))
            await load.progress(50)
            status = await cluster.wait_for(lambda seen: seen.get(old))
            assert 0 < stuck_for_s(status) < 30, "another leader serves while it is stuck"

            first = [load.body(load.acknowledged[min(load.acknowledged)])]
            assert await bodies_at(cluster, old, load, linearizable=False) == first
            # What it has not written it cannot read: it says so, and clients go elsewhere.
            with pytest.raises(ReadFailed) as caught:
                await bodies_at(cluster, old, load, linearizable=True)
            assert caught.value.code is Code.READ_NOT_CONFIRMED
            async with AsyncClient(cluster.addresses, group=GROUP, session=False) as client:
                assert [e.body async for e in client.read(min(load.acknowledged), 1)] == first
            await cluster.wait_for(lambda seen: stuck_for_s(seen[old]) >= 30)
            status = await cluster.wait_for(lambda seen: seen.get(old))
            assert (status.role, status.leader_id) == ("FOLLOWER", new)
            assert "disk-stalled" in [event.cause for event in status.elections]
            await load.progress(50)

            cluster.inject(old)
            await load.progress(50)
            await cluster.wait_for(lambda seen: seen[old].health == "ok")
            seen = await cluster.wait_for(lambda seen: seen if len(seen) == 3 else None)
            assert terms(seen) == {before.term + 1}, "one election, and no more"
        await load.assert_kept()


async def test_rule_9_a_stuck_leader_that_is_told_to_stop_ends_and_comes_back(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings=BRISK, fault_injection=True) as cluster:
        await cluster.settle()
        old = await cluster.leader()
        async with Workload(cluster) as load:
            await load.progress(100)
            cluster.inject(old, stuck=True)
            await cluster.wait_for(lambda seen: stuck_for_s(seen[old]) >= 1)
            assert await cluster.stop(old) == 1
            assert "stopping without it" in cluster.log_of(old)
            await load.progress(100)
            cluster.inject(old)
            await cluster.start([old])
            await cluster.wait_for(lambda seen: old in seen and seen[old].leader_id not in ("", old))
            await load.progress(50)
        await load.assert_kept()


@pytest.mark.long
async def test_rule_9_a_start_on_a_stuck_disk_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings=BRISK, fault_injection=True) as cluster:
        await cluster.settle()
        (node, *_) = others(cluster, await cluster.leader())
        await cluster.kill(node)
        cluster.inject(node, stuck=True)
        await cluster.start([node])
        held = cluster.folder / node / "lock"
        await cluster.wait_for(lambda seen: held.read_text() == f"{cluster.processes[node].pid}\n")
        assert await cluster.stop(node) == 1
        assert "stopping without it" in cluster.log_of(node)
        cluster.inject(node)
        await cluster.start([node])
        await cluster.settle()


@pytest.mark.long
async def test_rule_9_nobody_makes_way_when_all_share_a_disk_that_is_slow_and_then_stuck(
    tmp_path: Path,
) -> None:
    async with ProcessCluster(tmp_path, settings=SHARED, fault_injection=True) as cluster:
        await cluster.settle()
        leader = await cluster.leader()
        async with Workload(cluster, at_once=32) as load:
            await load.progress(200)
            # All three have heard of the leader, also the one that no commit has needed.
            before = await cluster.wait_for(
                lambda seen: seen if len(seen) == 3 and len(terms(seen)) == 1 else None
            )
            cluster.inject(*cluster.members, slow_ms=400)
            await load.progress(500, within_s=60)
            assert terms(await cluster.wait_for(lambda seen: seen)) == terms(before)

            cluster.inject(*cluster.members, stuck=True)

            def all_stuck(seen: Seen) -> bool:
                # Long enough for a leader to have given up many times over (fsync_stall_ms is 1000).
                return len(seen) == 3 and min(stuck_for_s(s) for s in seen.values()) >= 6

            await cluster.wait_for(all_stuck)
            reading = LogClient(cluster.members[leader], GROUP)
            assert await reading.read_index(5) >= max(load.acknowledged)
            await reading.close()
            # A linearizable read would also need all that the others had committed just before on its disk.
            assert await bodies_at(cluster, leader, load, linearizable=False)

            cluster.inject(*cluster.members)
            await load.progress(500, within_s=60)
            await cluster.wait_for(lambda seen: {s.health for s in seen.values()} == {"ok"})
            after = await cluster.wait_for(lambda seen: seen if len(seen) == 3 else None)
            assert terms(after) == terms(before), "leadership stayed where it was"
            assert after[leader].is_leader
        await load.assert_kept()
