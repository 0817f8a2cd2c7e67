"""`dledger recover`: what it prints, and when it does not go ahead."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from dledger.cli import recover_command
from dledger.cli.exits import Exit
from dledger.core.values import HardState
from dledger.errors import Code
from dledger.node.probe import Probe
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import Identity, init_directory, load_identity
from tests.cli.conftest import Command
from tests.process.cluster import free_ports, toml_of
from tests.store.helpers import SIZE, make_batches

FORCE = ["--force-new-cluster", "--timeout", "1"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a stopped node with a log, whose other members have ports of their own."""
    directory = tmp_path / "n1"
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    init_directory(directory, Identity("orders", "default", "n1", SIZE, members=("n1", "n2", "n3")))
    store = DiskLogStore.open(directory)
    batches = make_batches(6)
    store.append(batches)
    store.save_hard_state(HardState(40, "n1", 3))
    store.sync()
    store.save_checkpoint(batches[3].last_index, None)
    store.close()
    path = tmp_path / "n1.toml"
    path.write_text(toml_of({"node_id": "n1", "cluster_id": "orders", "directory": "n1", "members": members}))
    return path


def is_unchanged(config: Path) -> bool:
    return load_identity(config.parent / "n1").cluster_id == "orders"


def test_without_a_terminal_it_shows_the_report_and_changes_nothing(config: Path, command: Command) -> None:
    result = command("recover", "--config", str(config), *FORCE, code=Exit.USAGE)
    assert "pass --yes" in result.stderr and "nothing was changed" in result.stderr
    log = make_batches(6)
    last, committed = log[-1].last_index, log[3].last_index
    assert f"entry {last} of term {log[-1].term}" in result.stdout
    assert f"up to entry {committed}" in result.stdout
    assert f"{last - committed} entries above it" in result.stdout
    assert "n2 (127.0.0.1:" in result.stdout and "n3 (127.0.0.1:" in result.stdout
    assert is_unchanged(config)


def test_it_asks_on_a_terminal(config: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover_command, "_has_terminal", lambda: True)
    refused = command("recover", "--config", str(config), *FORCE, stdin=b"n\n", code=Exit.FAILED)
    assert f"{int(Code.RECOVERY_REFUSED)} RECOVERY_REFUSED" in refused.stderr and is_unchanged(config)
    agreed = command("recover", "--config", str(config), *FORCE, stdin=b"y\n")
    new_id = load_identity(config.parent / "n1").cluster_id
    assert f'cluster_id = "{new_id}"' in agreed.stdout and new_id.startswith("orders-r1-")


@pytest.mark.parametrize("number", [1, 2])
def test_members_that_run_are_met_before_and_after_the_question(
    config: Path, command: Command, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked: list[tuple[str, ...]] = []

    async def probe(_: object, clusters: tuple[str, ...], *rest: object) -> Probe:
        asked.append(clusters)
        return Probe(("n2 at x: it leads",) if len(asked) >= number else (), ())

    monkeypatch.setattr(recover_command, "_has_terminal", lambda: True)
    monkeypatch.setattr(recover_command, "probe_members", probe)
    options = ["--config", str(config), *FORCE, "--new-cluster-id", "new"]
    refused = command("recover", *options, stdin=b"y\n", code=Exit.FAILED)
    assert f"{int(Code.RECOVERY_REFUSED)} RECOVERY_REFUSED" in refused.stderr and is_unchanged(config)
    assert "n2 at x: it leads" in refused.stderr and asked == [("orders", "new")] * number


def test_the_flag_is_required(config: Path, command: Command) -> None:
    result = command("recover", "--config", str(config), "--yes", code=Exit.USAGE)
    assert "--force-new-cluster" in result.stderr and is_unchanged(config)


def test_json_has_what_was_done(config: Path, command: Command) -> None:
    options = [*FORCE, "--yes", "--json", "--new-cluster-id", "orders-2"]
    report = json.loads(command("recover", "--config", str(config), *options).stdout)
    assert load_identity(config.parent / "n1").cluster_id == report["cluster_id"] == "orders-2"
    assert report["former_id"] == "orders" and report["number"] == 1
    assert [member["node_id"] for member in report["dropped"]] == ["n2", "n3"]
    again = command("recover", "--config", str(config), *FORCE, "--yes", code=Exit.FAILED)
    assert "the only member of its group" in again.stderr


def test_what_accepts_connections_and_does_not_answer_is_named(config: Path, command: Command) -> None:
    """It may be a stopped process that will go on, or another program: the operator decides."""
    port = int(config.read_text().split('n2 = "127.0.0.1:')[1].split('"')[0])
    with socket.create_server(("127.0.0.1", port)):
        result = command("recover", "--config", str(config), *FORCE, "--yes")
    assert f"warning: n2 at 127.0.0.1:{port} accepts connections" in result.stdout
