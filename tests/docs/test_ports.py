"""The numbers on docs/ports.md are those of the code."""

from __future__ import annotations

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.config.remoting import SEND_PORT_OFFSET
from broker_adapter.namesrv.config import NameServerConfig
from broker_adapter.server.dev import VIP_OFFSET, DevPorts
from dledger.cli.local.cluster_plan import DEFAULT_BASE_PORT, plan_cluster
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/ports.md").read_text()


def column(title: str) -> dict[str, str]:
    """A column of the table of numbers, by the names of the ports."""
    lines = PAGE.split("## Numbers")[1].split("## Keys")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    number = rows[0].index(title)
    return {row[0]: row[number] for row in rows[2:]}


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def test_numbers_of_the_dev_broker() -> None:
    ports = DevPorts()
    assert column("`dev`") == {
        "log": str(ports.grpc),
        "status page": str(ports.page),
        "remoting": str(ports.broker),
        "VIP": str(ports.vip),
        "send-only": str(ports.send_only),
        "HA": "",
        "NameServer": str(ports.name_server),
        "NameServer's page": "",
    }
    assert f"({ports.send_only_vip} with `dledger dev`)" in PAGE


def test_numbers_of_a_local_cluster() -> None:
    node = plan_cluster("c", "g", 1, DEFAULT_BASE_PORT, remoting=True).nodes[0]
    ((name_server, _),) = BROKER_KIND.prepare(DEFAULT_BASE_PORT, {}).companions
    master, _ = BROKER_KIND.prepare(DEFAULT_BASE_PORT, {"store": "classic"}).of_node
    assert column("`cluster up`") == {
        "log": port_of(node.address),
        "status page": port_of(node.http_address),
        "remoting": port_of(node.remoting_address),
        "VIP": "",
        "send-only": port_of(node.send_address),
        "HA": port_of(master["classic"]["ha_listen"]),
        "NameServer": port_of(name_server.address),
        "NameServer's page": port_of(name_server.http_address),
    }


@pytest.mark.parametrize(("port", "offset"), [("VIP", VIP_OFFSET), ("send-only", SEND_PORT_OFFSET)])
def test_ports_at_a_distance_from_the_remoting_port(port: str, offset: int) -> None:
    for title in ("usual", "`dev`"):
        numbers = column(title)
        assert int(numbers[port]) == int(numbers["remoting"]) + offset


def test_the_usual_port_of_a_name_server_is_its_default() -> None:
    assert column("usual")["NameServer"] == port_of(NameServerConfig.model_fields["listen"].default)
