"""A machine that is gone for good is replaced while a client appends."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from dledger.cli.local import local_members
from dledger.cli.local.local_cluster import LocalCluster
from dledger.client import AppendResult, AsyncClient

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-replace")]

_IN_FLIGHT = 500


async def test_a_killed_leader_is_replaced_and_no_acknowledged_entry_is_lost(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "cluster", nodes=3, base_port=0) as cluster:
        cluster.start()
        cluster.wait_for_all()
        async with AsyncClient(cluster.addresses, timeout=60.0) as client:
            results: list[asyncio.Future[AppendResult]] = []
            is_replaced = asyncio.Event()

            async def append() -> None:
                while not is_replaced.is_set() or len(results) < 2 * _IN_FLIGHT:
                    results.append(await client.submit(b"%d" % len(results)))
                    if len(results) > _IN_FLIGHT:
                        await results[-_IN_FLIGHT]

            appending = asyncio.create_task(append())
            leader = (await client.leader()).node_id
            await asyncio.to_thread(_replace, cluster, leader)
            is_replaced.set()
            await appending
            await asyncio.gather(*results)
            bodies = [entry.body async for entry in client.read(0)]
        assert bodies == [b"%d" % number for number in range(len(results))]
        LocalCluster(cluster.directory).stop()  # with the new node


def _replace(cluster: LocalCluster, node: str) -> None:
    cluster.kill(node)
    shutil.rmtree(cluster.folder(node))
    new = local_members.replace_node(cluster, node, 120.0, lambda text: None)
    assert node not in cluster.node_ids and new.node_id in cluster.running()
