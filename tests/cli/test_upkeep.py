"""purge, scrub, backup, restore and the return of a lost node, as commands on three real nodes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest

from dledger.cli import upkeep_commands
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from dledger.client import BackupHead
from dledger.core.values import NO_BASE
from dledger.errors import Code, ConfigError, ReadFailed, StorageError
from dledger.rpc.log_client import NetworkFailure
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import Identity
from dledger.store.offline.backup import read_manifest

from .conftest import DATA_FILE_SIZE, Command

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-upkeep")]

LINES = b"".join(b"%06d %s\n" % (n, b"x" * 500) for n in range(20_000))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.create(tmp_path / "c", base_port=0, data_file_size=DATA_FILE_SIZE) as cluster:
        cluster.start()
        cluster.wait_for_all()
        yield cluster


def test_purging_then_a_backup_and_a_new_cluster_of_it(
    cluster: LocalCluster, on_cluster: Command, tmp_path: Path
) -> None:
    on_cluster("append", "--quiet", stdin=LINES)
    said = on_cluster("purge", "--before", "15000").stdout
    assert "entries below 15000 will be removed" in said

    def purged(nodes: list[LocalNode]) -> LocalNode | None:
        return nodes[0] if all(0 < node.ledger_begin_index <= 15_000 for node in nodes) else None

    begin = cluster.wait_until(purged, 30, "a purged log").ledger_begin_index  # type: ignore[arg-type]
    refused = on_cluster("read", "--from-index", "0", code=1)
    assert "419 INDEX_LESS_THAN_LOCAL_BEGIN" in refused.stderr
    assert str(begin) in refused.stderr

    left = on_cluster("read").stdout_bytes
    assert LINES.endswith(left)
    backup = tmp_path / "backup"
    assert f"entries {begin}.." in on_cluster("backup", "--to", str(backup)).stdout
    assert "409" not in on_cluster("backup", "--to", str(backup), code=1).stderr
    target = tmp_path / "restored"
    restored = on_cluster(
        "restore", str(backup), "--data-dir", str(target), "--cluster-id", "new", "--node-id", "n1"
    )
    assert "belongs to n1 of cluster new" in restored.stdout
    store = DiskLogStore.open(target)
    assert store.begin_index == begin
    store.close()

    cluster.kill("n2")
    cluster.kill("n3")
    other = str(tmp_path / "other")
    refused = on_cluster("backup", "--to", other, "--timeout", "1", code=1)
    assert "622 READ_NOT_CONFIRMED" in refused.stderr
    known = on_cluster("backup", "--to", other, "--timeout", "1", "--node", cluster.addresses[0])
    assert f"entries {begin}.." in known.stdout and "knows to be committed" in known.stderr


def test_a_scrub_finds_damage_and_the_other_nodes_repair_it(
    cluster: LocalCluster, on_cluster: Command
) -> None:
    on_cluster("append", "--quiet", stdin=LINES[:500_000])
    assert "0 damaged ranges" in on_cluster("scrub").stdout
    data = next(iter(sorted((cluster.store_directory("n2") / "data").iterdir())))
    content = data.read_bytes()
    at = content.index(b"000100 ")
    with data.open("r+b") as file:
        file.seek(at + 50)
        file.write(b"?")
    found = on_cluster("scrub", code=1).stdout
    assert "1 damaged range" in found

    def repaired(nodes: list[LocalNode]) -> LocalNode | None:
        return nodes[0] if all(node.health == "ok" for node in nodes) else None

    cluster.wait_until(repaired, 20, "a repaired log")  # type: ignore[arg-type]
    assert "0 damaged ranges" in on_cluster("scrub").stdout


def test_a_scrub_goes_on_with_the_other_nodes_when_one_is_down(
    cluster: LocalCluster, on_cluster: Command
) -> None:
    on_cluster("append", "--quiet", stdin=LINES[:1_000])
    down, *others = cluster.addresses
    cluster.stop_node("n1")
    scrubbed = on_cluster("scrub", code=1)
    assert f"{down}: NOT verified: error 302 NETWORK_ERROR" in scrubbed.stderr
    assert [line.partition(": verified up to ")[0] for line in scrubbed.stdout.splitlines()] == others
    assert scrubbed.stdout.count(" 0 damaged ranges") == 2
    assert "NOT verified" in on_cluster("scrub", "--node", down, code=1).stderr
    on_cluster("scrub", "--node", others[0])


def test_one_command_brings_a_lost_node_back(cluster: LocalCluster, on_cluster: Command) -> None:
    on_cluster("append", "--quiet", stdin=LINES[:100_000])
    directory = str(cluster.directory)
    refused = on_cluster("cluster", "restart-node", "--dir", directory, "n2", "--rejoin", code=1)
    assert "is not empty" in refused.stderr
    cluster.stop_node("n2")
    shutil.rmtree(cluster.store_directory("n2"))
    on_cluster("append", "--quiet", stdin=LINES[100_000:200_000])
    on_cluster("cluster", "restart-node", "--dir", directory, "n2", "--rejoin")

    def back(nodes: list[LocalNode]) -> LocalNode | None:
        ends = {(node.ledger_end_index, node.health) for node in nodes}
        return nodes[0] if len(ends) == 1 and nodes[0].health == "ok" else None

    cluster.wait_until(back, 30, "a node that is back")  # type: ignore[arg-type]
    assert "waiting for" in "\n".join(cluster.log_tail("n2", 100)) or "rejoining" in "\n".join(
        cluster.log_tail("n2", 100)
    )


class OneServer:
    """A client whose servers know different ends of the committed log."""

    def __init__(self, ends: dict[str, list[int]]) -> None:
        """`ends`: by server, what it knows at each request."""
        self._ends = ends

    async def backup(self, server: str) -> AsyncGenerator[BackupHead | bytes, None]:
        ends = self._ends[server]
        end = ends.pop(0) if len(ends) > 1 else ends[0]
        if end < 0:
            raise NetworkFailure(f"{server} is down")
        yield BackupHead("c", "g", server, 1 << 20, "SYNC_FLUSH", NO_BASE, end)


@pytest.mark.parametrize(
    ("ends", "used"),
    [({"a": [7], "b": [9]}, "a"), ({"a": [4], "b": [5]}, "b"), ({"a": [-1], "b": [2, 5]}, "b")],
)
async def test_a_backup_is_of_a_server_that_has_all_that_was_acknowledged(
    ends: dict[str, list[int]], used: str
) -> None:
    """A follower may not know yet what the leader has committed."""
    deadline = asyncio.get_running_loop().time() + 60
    head, parts = await upkeep_commands._open_backup(cast(Any, OneServer(ends)), ["a", "b"], 5, deadline)
    await parts.aclose()
    assert head.node_id == used


async def test_a_backup_without_such_a_server_fails() -> None:
    with pytest.raises(ReadFailed, match="committed entries up to 4, not yet 5") as caught:
        await upkeep_commands._open_backup(cast(Any, OneServer({"a": [4]})), ["a"], 5, deadline=0.0)
    assert caught.value.code is Code.READ_NOT_CONFIRMED


async def test_a_backup_that_ends_early_is_none(tmp_path: Path) -> None:
    head = BackupHead("c", "g", "n1", 1 << 20, "SYNC_FLUSH", NO_BASE, 5)

    async def nothing() -> AsyncGenerator[BackupHead | bytes, None]:
        return
        yield b""

    with pytest.raises(StorageError, match="ends at entry -1, expected 5") as caught:
        await upkeep_commands._store(head, nothing(), tmp_path / "backup")
    assert caught.value.code is Code.BACKUP_INCOMPLETE
    with pytest.raises(StorageError):
        read_manifest(tmp_path / "backup")


WRONG_OPTIONS: list[tuple[list[str], str]] = [
    (["backup", "--to", ""], "the path is empty"),
    (["backup", "--to", "d", "--node", "nobody"], "not an address of the form host:port"),
    (["backup", "--to", "d", "--node", ""], "not an address of the form host:port"),
    (["scrub", "--node", "nobody"], "not an address of the form host:port"),
    (["restore", ".", "--data-dir", "", "--cluster-id", "c", "--node-id", "n1"], "the path is empty"),
]


@pytest.mark.parametrize(("arguments", "reason"), WRONG_OPTIONS, ids=lambda value: str(value)[:40])
def test_wrong_directories_and_addresses_are_refused_at_once(
    command: Command, arguments: list[str], reason: str
) -> None:
    servers = ["--servers", "127.0.0.1:1"] if arguments[0] in ("backup", "scrub") else []
    assert reason in command(*arguments, *servers, code=2).stderr


@pytest.mark.parametrize(
    "members",
    [
        ["n1"],
        ["n1=h"],
        ["n1=h:0"],
        ["=h:1"],
        ["a\\b=h:1"],
        ["n" * 256 + "=h:1"],
        ["n1=h:1", "n1=h:2"],
        ["n1=h:1", "n2=h:1"],
    ],
    ids=lambda members: str(members)[:30],
)
def test_a_new_cluster_has_possible_members(members: list[str]) -> None:
    with pytest.raises(click.UsageError, match="--member"):
        upkeep_commands._addresses(members)


def test_no_directory_has_a_name_that_no_configuration_can_have() -> None:
    names = {"cluster_id": "c", "group": "g", "node_id": "n1"}
    for name in names:
        Identity(**{**names, name: "x" * 255})
        for wrong in ("", "x" * 256, "a\\b", "a\nb"):
            with pytest.raises(ConfigError, match=f"{name} must have 1 to 255 printable characters"):
                Identity(**{**names, name: wrong})
