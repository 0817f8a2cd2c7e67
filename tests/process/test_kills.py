"""Real processes, killed in the middle of state images, purges and new bases (guarantees.md, Retention)."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger.infra.files.disk import OsDisk
from dledger.status.model import NodeStatus
from dledger.store.format.layout import NodePaths
from dledger.store.state_files import read_base
from tests.node.local import PATIENT
from tests.process.cluster import ProcessCluster
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-kills")]

FILE = 64 << 10
#: Purges all the time: files are small, and the leader looks for something to purge ten times a second.
PURGING: dict[str, Any] = {
    "timing": PATIENT,
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
    "retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "100ms"},
}
#: Where a node can be killed that completes an image, which the leader saves and a follower copies.
OF_IMAGES = ["rename images/*.data", "rename images/*[0-9].manifest", "unlink images/*.manifest"]
#: Where a leader can be killed that marks the place of an image, or asks for a purge.
OF_LEADERS = ["write IB", *OF_IMAGES, "write PU"]
#: Where a node can be killed that carries a purge out: the leader or a follower.
OF_PURGES = ["rename checkpoint", "rename base", "unlink index/*", "unlink data/*"]
#: Where a follower that is given a base can be killed. Its start may carry on with a purge of before: the
#: files that this removes are not meant.
RESETS = "rename base to reset"
OF_BASES = [
    RESETS,
    f"{RESETS} then unlink index/*",
    f"{RESETS} then unlink data/*",
    f"{RESETS} then unlink checkpoint",
    f"{RESETS} then unlink checkpoint then rename checkpoint",
    f"{RESETS} then unlink checkpoint then rename base",
]

Seen = dict[str, NodeStatus]


def purging(folder: Path) -> ProcessCluster:
    return ProcessCluster(folder, settings=PURGING, data_file_size=FILE, fault_injection=True)


async def killed(cluster: ProcessCluster, node: str, load: Workload, point: str) -> None:
    """`node` dies at this point, and clients go on."""
    assert await cluster.ended(node, 60) == -signal.SIGKILL, point
    await load.progress(50)
    cluster.inject(node)


async def test_kills_in_the_middle_of_images_and_purges(tmp_path: Path) -> None:
    async with purging(tmp_path) as cluster:
        await cluster.leader()
        async with Workload(cluster, at_once=16, size=500) as load:
            turns = [(point, True) for point in OF_LEADERS + OF_PURGES[1:3]]
            for point, leads in [*turns, *((point, False) for point in OF_PURGES + OF_IMAGES)]:
                leader = await cluster.leader()
                victim = leader if leads else others(cluster, leader)[0]
                cluster.expect_end(victim)
                cluster.inject(victim, die_at=point)
                await killed(cluster, victim, load, point)
                await cluster.start([victim])
                await load.progress(100)
        await load.assert_kept()
        assert min(cluster.data_begin(node) for node in cluster.members) > 0


@pytest.mark.long
async def test_kills_in_the_middle_of_a_new_base(tmp_path: Path) -> None:
    async with purging(tmp_path) as cluster:
        await cluster.settle()
        victim = others(cluster, await cluster.leader())[0]
        async with Workload(cluster, at_once=16, size=500) as load:
            for point in OF_BASES:
                await load.progress(100)
                status = await cluster.wait_for(lambda seen: seen.get(victim))
                await cluster.kill(victim)

                def are_far_ahead(seen: Seen, end: int = status.ledger_end_index) -> bool:
                    return len(seen) == 2 and all(s.ledger_begin_index > end + 1 for s in seen.values())

                await cluster.wait_for(are_far_ahead, nodes=others(cluster, victim), within_s=60)
                cluster.inject(victim, die_at=point)
                await cluster.start([victim])
                cluster.expect_end(victim)
                await killed(cluster, victim, load, point)
                stored = read_base(OsDisk(), NodePaths(tmp_path / victim).base)
                assert point == RESETS or (stored is not None and stored.resetting), "it died elsewhere"
                await cluster.start([victim])
                await cluster.wait_for(
                    lambda seen, end=status.ledger_end_index: (
                        victim in seen  # type: ignore[misc]
                        and seen[victim].ledger_begin_index > end
                        and not seen[victim].needs_image
                    ),
                    within_s=60,
                )
        await load.assert_kept()


@pytest.mark.long
async def test_random_kills_while_the_log_is_purged(tmp_path: Path) -> None:
    rng = Random(7)
    async with purging(tmp_path) as cluster:
        await cluster.leader()
        async with Workload(cluster, at_once=32) as load:
            for turn in range(6):
                victim = rng.choice(list(cluster.members))
                await cluster.kill(victim)
                # Long enough, every other time, that the others purge what it lacks.
                await load.progress(1500 if turn % 2 else 100, within_s=60)
                await cluster.start([victim])
                await load.progress(100, within_s=60)
        await load.assert_kept()
        assert min(cluster.data_begin(node) for node in cluster.members) > 0
