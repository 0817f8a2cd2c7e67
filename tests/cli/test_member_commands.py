"""`dledger member`, and the commands that change the members of a local cluster."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local import local_members
from dledger.cli.local.cluster_plan import MAX_NODES, NodePlan
from dledger.cli.local.local_cluster import LocalCluster
from dledger.cli.local.node_process import NodeProcess
from dledger.client.member_changes import MemberChanges
from tests.node.local import PATIENT

from .conftest import DATA_FILE_SIZE, Command

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-members")]


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster.create(
        tmp_path / "cluster",
        nodes=3,
        base_port=0,
        data_file_size=DATA_FILE_SIZE,
        settings={"timing": PATIENT},
        tls=request.param,
    ) as cluster:
        cluster.start()
        cluster.wait_for_all()
        yield cluster
        LocalCluster(cluster.directory).stop()  # with the nodes that were added


def on(cluster: LocalCluster) -> Command:
    """Commands with the addresses of the first nodes."""
    variables = {"DLEDGER_SERVERS": ",".join(cluster.addresses)}
    if (files := cluster.tls_files) is not None:
        names = ("DLEDGER_TLS_CA", "DLEDGER_TLS_CERT", "DLEDGER_TLS_KEY")
        variables |= dict(zip(names, map(str, files.paths()), strict=True))
    return Command(variables)


def members(command: Command) -> dict[str, Any]:
    shown = json.loads(command("member", "list", "--json", "--timeout", "60").stdout)
    return {member["node_id"]: member for member in shown["members"]}


def test_a_local_cluster_grows_replaces_a_lost_node_and_shrinks(cluster: LocalCluster) -> None:
    command, directory = on(cluster), str(cluster.directory)
    command("append", stdin=b"before\n")
    leader = cluster.wait_for_leader().node_id

    added = command("cluster", "add-node", "--dir", directory)
    assert "n4 is a voter" in added.stdout
    told = added.stderr.splitlines()
    assert told.count("n4 is a member and receives the log") == 1
    assert not [line for line in told if "does not answer" in line or "try again" in line]
    lost = next(node for node in ("n1", "n2", "n3") if node != leader)
    command("cluster", "kill", "--dir", directory, lost)
    shutil.rmtree(cluster.folder(lost))
    replaced = command("cluster", "replace-node", "--dir", directory, lost)
    assert f"n5 is a voter in place of {lost}" in replaced.stdout
    assert f"export DLEDGER_SERVERS={','.join(LocalCluster(cluster.directory).addresses)}" in replaced.stdout
    shown = json.loads(command("status", "--json", "--timeout", "20").stdout)["nodes"]
    assert {"n4", "n5"} <= {node.get("node_id") for node in shown}
    assert {node: member["role"] for node, member in members(command).items()} == dict.fromkeys(
        sorted({"n1", "n2", "n3", "n4", "n5"} - {lost}), "voter"
    )
    command("append", stdin=b"between\n")
    removed = command("cluster", "remove-node", "--dir", directory, leader)
    assert f"{leader} is stopped and no longer a member" in removed.stdout
    command("append", stdin=b"after\n")
    assert command("read").stdout.split() == ["before", "between", "after"]

    known = LocalCluster(cluster.directory)
    assert set(known.node_ids) == set(members(command)) == {"n1", "n2", "n3", "n4", "n5"} - {lost, leader}
    assert set(known.running()) == set(known.node_ids)
    known.stop()
    known.start()  # the file of each node names other members
    known.wait_for_all()
    assert set(members(command)) == set(known.node_ids)


def test_members_are_listed_demoted_and_promoted(cluster: LocalCluster) -> None:
    command = on(cluster)
    node = next(n for n in cluster.node_ids if n != cluster.wait_for_leader().node_id)
    assert f"{node} is a learner" in command("member", "demote", node).stdout
    assert members(command)[node]["role"] == "learner"
    assert "state" in members(command)[node]
    shown = command("member", "list").stdout
    assert shown.splitlines()[0].split() == ["node", "address", "role", "uid", "lag", "state"]
    assert f"{node} is a voter" in command("member", "promote", node).stdout
    assert members(command)[node]["role"] == "voter"


def test_an_unknown_member_is_named_with_the_known_ones(cluster: LocalCluster) -> None:
    refused = on(cluster)("member", "promote", "n9", "--timeout", "20", code=1)
    assert "401 UNKNOWN_MEMBER: n9 is not a member; members: n1, n2, n3" in refused.stderr
    refused = on(cluster)("member", "remove", "n9", "--timeout", "20", code=1)
    assert "401 UNKNOWN_MEMBER: n9 is not a member: nothing was changed" in refused.stderr


def test_nodes_that_the_group_has_removed_are_not_started_with_it(cluster: LocalCluster) -> None:
    command, directory = on(cluster), str(cluster.directory)
    gone = next(n for n in cluster.node_ids if n != cluster.wait_for_leader().node_id)
    assert f"{gone} is no longer a member" in command("member", "remove", gone).stdout
    cluster.stop()
    up = command("cluster", "up", "--dir", directory, "--detach", "--timeout", "60")
    assert f"{gone} is no longer a member of the group, so it is not started" in up.stderr
    assert set(cluster.running()) == set(cluster.node_ids) - {gone}
    forgotten = command("cluster", "remove-node", "--dir", directory, gone)
    assert f"{gone} is stopped and no longer a member" in forgotten.stdout
    assert gone not in LocalCluster(cluster.directory).node_ids
    assert "no longer" not in command("cluster", "up", "--dir", directory, "--detach").stderr


def test_a_new_node_that_does_not_start_is_named_with_its_error(cluster: LocalCluster) -> None:
    command, directory = on(cluster), str(cluster.directory)
    for node in cluster.node_ids:  # models of the new node's file
        path = cluster.folder(node) / "node.toml"
        path.write_text("unknown_key = 1\n" + path.read_text())
    refused = command("cluster", "add-node", "--dir", directory, code=1)
    assert "n4 did not start" in refused.stderr and "unknown_key" in refused.stderr
    assert not (cluster.directory / "n4").exists()


def interrupt_after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """The first call of a function is followed by Ctrl-C."""
    work: Any = getattr(owner, name)

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        result = work(*args, **options)
        if not inspect.isawaitable(result):
            raise KeyboardInterrupt

        async def then_interrupt() -> None:
            await result
            raise KeyboardInterrupt

        return then_interrupt()

    monkeypatch.setattr(owner, name, interrupted)


STEPS: list[tuple[object, str]] = [
    (local_members, "_config_like"),
    (LocalCluster, "start_new"),
    (local_members, "_wait_until_answers"),
    (MemberChanges, "add"),
    (local_members, "save_plan"),
    (MemberChanges, "change"),
]


@pytest.mark.slow
@pytest.mark.parametrize("replaces", [False, True], ids=["add", "replace"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_change_of_a_local_cluster_continues_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, replaces: bool
) -> None:
    directory = tmp_path / "cluster"
    settings = {"timing": PATIENT}
    one = LocalCluster.create(
        directory, nodes=1, base_port=0, data_file_size=DATA_FILE_SIZE, settings=settings
    )
    one.start()
    one.wait_for_all()

    def change() -> NodePlan:
        local = LocalCluster(directory)
        if replaces:
            return local_members.replace_node(local, "n1", 60.0, lambda text: None)
        return local_members.add_node(local, 60.0, lambda text: None)

    try:
        interrupt_after(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            change()
        monkeypatch.undo()
        new = change()
        known = LocalCluster(directory)
        expected = {new.node_id} if replaces else {"n1", new.node_id}
        assert set(known.node_ids) == set(known.running()) == expected
        assert members(on(known)) == {
            node: {**member, "role": "voter"} for node, member in members(on(known)).items()
        }
        assert set(members(on(known))) == expected
    finally:
        LocalCluster(directory).stop()
        folders = [path for path in directory.iterdir() if path.is_dir()]
        alive = [path.name for path in folders if NodeProcess(path, path / "node.toml").is_alive]
        for folder in folders:
            NodeProcess(folder, folder / "node.toml").stop(1.0)
    assert not alive, "what an interrupted command has started stops with the cluster"


@pytest.mark.slow
def test_what_an_interrupted_command_has_started_stops_with_the_cluster(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, LocalCluster, "start_new")
    with pytest.raises(KeyboardInterrupt):
        local_members.add_node(LocalCluster(cluster.directory), 60.0, lambda text: None)
    folder = cluster.directory / "n4"
    process = NodeProcess(folder, folder / "node.toml")
    try:
        assert process.is_alive
        on(cluster)("cluster", "down", "--dir", str(cluster.directory))
        assert not process.is_alive
    finally:
        process.stop(1.0)


@pytest.mark.parametrize("address", ["here", "10.0.0.1", "10.0.0.1:0"])
def test_a_wrong_address_is_refused_before_anything_is_asked(command: Command, address: str) -> None:
    refused = command("member", "add", "n4", "--address", address, "--servers", "127.0.0.1:1", code=2)
    assert "host:port" in refused.stderr


def test_a_local_cluster_has_certificates_for_nodes_to_come(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", nodes=1, base_port=0, tls=True)
    names = {path.stem for path in (cluster.directory / "tls").glob("n*.pem")}
    assert names == {f"n{number}" for number in range(1, MAX_NODES + 1)}
