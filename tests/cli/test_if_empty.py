"""`dledger server --if-empty`: a node without an identity, and one that has an identity."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger.cli.exits import Exit
from dledger.cli.main import cli
from dledger.client import AsyncClient
from dledger.errors import Code
from dledger.store.identity import Identity, init_directory, load_identity
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


@pytest.mark.parametrize("has_identity", [False, True])
@pytest.mark.parametrize("choice", ["init", "rejoin"])
def test_the_variable_applies_only_to_a_node_without_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, has_identity: bool
) -> None:
    """A container starts with it each time."""
    directory, identity = tmp_path / "n1", Identity("c", "default", "n1")
    if has_identity:
        init_directory(directory, identity)
    rejoins = list[bool]()

    def run_node(*_: object, rejoin: bool, join: bool) -> int:
        assert not join
        rejoins.append(rejoin)
        return Exit.OK

    monkeypatch.setattr("dledger.node.run.run_node", run_node)
    options = ["--directory", str(directory), "--node-id", "n1", "--cluster-id", "c"]
    members = ["--member", "n1=127.0.0.1:1"]
    done = CliRunner().invoke(cli, ["server", *options, *members], env={"DLEDGER_IF_EMPTY": choice})
    assert done.exit_code == Exit.OK, done.output
    assert rejoins == [choice == "rejoin" and not has_identity]
    if has_identity:
        assert load_identity(directory) == identity
    else:
        assert directory.exists() is (choice == "init")
