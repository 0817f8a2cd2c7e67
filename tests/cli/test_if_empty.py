"""`dledger server --if-empty`: a node without an identity, and one that has an identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.cli.exits import Exit
from dledger.client import AsyncClient
from dledger.errors import Code
from tests.process.cluster import GROUP, ProcessCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-if-empty")]


async def test_a_cluster_starts_and_a_node_that_lost_its_directory_comes_back(tmp_path: Path) -> None:
    init = ["--if-empty", "init"]
    async with ProcessCluster(tmp_path, init=False, server_options=init) as cluster:
        await cluster.settle()
        async with AsyncClient(cluster.addresses, group=GROUP) as client:
            await client.append(b"before")
        await cluster.stop("n1")
        (tmp_path / "n1").rename(tmp_path / "lost")
        await cluster.start(["n1"], "--if-empty", "rejoin")  # the last one of an option applies
        await cluster.wait_for(lambda seen: seen["n1"].rejoining == "" and seen["n1"].committed_index >= 0)
        await cluster.settle()
        await cluster.stop("n1")
        await cluster.start(["n1"])  # with --if-empty init: the directory is not empty
        await cluster.settle()
        assert "before" in await cluster.command("read")


async def test_without_the_option_a_node_without_an_identity_does_not_start(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, 1, init=False, server_options=["--if-empty", "refuse"]) as cluster:
        assert await cluster.ended("n1") == Exit.FAILED
        assert f"code={Code.NOT_INITIALIZED}" in cluster.log_of("n1")
