"""Real processes whose files are damaged: at the end of the log, and in the middle of it (rules 10, 11)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.infra.files.disk import OsDisk
from dledger.status.model import NodeStatus
from dledger.store.format.layout import NodePaths
from dledger.store.state_files import read_hard_state
from tests.node.local import PATIENT
from tests.process.cluster import GROUP, ProcessCluster
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-damage")]

FILE = 256 << 10
SETTINGS: dict[str, Any] = {
    "timing": PATIENT,
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
}

Seen = dict[str, NodeStatus]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([old ^ 0x10]))


def damage_end(directory: Path, end_pos: int, size: int) -> None:
    """Flip a byte in every 50 of the last `size` bytes of the log."""
    for pos in range(end_pos - size, end_pos, 50):
        flip(directory / "data" / f"{pos - pos % FILE:020d}", pos % FILE)


def damage_body(directory: Path, body: bytes) -> None:
    """Flip a byte in the stored copy of this body."""
    for path in sorted((directory / "data").iterdir()):
        at = path.read_bytes().find(body)
        if at >= 0:
            flip(path, at + len(body) // 2)
            return
    raise AssertionError(f"{body!r} is not stored in {directory}")


@pytest.mark.parametrize("victim_leads", [pytest.param(False, marks=pytest.mark.long), True])
async def test_rule_10_a_damaged_end_is_reported_and_the_node_rejoins(
    tmp_path: Path, victim_leads: bool
) -> None:
    async with ProcessCluster(tmp_path, settings=SETTINGS, data_file_size=FILE) as cluster:
        await cluster.settle()
        leader = await cluster.leader()
        victim = leader if victim_leads else others(cluster, leader)[0]
        async with Workload(cluster, size=200) as load:
            await load.progress(300)
        end = await cluster.settle()
        status = await cluster.wait_for(lambda seen: seen.get(victim))
        await cluster.kill(*cluster.members)
        damage_end(tmp_path / victim, status.ledger_end_pos, 2000)

        # One other member is not enough: the third may hold the only other copy of what was acknowledged.
        first, last = others(cluster, victim)
        await cluster.start([victim, first])
        waiting = await cluster.wait_for(
            lambda seen: seen[victim] if victim in seen and last in seen[victim].rejoining else None
        )
        assert waiting.ledger_end_index < end
        floor = read_hard_state(OsDisk(), NodePaths(tmp_path / victim).hard_state)
        assert floor.rejoining and floor.floor_index == end, "what it had acknowledged is not forgotten"
        assert "damaged" in cluster.log_of(victim), "it is said aloud"
        assert not any(s.is_leader for s in (await cluster.wait_for(lambda seen: seen)).values())

        await cluster.start([last])
        async with Workload(cluster, size=200, first=1_000_000) as more:
            await more.progress(100)
            await cluster.wait_for(
                lambda seen: (
                    len(seen) == 3 and all((s.rejoining, s.health) == ("", "ok") for s in seen.values())
                )
            )
            # It counts again: it and one other member are a majority.
            await cluster.kill(last)
            await more.progress(100)
            await cluster.start([last])
        load.acknowledged.update(more.acknowledged)
        await load.assert_kept()


@pytest.mark.parametrize("victim_leads", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_rule_10_damage_in_the_middle_is_repaired_while_the_node_serves(
    tmp_path: Path, victim_leads: bool
) -> None:
    rng = Random(11)
    async with ProcessCluster(tmp_path, settings=SETTINGS, data_file_size=FILE) as cluster:
        await cluster.settle()
        leader = await cluster.leader()
        victim = leader if victim_leads else others(cluster, leader)[0]
        async with Workload(cluster, at_once=4, size=1000, pause_s=0.005) as load:
            await load.progress(400)
            # Not of the newest entries: those are read from memory.
            old = sorted(load.acknowledged)[:200]
            hurt = rng.sample(old, 5)
            for index in hurt:
                damage_body(tmp_path / victim, load.body(load.acknowledged[index]))
            async with AsyncClient(cluster.addresses, group=GROUP, session=False) as client:
                found = {e.index: e.body async for e in client.read(old[0], old[-1] - old[0] + 1)}
            assert all(found[i] == load.body(load.acknowledged[i]) for i in old), "clients go elsewhere"
            # Some were found by that read already, the scrub finds the rest; neighbours are one range.
            await cluster.command("scrub", "--node", cluster.members[victim], code=None)

            def repaired(seen: Seen) -> bool:
                if len(seen) < 3 or {s.health for s in seen.values()} != {"ok"}:
                    return False
                return 0 < seen[victim].scrub_found == seen[victim].repaired and not seen[victim].damaged

            await cluster.wait_for(repaired)
            assert "0 damaged ranges" in await cluster.command("scrub", "--node", cluster.members[victim])
            assert cluster.log_of(victim).count("event=repaired") >= 2
            await load.progress(100)
        await load.assert_kept()
