"""What the options of `dledger dev` mean, without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from broker_adapter.cli import dev_command, dev_nodes
from broker_adapter.cli.dev_command import dev
from broker_adapter.cli.dev_nodes import NodesSettings, run_nodes
from broker_adapter.cli.main import cli
from broker_adapter.server.dev import DevBroker, DevPorts, DevSettings
from dledger import FlushMode
from dledger.cli.local.local_cluster import LocalCluster
from dledger.store.disk_store import DiskLogStore


@pytest.mark.parametrize("fsync", [True, False])
def test_messages_are_confirmed_on_disk_unless_no_fsync_is_given(tmp_path: Path, fsync: bool) -> None:
    DevBroker(DevSettings(tmp_path, fsync=fsync), lambda _: None).make_node()
    store = DiskLogStore.open(tmp_path / "store")
    assert store.identity.flush_mode is (FlushMode.SYNC_FLUSH if fsync else FlushMode.ASYNC_FLUSH)
    store.close()


@pytest.mark.parametrize(
    ("options", "advertised", "is_reachable"),
    [
        ([], "127.0.0.1", False),
        (["--listen", "0.0.0.0"], "127.0.0.1", True),
        (["--listen", "127.0.0.2"], "127.0.0.2", True),
        (["--listen", "0.0.0.0", "--advertise", "h"], "h", True),
    ],
)
def test_clients_are_told_of_a_host_that_they_can_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], advertised: str, is_reachable: bool
) -> None:
    ran: list[DevSettings] = []

    def run(settings: DevSettings, show: object) -> int:
        ran.append(settings)
        return 0

    monkeypatch.setattr(dev_command, "_run_one", run)
    done = CliRunner().invoke(dev, ["--dir", str(tmp_path), "--port", "0", *options])
    assert done.exit_code == 0, done.output
    [settings] = ran
    assert settings.addresses()["broker"] == f"{advertised}:{settings.ports.broker}"
    config = settings.node_config()
    config.refuse_plaintext()
    assert config.allow_plaintext is settings.name_server_config().allow_plaintext is is_reachable


def test_options_for_tests_reach_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[DevSettings] = []

    def run(settings: DevSettings, show: object) -> int:
        ran.append(settings)
        return 0

    monkeypatch.setattr(dev_command, "_run_one", run)
    options = ["--dir", str(tmp_path), "--port", "0"]
    for more in ([], ["--no-fsync", "--log-level", "debug"]):
        CliRunner().invoke(dev, [*options, *more], catch_exceptions=False)
    assert [(settings.fsync, settings.log_level) for settings in ran] == [(True, "warning"), (False, "debug")]


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("log_only", [True, False])
def test_several_nodes_use_the_ports_and_the_durability_that_were_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fsync: bool, log_only: bool
) -> None:
    class Created(Exception):
        pass

    def create(directory: Path, *, first_ports: object, flush_mode: FlushMode, **_: object) -> None:
        raise Created(first_ports, flush_mode)

    monkeypatch.setattr(LocalCluster, "create", create)
    ports = DevPorts(name_server=1001, broker=1100, grpc=1002, page=1003)
    with pytest.raises(Created) as created:
        run_nodes(NodesSettings(tmp_path, 3, ports, fsync, True, False, log_only))
    numbers = (1002, 1003) if log_only else (1002, 1003, 1100, 1110)
    assert created.value.args == (numbers, FlushMode.SYNC_FLUSH if fsync else FlushMode.ASYNC_FLUSH)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--port", "5"], "--namesrv-port"),
        (["--broker-port", "65530"], "--broker-port"),
        (["--port", "0", "--listen", "192.0.2.1"], "--listen 192.0.2.1: Cannot assign"),
        (["--port", "0", "--listen", "nohost.invalid"], "--listen nohost.invalid: the name is unknown"),
        (["--port", "0", "--listen", "a..b"], "--listen a..b: the name is unknown"),
        (["--port", "0", "--advertise", "0.0.0.0"], "'0.0.0.0': expected a host name"),
        (["--port", "0", "--advertise", "[::1]"], "'[::1]': expected a host name"),
        (["--port", "0", "--advertise", ""], "'': expected a host name"),
        (["--port", "0", "--advertise", "h.invalid"], "unknown host name"),
        (["--grpc-port", "10909"], "port 10909 is that of grpc and of vip"),
        (["--namesrv-port", "8081"], "port 8081 is that of name_server and of grpc"),
        (["--port", "0", "--dir", "/proc/version/x"], "choose another path"),
    ],
)
def test_ports_hosts_and_directories_that_cannot_be_used_are_named(options: list[str], reason: str) -> None:
    refused = CliRunner().invoke(cli, ["dev", *options])
    assert refused.exit_code == 2 and reason in refused.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "3", "--listen", "0.0.0.0"],
        ["--nodes", "3", "--advertise", "h"],
        ["--log", "--advertise", "h"],
        ["--nodes", "3", "--port", "0", "--grpc-port", "1"],
    ],
)
def test_options_that_several_nodes_do_not_support_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(dev_command, "_run_nodes", lambda *_: None)
    done = CliRunner().invoke(dev, options)
    assert done.exit_code == 2 and "several nodes and --log" in done.output


def test_nodes_are_stopped_if_they_do_not_become_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    did: list[str] = []

    class Cluster:
        plan = cast(Any, type("Plan", (), {"companions": ()}))

        def start(self) -> None:
            did.append("start")

        def wait_for_leader(self, seconds: float) -> None:
            raise TimeoutError

        def stop(self) -> None:
            did.append("stop")

    monkeypatch.setattr(dev_nodes, "_create", lambda _: Cluster())
    with pytest.raises(TimeoutError):
        run_nodes(NodesSettings(tmp_path, 3, None, True, True, False, True))
    assert did == ["start", "stop"]
