"""A node without a directory asks the other members what its own has to be like."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.node.run import prepare_rejoin
from dledger.node.server import NodeServer
from dledger.node.setup.config import parse_config
from dledger.store.identity import Identity, init_directory, load_identity
from tests.node.local import CLUSTER, GROUP, leader_of, make_server, running_nodes, until
from tests.process.cluster import free_ports

DATA_FILE_SIZE = 4 << 20


async def test_a_node_of_another_cluster_at_a_members_address_is_named_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def named() -> bool:
        return "is node 'n1' of cluster" in caplog.text

    async with running_nodes(tmp_path) as (node,):
        content = {
            "directory": str(tmp_path / "lost"),
            "node_id": "n2",
            "cluster_id": "another",
            "group": GROUP,
            "members": {"n1": node.address, "n2": "127.0.0.1:1"},
        }
        asking = asyncio.create_task(prepare_rejoin(parse_config(content)))
        await until(named)
        assert not asking.done() and not (tmp_path / "lost").exists()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        await prepare_rejoin(parse_config(content | {"cluster_id": CLUSTER}))
        assert load_identity(tmp_path / "lost").node_id == "n2"


def new_directory(folder: Path, incarnation: int, *, rejoining: bool) -> None:
    identity = Identity(CLUSTER, GROUP, "n1", data_file_size=DATA_FILE_SIZE)
    init_directory(folder / "n1", identity, incarnation=incarnation, rejoining=rejoining)


async def make_leader(servers: list[NodeServer], target: NodeServer) -> None:
    """Transfers are refused while a member is not compared yet: ask until one goes through."""
    node = target.node_status().node_id

    async def ask() -> None:
        leader = leader_of(servers)
        if leader is not target and leader.node_status().is_leader:
            await asyncio.gather(leader._shell.transfer(node), return_exceptions=True)

    while not target.node_status().is_leader:
        await ask()
        await until(lambda: any(s.node_status().is_leader for s in servers))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(9, 5), (5, 9)], ids=["lower", "higher"])
async def test_a_node_that_rejoined_with_another_incarnation_leads_and_commits(
    tmp_path: Path, before: int, after: int
) -> None:
    """It led before it lost its directory, and said GOODBYE then: ids of its streams may be lower now."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    new_directory(tmp_path, before << 20, rejoining=False)
    servers = [make_server(tmp_path, node, members) for node in members]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        async with AsyncClient(list(members.values()), group=GROUP) as client:
            await until(lambda: any(s.node_status().is_leader for s in servers))
            await make_leader(servers, servers[0])
            await client.append(b"of the first life", timeout=60)
            await make_leader(servers, servers[1])
            await servers[0].stop()
            shutil.rmtree(tmp_path / "n1")

            new_directory(tmp_path, after << 20, rejoining=True)
            servers[0] = make_server(tmp_path, "n1", members)
            await servers[0].start()
            await make_leader(servers, servers[0])
            last = await client.append(b"of the second life", timeout=60)
            await until(lambda: all(s.node_status().ledger_end_index >= last.index for s in servers))
    finally:
        for server in servers:
            await server.stop()
