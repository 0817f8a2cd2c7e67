"""Directories other than the newest one of a node: a volume that returns, a lost one that is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.errors import Code
from dledger.node.server import EXIT_FATAL
from tests.node.local import PATIENT
from tests.process.cluster import GROUP, ProcessCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-returned-directories")]

REJOIN, INIT = ["--if-empty", "rejoin"], ["--if-empty", "init"]


async def back(cluster: ProcessCluster, node: str) -> None:
    await cluster.wait_for(lambda seen: seen[node].rejoining == "" and seen[node].committed_index >= 0)
    await cluster.settle()


async def is_refused(cluster: ProcessCluster, node: str) -> None:
    cluster.expect_end(node)
    assert await cluster.ended(node) == EXIT_FATAL
    assert f"code={int(Code.DIRECTORY_REPLACED)}" in cluster.log_of(node)
    assert "start the node with --rejoin" in cluster.log_of(node)


async def test_rule_11_a_volume_that_returns_after_the_node_rejoined_is_refused(tmp_path: Path) -> None:
    """n1 acknowledged "after" with its newer directory. Without it, n1 and n3 must not elect a leader."""
    settings = {"timing": PATIENT}
    async with ProcessCluster(tmp_path, settings=settings, server_options=REJOIN) as cluster:
        await cluster.settle()
        async with AsyncClient(cluster.addresses, group=GROUP, timeout=60.0) as client:
            await client.append(b"before")
            await cluster.settle()
            await cluster.stop("n1")
            (tmp_path / "n1").rename(tmp_path / "unmounted")
            await cluster.start(["n1"])
            await back(cluster, "n1")
            await cluster.kill("n3")
            await client.append(b"after")
        await cluster.kill("n1", "n2")
        (tmp_path / "n1").rename(tmp_path / "newest")
        (tmp_path / "unmounted").rename(tmp_path / "n1")
        await cluster.start(["n1", "n3"])
        await is_refused(cluster, "n1")
        numbers = [await cluster.command("inspect", str(tmp_path / name)) for name in ("n1", "newest")]
        old, newest = (int(text.split("directory number ")[1].split()[0]) for text in numbers)
        assert old < newest

        (tmp_path / "n1").rename(tmp_path / "unmounted")
        (tmp_path / "newest").rename(tmp_path / "n1")
        await cluster.start(["n1"])
        await cluster.leader(nodes=["n1", "n3"])
        await cluster.start(["n2"])
        await cluster.settle()
        assert (await cluster.command("read")).split() == ["before", "after"]


async def test_rule_11_a_lost_directory_that_is_initialized_again_is_refused(tmp_path: Path) -> None:
    """`--if-empty init` was left in place after the first start."""
    settings = {"timing": PATIENT}
    async with ProcessCluster(tmp_path, settings=settings, init=False, server_options=INIT) as cluster:
        await cluster.settle()
        await cluster.stop("n1")
        (tmp_path / "n1").rename(tmp_path / "lost")
        await cluster.start(["n1"])
        await is_refused(cluster, "n1")
        (tmp_path / "n1").rename(tmp_path / "initialized-again")
        await cluster.start(["n1"], *REJOIN)  # the last one of an option applies
        await back(cluster, "n1")
