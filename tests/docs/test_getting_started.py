"""docs/getting-started.md can be followed as it stands."""

from __future__ import annotations

import json
import re
import time
import tomllib
from pathlib import Path

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.config.settings import parse_settings
from broker_adapter.namesrv.config import DEFAULT_LISTEN, NameServerConfig
from dledger.cli.local.cluster_plan import DEFAULT_BASE_PORT, plan_cluster
from dledger.errors import Code
from dledger.node.setup.config import parse_config
from tests.docs.command_lines import fault_of
from tests.docs.pages import ROOT, commands_of, markdown_pages
from tests.docs.walkthrough import HOSTS, PAGE, PLACES, File, Machines, Shell, for_machine, steps_of
from tests.process.cluster import free_ports

TEXT = PAGE.read_text()
STEPS = list(steps_of(TEXT))
NODE_PORT, NODE_HTTP_PORT, NAMESRV_HTTP_PORT = DEFAULT_BASE_PORT, 20980, 9880
REMOTING_PORT, SEND_PORT = 10911, 10921
NAMESRV_PORT = int(DEFAULT_LISTEN.rpartition(":")[2])
PORTS = {NODE_PORT, NODE_HTTP_PORT, REMOTING_PORT, SEND_PORT, NAMESRV_PORT, NAMESRV_HTTP_PORT}
_PATIENCE_S = 60.0


def files(name: str) -> list[File]:
    return [step for step in STEPS if isinstance(step, File) and step.path.endswith(name)]


def node_file(machine: int, *, with_broker: bool = True) -> str:
    return "".join(for_machine(f.text, machine) for f in files("/node.toml") if with_broker or not f.appended)


def test_every_command_of_the_page_exists() -> None:
    commands = list(commands_of(TEXT))
    assert len(commands) > 25
    assert [f"{command}: {fault}" for command in commands if (fault := fault_of(command))] == []


def test_every_shell_block_says_where_it_runs() -> None:
    assert TEXT.count("```sh\n") == len([step for step in STEPS if isinstance(step, Shell)]) > 8
    assert {step.place for step in STEPS if isinstance(step, Shell)} == set(PLACES)


@pytest.mark.parametrize("with_broker", [False, True])
@pytest.mark.parametrize("machine", [1, 2, 3])
def test_the_file_of_a_node_is_valid(machine: int, with_broker: bool) -> None:
    config = parse_config(tomllib.loads(node_file(machine, with_broker=with_broker)))
    assert (config.node_id, config.http_listen) == (f"n{machine}", f"{HOSTS[machine - 1]}:{NODE_HTTP_PORT}")
    assert config.members == {f"n{i}": f"{host}:{NODE_PORT}" for i, host in enumerate(HOSTS, 1)}
    assert (config.program is not None) is with_broker
    if config.program is not None:
        settings = parse_settings(config.program.settings)
        assert list(settings.namesrv) == [f"{host}:{NAMESRV_PORT}" for host in HOSTS[:2]]
        assert settings.remoting.listen == f"{HOSTS[machine - 1]}:{REMOTING_PORT}"
        assert settings.remoting.send_listen == f"{HOSTS[machine - 1]}:{SEND_PORT}"


@pytest.mark.parametrize("machine", [1, 2])
def test_the_file_of_a_nameserver_is_valid(machine: int) -> None:
    config = NameServerConfig.model_validate(
        tomllib.loads(for_machine(files("/namesrv.toml")[0].text, machine))
    )
    assert config.listen == f"{HOSTS[machine - 1]}:{NAMESRV_PORT}"
    assert config.http_listen == f"{HOSTS[machine - 1]}:{NAMESRV_HTTP_PORT}"
    assert config.tls is not None and set(config.tls.broker_names) == {"n1", "n2", "n3"}


def test_the_ports_of_the_table_are_those_of_the_files() -> None:
    rows = re.findall(r"^\| (\d+)(?:, (\d+))? \|", TEXT, re.MULTILINE)
    table = {int(port) for row in rows for port in row if port}
    assert table == PORTS


@pytest.mark.parametrize("page", markdown_pages())
def test_machines_have_the_same_ports_on_every_page(page: str) -> None:
    """Those of machines; on 127.0.0.1 are local clusters, which number their nodes by port."""
    text = (ROOT / page).read_text()
    assert {int(port) for port in re.findall(r"10\.0\.0\.\d:(\d+)", text)} - PORTS == set()


def local_ports() -> set[int]:
    """Of `dledger cluster up --broker`, of NameServers, and of ports for clients of RocketMQ."""
    nodes = plan_cluster("any", "default", 3, DEFAULT_BASE_PORT).nodes
    companions = [companion for companion, _ in BROKER_KIND.prepare(DEFAULT_BASE_PORT, {}).companions]
    addresses = [address for one in (*nodes, *companions) for address in (one.address, one.http_address)]
    return {int(address.rpartition(":")[2]) for address in addresses} | PORTS | {NAMESRV_PORT + 1, 8081}


@pytest.mark.parametrize("page", markdown_pages())
def test_local_ports_are_those_of_local_clusters(page: str) -> None:
    text = (ROOT / page).read_text()
    assert {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)} - local_ports() == set()


def test_every_number_of_the_page_is_an_error_of_the_log_or_of_the_broker() -> None:
    from broker_adapter.errors import Status

    known = {int(code) for code in Code} | {int(status) for status in Status}
    rows = TEXT.partition("## Troubleshooting")[2]
    numbers = {int(number) for number in re.findall(r"\b[4-7]\d\d\b", rows)}
    assert len(numbers) > 8
    assert numbers - known == set()


def wait_until_healthy(machines: Machines, servers: list[str]) -> None:
    """All nodes answer, one leads, and nobody is behind."""
    options = f"--servers {','.join(servers)} --tls-ca ca.pem --tls-cert ops.pem --tls-key ops.key"
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        nodes = json.loads(machines.run(f"dledger status --json {options} || true", 0))["nodes"]
        roles = sorted(node.get("role", "") for node in nodes)
        ends = {node.get("committed_index") for node in nodes}
        if roles == ["FOLLOWER", "FOLLOWER", "LEADER"] and len(ends) == 1:
            return
        assert time.monotonic() < deadline, nodes
        machines.pause(0.1)


@pytest.mark.process
@pytest.mark.xdist_group("getting-started")
def test_the_page_can_be_walked_through(tmp_path: Path) -> None:
    addresses = [f"{host}:{port}" for port in sorted(PORTS) for host in HOSTS]
    servers = [f"{host}:{NODE_PORT}" for host in HOSTS]
    printed = ""
    with Machines(tmp_path, dict(zip(addresses, free_ports(len(addresses)), strict=True))) as machines:
        for step in STEPS:
            if isinstance(step, File):
                machines.write(step)
                continue
            for place in PLACES[step.place]:
                printed += machines.run(step.text, place)
                started_last = "enable --now dledger" in step.text and place == 3
                if started_last or "start dledger" in step.text:
                    wait_until_healthy(machines, servers)
            machines.hand_out("*.pem")
            machines.hand_out("*.key")
    for expected in ("LEADER", "still here", '"ok":true', "SYNC_MASTER", "2 of 2"):
        assert expected in printed, printed
    assert printed.count("hello") >= 2, printed
