"""`dledger cluster up --broker`, as a user has it."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.cli.namesrv_command import cli as namesrv
from dledger.cli.local.cluster_plan import plan_cluster
from dledger.cli.local.local_cluster import LocalCluster

from .conftest import BrokerCommand


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """For a cluster; whatever runs there in the end is stopped."""
    directory = tmp_path / "cluster"
    yield directory
    if LocalCluster.exists(directory):
        LocalCluster(directory).stop()


def run(command: BrokerCommand, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """As a real process: what it starts must outlive it."""
    done = subprocess.run(
        command.line(*arguments), capture_output=True, text=True, check=False, env=command.process_environment
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.process
@pytest.mark.xdist_group("broker-cli-up")
def test_when_it_returns_messages_are_taken(command: BrokerCommand, directory: Path) -> None:
    where = ("--dir", str(directory))
    up = run(command, "cluster", "up", "--broker", *where, "--base-port", "0", "--detach", "--timeout", "60")
    assert "is a writable master" in up.stderr
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in up.stdout.splitlines()
        if line.startswith("export ")
    )
    assert set(exports) == {"DLEDGER_SERVERS", "DLEDGER_NAMESRV"}
    on_broker = BrokerCommand(exports)
    on_broker("broker", "produce", "--topic", "first", "--timeout", "2", stdin=b"x\n")
    shown = json.loads(command("cluster", "status", *where, "--json").stdout)
    assert [(one["node_id"], one["state"]) for one in shown["companions"]] == [("namesrv", "running")]
    places = [shown["namesrv"]["address"], *(node["remoting_address"] for node in shown["nodes"])]
    assert exports["DLEDGER_NAMESRV"] == places[0], "one port, for brokers, clients and commands"
    assert len(set(places)) == 4
    for place in places:
        host, port = place.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    assert [node["owner"].get("remoting_address") for node in shown["nodes"]] == places[1:]
    asked = CliRunner().invoke(namesrv, ["status", "--servers", exports["DLEDGER_NAMESRV"], "--json"])
    assert list(json.loads(asked.stdout)) == places[:1]
    assert [node["owner"].get("broker_role") for node in shown["nodes"]].count("SYNC_MASTER") == 1
    down = run(command, "cluster", "down", *where, "--timeout", "60")
    assert down.stderr.split() == ["n1", "stopped", "n2", "stopped", "n3", "stopped", "namesrv", "stopped"]


def test_a_cluster_without_brokers_has_none_to_wait_for() -> None:
    assert not BROKER_KIND.variables(plan_cluster("c", "default", 3, 23000))
    assert BROKER_KIND.cells({}) == ("", "")
    rows = BROKER_KIND.ports(plan_cluster("c", "g", 2, 23000, remoting=True), [{"ha_address": "h:1"}])
    classic = {row.port: row.addresses for row in rows}
    assert classic["HA"] == ["h:1"] and "send-only" not in classic
    assert not BROKER_KIND.is_ready({})
    master = {"broker_role": "SYNC_MASTER", "dispatch_behind_bytes": 2048, "writable": True}
    assert BROKER_KIND.cells(master) == ("SYNC_MASTER", "2.0 KiB")
    assert BROKER_KIND.is_ready(master)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--role", "async"], "--role requires --broker"),
        (["--store", "classic"], "--store requires --broker"),
        (["--broker", "--role", "sync"], "--role sync requires --store classic"),
    ],
)
def test_an_option_without_the_one_that_it_requires_is_refused(
    command: BrokerCommand, directory: Path, options: list[str], reason: str
) -> None:
    assert reason in command("cluster", "up", "--dir", str(directory), *options, code=2).stderr
    assert not directory.exists()
