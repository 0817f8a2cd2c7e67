"""Real processes through upkeep: backup and restore, purging by age and by hand, state machines, TLS."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from dledger.client import AsyncClient
from dledger.errors import Code, ReadFailed
from dledger.node.server import NodeServer
from dledger.node.setup.config import load_config
from dledger.status.model import NodeStatus
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import decode_entries
from examples.kv import KeyValueStore, get, put_command
from tests.node.local import PATIENT, until
from tests.process.cluster import GROUP, ProcessCluster
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-upkeep")]

FILE = 64 << 10
SMALL: dict[str, Any] = {
    "timing": PATIENT,
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
}

Seen = dict[str, NodeStatus]


def client_of(cluster: ProcessCluster, **options: Any) -> AsyncClient:
    return AsyncClient(cluster.addresses, group=GROUP, **{"timeout": 20.0, **options})


async def test_a_cluster_restored_from_a_backup_of_a_running_node_serves_and_goes_on(tmp_path: Path) -> None:
    old_folder, new_folder, backup = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    old_folder.mkdir()
    new_folder.mkdir()
    async with ProcessCluster(old_folder, settings=SMALL, data_file_size=FILE) as old:
        await old.leader()
        async with Workload(old, size=500) as load:
            await load.progress(500)
            known = dict(load.acknowledged)
            # While clients append: what it holds is what was committed when it began, at least.
            await old.command("backup", "--to", str(backup))
            await load.progress(100)
        taken = {i: load.body(n) for i, n in known.items()}
        for node in old.members:
            await old.command(
                *("restore", str(backup), "--data-dir", str(new_folder / node)),
                *("--cluster-id", "restored", "--node-id", node),
            )
        settings = {**SMALL, "cluster_id": "restored"}
        async with ProcessCluster(new_folder, settings=settings, data_file_size=FILE, init=False) as new:
            leader = await new.leader()
            async with client_of(new, session=False) as client:
                found = {e.index: e.body async for e in client.read(0)}
                assert found.items() >= taken.items()
            async with Workload(new, size=500, first=1_000_000) as more:
                await more.progress(100)
                await new.kill(leader)
                await more.progress(100)
                await new.start([leader])
            assert min(more.acknowledged) > max(found), "indexes go on where the backup ends"
            assert {s.cluster_id for s in (await new.wait_for(lambda seen: seen)).values()} == {"restored"}
            await more.assert_kept()
        assert await old.leader(), "the old cluster never noticed"


async def test_entries_older_than_max_age_go_and_readers_learn_the_new_begin(tmp_path: Path) -> None:
    settings = {**SMALL, "retention": {"max_age": "3s", "check_interval": "200ms"}}
    async with ProcessCluster(tmp_path, settings=settings, data_file_size=FILE) as cluster:
        await cluster.leader()
        async with Workload(cluster, at_once=4, size=1000, pause_s=0.01) as load:
            await load.progress(300)
            early = max(load.acknowledged)

            def aged(seen: Seen) -> bool:
                return len(seen) == 3 and all(s.ledger_begin_index > early for s in seen.values())

            await cluster.wait_for(aged)
            status = await cluster.wait_for(lambda seen: next(iter(seen.values())))
            assert status.ledger_end_index - status.ledger_begin_index > 200, "what is young stays"
            async with client_of(cluster, session=False) as client:
                for address in cluster.addresses:
                    with pytest.raises(ReadFailed) as caught:
                        async for _ in client.read(early, 1, server=address):
                            pass
                    assert caught.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
        await load.assert_kept()


async def test_people_let_entries_go_by_index_and_by_age(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings=SMALL, data_file_size=FILE) as cluster:
        await cluster.leader()
        async with Workload(cluster, at_once=4, size=1000, pause_s=0.01) as load:
            await load.progress(400)
            said = await cluster.command("purge", "--before", "200")
            assert "entries below 200 will be removed" in said

            def begins_in(first: int, last: int) -> Any:
                return lambda seen: (
                    len(seen) == 3 and all(first < s.ledger_begin_index <= last for s in seen.values())
                )

            await cluster.wait_for(begins_in(0, 200))
            refused = await cluster.command("read", "--from-index", "0", "--count", "1", code=1)
            assert "419 INDEX_LESS_THAN_LOCAL_BEGIN" in refused
            begin = max(s.ledger_begin_index for s in (await cluster.wait_for(lambda seen: seen)).values())
            assert str(begin) in refused

            at = max(load.acknowledged)
            await load.progress(400)
            await cluster.command("purge", "--before-age", "500ms")
            await cluster.wait_for(begins_in(200, max(load.acknowledged)))
            assert at > 200
        await load.assert_kept()


async def test_a_state_machine_named_on_the_command_line(tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "100ms"},
    }
    options = ["--state-machine", "examples.kv:KeyValueStore"]
    async with ProcessCluster(
        tmp_path, settings=settings, data_file_size=FILE, server_options=options
    ) as cluster:
        leader = await cluster.leader()
        async with client_of(cluster) as client:
            await client.append(put_command("first", "kept"))
            await cluster.kill(others(cluster, leader)[0])
            await asyncio.gather(
                *(client.append(put_command(f"k{n % 50}", f"{n} {'x' * 1000}")) for n in range(600))
            )
        await cluster.start([others(cluster, leader)[0]])
        await cluster.wait_for(
            lambda seen: (
                len(seen) == 3
                and all(s.ledger_begin_index > 100 and not s.needs_image for s in seen.values())
            )
        )
        await cluster.settle()
        # Nobody can ask a process for its state but itself: take the place of one of them.
        place = others(cluster, leader)[0]
        assert await cluster.stop(place) == 0
        store = KeyValueStore()
        node = NodeServer(load_config(tmp_path / f"{place}.toml"), store)
        await node.start()
        try:
            await until(lambda: bool(node.node_status().leader_id) and not node.node_status().needs_image)
            assert await get(node, store, "first") == "kept", "it is in no entry any more, but in the image"
            assert await get(node, store, "k49") == f"599 {'x' * 1000}"
            assert len(store) == 51
        finally:
            await node.stop()


async def test_rule_11_a_lost_node_of_a_cluster_with_tls_comes_back(tmp_path: Path) -> None:
    cluster = LocalCluster.create(
        tmp_path / "c", base_port=0, group=GROUP, data_file_size=1 << 20, settings=SMALL, tls=True
    )

    def all_well(nodes: list[LocalNode]) -> LocalNode | None:
        return nodes[0] if {node.health for node in nodes} == {"ok"} else None

    with cluster:
        await asyncio.to_thread(cluster.start)
        leader = await asyncio.to_thread(cluster.wait_for_all)
        lost = next(node for node in cluster.node_ids if node != leader.node_id)
        async with Workload(cluster, size=200, tls=cluster.tls_files) as load:
            await load.progress(200)
            cluster.kill(lost)
            shutil.rmtree(cluster.store_directory(lost))
            await load.progress(200)
            cluster.start_node(lost, rejoin=True)
            await load.progress(200)
            await asyncio.to_thread(cluster.wait_until, all_well, 30, "a node that is back")
            status = await asyncio.to_thread(cluster.node_status, lost)
            assert status is not None and status.rejoining == ""
            # It counts: with the leader gone, it and the third one are the majority.
            leader = await asyncio.to_thread(cluster.wait_for_leader)
            cluster.kill(next(n for n in cluster.node_ids if n not in (lost, leader.node_id)))
            await load.progress(200)
        await asyncio.to_thread(cluster.stop)
        entries = stored(cluster.store_directory(lost))
        missing = [n for i, n in load.acknowledged.items() if entries.get(i) != load.body(n)]
        assert not missing, f"{lost} lacks {len(missing)} acknowledged entries"


def stored(directory: Path) -> dict[int, bytes]:
    store = DiskLogStore.open(directory)
    try:
        frames = [store.read(0, store.end_index, 1 << 30, whole_batches=False)]
        while frames[-1].last_index < store.end_index:
            frames.append(
                store.read(frames[-1].last_index + 1, store.end_index, 1 << 30, whole_batches=False)
            )
        return {e.index: e.body for part in frames for e in decode_entries(part.data)}
    finally:
        store.close()
