"""Real processes on bad days: lost directories, and kills in the middle of images, purges and new bases."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger.store.batch import decode_entries
from dledger.store.disk_store import DiskLogStore
from tests.process.cluster import ProcessCluster
from tests.process.workload import ENTRY, Workload, assert_nothing_lost, others

pytestmark = pytest.mark.process

FILE = 64 << 10
#: Purges all the time: files are small, and the leader looks for something to purge ten times a second.
PURGING: dict[str, Any] = {
    "timing": {"heartbeat_ms": 100, "election_min_ms": 500, "election_max_ms": 1000},
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
    "retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "100ms"},
}


async def test_rule_11_a_directory_deleted_under_a_node_and_its_return(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
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


async def test_kills_in_the_middle_of_images_purges_and_new_bases(tmp_path: Path) -> None:
    rng = Random(7)
    async with ProcessCluster(tmp_path, settings=PURGING, data_file_size=FILE) as cluster:
        await cluster.leader()
        async with Workload(cluster, at_once=32) as load:
            for turn in range(6):
                victim = rng.choice(list(cluster.members))
                await cluster.kill(victim)
                # Long enough, every other time, that the others purge what it lacks.
                await load.progress(1500 if turn % 2 else 100, within_s=60)
                await cluster.start([victim])
                await load.progress(100, within_s=60)
        await cluster.settle(within_s=60)
        statuses = [s for n in cluster.members if (s := await cluster.status(n)) is not None]
        assert min(s.ledger_begin_index for s in statuses) > 0
        await cluster.kill(*cluster.members)
        for node in cluster.members:
            entries = await asyncio.to_thread(entries_of, tmp_path / node)
            first = min(entries)
            kept = {i: n for i, n in load.acknowledged.items() if i >= first}
            missing = [(i, n) for i, n in kept.items() if entries.get(i) != ENTRY % n]
            assert kept and not missing, f"{node} lacks {len(missing)} of {len(kept)}, such as {missing[:3]}"


def entries_of(directory: Path) -> dict[int, bytes]:
    store = DiskLogStore.open(directory)
    try:
        entries: dict[int, bytes] = {}
        at = store.begin_index
        while at <= store.end_index:
            frames = store.read(at, store.end_index, 1 << 20, whole_batches=False)
            entries.update({e.index: e.body for e in decode_entries(frames.data)})
            at = frames.last_index + 1
        return entries
    finally:
        store.close()
