"""The life of a local cluster, from the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local.cluster_commands import events_between
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode, describe
from tests.process.cluster import free_ports
from tests.process.small_disks import mounted

from .conftest import DATA_FILE_SIZE, Command

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-cluster")]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """For a cluster; whatever runs there in the end is stopped."""
    directory = tmp_path / "cluster"
    yield directory
    if LocalCluster.exists(directory):
        LocalCluster(directory).stop()


def run(command: Command, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """As a real process: what it starts must outlive it."""
    done = subprocess.run(
        command.line(*arguments), capture_output=True, text=True, check=False, env=command.process_environment
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def status_of(command: Command, directory: Path, *, code: int = 0) -> dict[str, Any]:
    result = command("cluster", "status", "--dir", str(directory), "--json", code=code)
    shown = json.loads(result.stdout)
    assert isinstance(shown, dict)
    return shown


def answered_status(command: Command, directory: Path) -> dict[str, Any]:
    """What all nodes say: one that a busy machine keeps from answering within a second is asked again."""
    for _ in range(30):
        shown = status_of(command, directory)
        if all(node["state"] != "silent" for node in shown["nodes"]):
            break
    return shown


def test_up_status_down_and_up_again(command: Command, directory: Path) -> None:
    where = ("--dir", str(directory))
    up = run(command, "cluster", "up", *where, "--base-port", "0", "--detach", "--timeout", "60")
    servers = up.stdout.rpartition("DLEDGER_SERVERS=")[2].strip()
    client = Command({"DLEDGER_SERVERS": servers})
    client("append", stdin=b"kept\n")

    shown = answered_status(command, directory)
    assert [node["state"] for node in shown["nodes"]] == ["running"] * 3
    assert {"pid", "address", "http_address", "role", "term", "leader_id"} <= set(shown["nodes"][0])
    assert {"ledger_begin_index", "ledger_end_index", "committed_index", "why"} <= set(shown["nodes"][0])
    plan = json.loads((directory / "cluster.json").read_text())
    assert ",".join(node["address"] for node in plan["nodes"]) == servers

    again = run(command, "cluster", "up", *where, code=1)
    assert "already run" in again.stderr and "--detach" in again.stderr
    assert "Traceback" not in again.stderr

    run(command, "cluster", "kill", *where, "n2")
    again = run(command, "cluster", "up", *where, "--detach", "--timeout", "60")
    assert "started n2;" in again.stderr
    before, now = (
        {n["node_id"]: n["pid"] for n in one["nodes"]} for one in (shown, status_of(command, directory))
    )
    assert [name for name in before if before[name] != now[name]] == ["n2"]
    again = run(command, "cluster", "up", *where, "--detach", "--timeout", "60")
    assert "started no node;" in again.stderr

    down = run(command, "cluster", "down", *where, "--timeout", "60")
    assert down.stderr.split() == ["n1", "stopped", "n2", "stopped", "n3", "stopped"]
    shown = status_of(command, directory, code=1)
    assert {node["why"] for node in shown["nodes"]} == {"stopped (exit code 0)"}
    assert "no node was running" in run(command, "cluster", "down", *where).stderr

    identities = [path.read_bytes() for path in sorted(directory.glob("n*/store/identity"))]
    run(command, "cluster", "up", *where, "--detach", "--timeout", "60")
    assert [path.read_bytes() for path in sorted(directory.glob("n*/store/identity"))] == identities
    assert client("read").stdout == "kept\n"


def test_the_foreground_tells_what_happens_and_stops_the_nodes(command: Command, directory: Path) -> None:
    with command.spawn("cluster", "up", "--dir", str(directory), "--base-port", "0") as process:
        assert process.stderr is not None
        lines = map(bytes.decode, iter(process.stderr.readline, b""))
        assert any("Ctrl-C" in line for line in lines)
        cluster = LocalCluster(directory)
        pid = cluster.kill("n2")
        assert any(f"n2 (pid {pid}) is down: killed by SIGKILL" in line for line in lines)
        command("cluster", "restart-node", "--dir", str(directory), "n2")
        assert any("n2 was started" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest = "".join(lines)
        assert process.wait() == 0
    assert all(f"{node_id} stopped" in rest for node_id in cluster.node_ids)
    assert cluster.running() == []


def test_a_cluster_on_a_full_disk_says_so_instead_of_waiting_for_a_leader(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    with mounted([folder], 8 << 20):
        directory = folder / "cluster"
        where = ("--dir", str(directory), "--base-port", "0")
        done = run(command, "cluster", "up", *where, "--timeout", "600", code=1)
        assert "error 415 DISK_FULL: no leader: no space for another log file in" in done.stderr
        assert "n1: running, FOLLOWER, term 0, the disk is full" in done.stderr
        assert LocalCluster(directory).running() == []


def test_taken_ports_are_named(command: Command, directory: Path) -> None:
    cluster = LocalCluster.create(directory, base_port=0, data_file_size=DATA_FILE_SIZE)
    host, _, port = cluster.addresses[1].rpartition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()
        result = run(command, "cluster", "up", "--dir", str(directory), "--detach", code=2)
    assert result.stderr.startswith(
        f"error 635 PORT_IN_USE: these ports are in use by another process: {cluster.addresses[1]};"
    )
    assert cluster.running() == []
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_a_failed_up_leaves_no_directory(command: Command, directory: Path) -> None:
    for port in ("99999", "-4", "65534"):
        result = command("cluster", "up", "--dir", str(directory), "--base-port", port, code=2)
        assert f"--base-port is {port}" in result.stderr
        assert not directory.exists()
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_ports(1)[0]))
        other.listen()
        port = str(other.getsockname()[1])
        result = command("cluster", "up", "--dir", str(directory), "--base-port", port, code=2)
    assert "PORT_IN_USE" in result.stderr
    assert not directory.exists()


def test_a_node_that_cannot_start_says_why(command: Command, directory: Path) -> None:
    cluster = LocalCluster.create(
        directory, nodes=1, base_port=0, data_file_size=DATA_FILE_SIZE, settings={"nonsense": 1}
    )
    result = run(command, "cluster", "up", "--dir", str(directory), "--detach", code=1)
    assert "n1: failed (exit code 2)" in result.stderr
    assert "unknown key nonsense" in result.stderr
    node = cluster.status()[0]
    assert (node.state, node.why) == ("down", "failed (exit code 2)")
    assert any("nonsense" in line for line in node.last_log_lines)
    assert "unknown key nonsense" in command("cluster", "status", "--dir", str(directory), code=1).stdout


def test_pause_and_resume(command: Command, directory: Path) -> None:
    with LocalCluster.create(directory, nodes=1, base_port=0, data_file_size=DATA_FILE_SIZE) as cluster:
        cluster.start()
        assert [node.state for node in cluster.wait_for_answers(0)] == ["silent"], (
            "it has to load Python first"
        )
        assert [node.state for node in cluster.wait_for_answers()] == ["running"]
        cluster.wait_for_leader()
        where = ("--dir", str(directory))
        command("cluster", "kill", *where, "n1", "--signal", "STOP")
        cluster.wait_until(lambda nodes: nodes[0] if nodes[0].state == "paused" else None, 10, "paused n1")
        command("cluster", "kill", *where, "n1", "--signal", "CONT")
        cluster.wait_for_leader()
        command("cluster", "kill", *where, "n1", "--signal", "TERM")
        assert cluster.process("n1").wait(10)
        result = command("cluster", "kill", *where, "leader", code=1)
        assert "no node leads now" in result.stderr
        result = command("cluster", "kill", *where, "n1", code=1)
        assert "n1 is not running: stopped (exit code 0)" in result.stderr
        with pytest.raises(ClusterError, match="all nodes are down"):
            cluster.wait_for_leader()


def test_directories_of_others_are_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    result = command("cluster", "up", "--dir", str(tmp_path), code=2)
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_no_cluster_says_how_to_make_one(command: Command, tmp_path: Path) -> None:
    for name in ("status", "down"):
        result = command("cluster", name, "--dir", str(tmp_path), code=2)
        assert f"dledger cluster up --dir {tmp_path}" in result.stderr


def test_the_shape_of_a_cluster_cannot_be_changed(command: Command, directory: Path) -> None:
    LocalCluster.create(directory, base_port=0)
    result = command("cluster", "up", "--dir", str(directory), "--nodes", "5", code=2)
    assert "--nodes cannot change that" in result.stderr
    result = command("cluster", "up", "--dir", str(directory), "--base-port", "1234", code=2)
    assert "--base-port cannot change that" in result.stderr


# -- events, without processes

FOLLOWER = LocalNode("n1", "running", 10, "a", "b", role="FOLLOWER", term=1, health="ok")
LEADER = replace(FOLLOWER, role="LEADER", term=2)


@pytest.mark.parametrize(
    ("before", "now", "events"),
    [
        (FOLLOWER, FOLLOWER, []),
        (FOLLOWER, replace(FOLLOWER, committed_index=5), []),
        (FOLLOWER, LEADER, ["n1 leads in term 2"]),
        (LEADER, replace(LEADER, term=4), ["n1 leads in term 4"]),
        (LEADER, replace(FOLLOWER, term=3), ["n1 is FOLLOWER in term 3, no longer leader"]),
        (
            LEADER,
            LocalNode("n1", "down", 10, "a", "b", why="failed (exit code 1)", last_log_lines=("oh",)),
            ["n1 (pid 10) is down: failed (exit code 1)\n    oh"],
        ),
        (FOLLOWER, replace(FOLLOWER, state="paused"), ["n1 (pid 10) is paused"]),
        (FOLLOWER, replace(FOLLOWER, state="silent"), ["n1 (pid 10) does not answer"]),
        (replace(FOLLOWER, state="paused"), FOLLOWER, ["n1 (pid 10) answers"]),
        (FOLLOWER, replace(FOLLOWER, pid=11), ["n1 was started (pid 11)"]),
        (FOLLOWER, replace(FOLLOWER, health="disk full"), ["n1: disk full"]),
    ],
)
def test_events(before: LocalNode, now: LocalNode, events: list[str]) -> None:
    assert events_between([before], [now]) == events


def test_describe() -> None:
    down = LocalNode("n2", "down", 1, "a", "b", why="killed by SIGKILL")
    assert describe([LEADER, down]) == "n1: running, LEADER, term 2; n2: killed by SIGKILL"
    full = replace(LEADER, health="the disk is full")
    paused = replace(LEADER, state="paused")
    assert describe([full, paused]) == "n1: running, LEADER, term 2, the disk is full; n1: paused"
