"""Real processes on bad days: a directory that is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.process.cluster import ProcessCluster
from tests.process.workload import Workload, assert_nothing_lost, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-bad-days")]


async def test_rule_11_a_directory_deleted_under_a_node_and_its_return(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
        await cluster.settle()
        leader = await cluster.leader()
        lost = others(cluster, leader)[0]
        async with Workload(cluster) as load:
            await load.progress(200)
            cluster.expect_end(lost)
            shutil.rmtree(tmp_path / lost)
            assert await cluster.ended(lost, 20) != 0
            assert "removed or replaced" in cluster.log_of(lost) or "414" in cluster.log_of(lost)
            shutil.rmtree(tmp_path / lost, ignore_errors=True)
            await cluster.start([lost], "--rejoin")
            await load.progress(200)
            await cluster.wait_for(
                lambda seen: lost in seen and seen[lost].rejoining == "" and seen[lost].term > 0
            )
            # It counts: the other follower may go.
            leader = await cluster.leader()
            gone = next(n for n in others(cluster, lost) if n != leader)
            await cluster.kill(gone)
            await load.progress(100)
            await cluster.start([gone])
        await assert_nothing_lost(cluster, load.acknowledged)
