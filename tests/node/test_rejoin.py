"""A node without a directory asks the other members what its own has to be like."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.node.config import parse_config
from dledger.node.rejoin import prepare_rejoin
from dledger.store.identity import load_identity
from tests.node.local import CLUSTER, GROUP, running_nodes, until


async def test_a_node_of_another_cluster_at_a_members_address_is_named_and_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""

    def named() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "is node 'n1' of cluster" in said

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
