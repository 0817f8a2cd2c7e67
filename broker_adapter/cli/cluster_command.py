"""`dledger cluster` with the option `--broker`.

`cluster up --broker` starts a broker on every node, and a NameServer. With `--store classic` it starts a
master and a slave with CommitLogs in RocketMQ's format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from broker_adapter.cli.connect.options import NAMESRV_VARIABLE
from dledger.cli.client_options import SERVERS_VARIABLE
from dledger.cli.local.cluster_commands import add_kind, cluster
from dledger.cli.local.cluster_kinds import Additions, ClusterKind, KindChoice, OwnerFacts, PortRow
from dledger.cli.local.cluster_plan import HOST, ClusterPlan, CompanionPlan, free_ports
from dledger.cli.local.local_cluster import REMOTING_ADDRESS, SEND_ADDRESS
from dledger.cli.output import human_bytes

__all__ = ["BROKER_KIND", "cluster", "is_writable_master"]

_NAMESRV = "namesrv"
#: Distance between the port of a node and the ports of its NameServer.
_PORT_OFFSET = 200
#: Distance between the port of a node and its HA port.
_HA_PORT_OFFSET = 400
#: Size of CommitLog files. Smaller than RocketMQ's, to save disk space on a laptop.
_FILE_SIZE = 64 << 20


def _prepare(base_port: int, choices: Mapping[str, str]) -> Additions:
    first = base_port + _PORT_OFFSET
    ports = [first, first + 1] if base_port else free_ports(2)
    address, http_address = (f"{HOST}:{port}" for port in ports)
    if choices.get("store") == "classic":
        return _classic(base_port, choices, address, _name_server(address, http_address))
    if choices.get("role") == "sync":
        raise click.UsageError("--role sync requires --store classic")
    return replicated_broker(address, http_address)


def replicated_broker(address: str, http_address: str) -> Additions:
    """Return what a cluster with brokers on the replicated log needs. The addresses are the NameServer's."""
    settings = {"namesrv": [address], "remoting": {"listen": REMOTING_ADDRESS, "send_listen": SEND_ADDRESS}}
    program = {"factory": "broker_adapter.server.program:broker", "settings": settings}
    return Additions({"program": program}, [_name_server(address, http_address)], remoting=True)


def _name_server(address: str, http_address: str) -> tuple[CompanionPlan, Mapping[str, Any]]:
    companion = CompanionPlan(_NAMESRV, "broker_adapter.namesrv", address, http_address)
    return companion, {"directory": "data", "listen": address, "http_listen": http_address}


def _classic(
    base_port: int,
    choices: Mapping[str, str],
    name_server: str,
    companion: tuple[CompanionPlan, Mapping[str, Any]],
) -> Additions:
    first = base_port + _HA_PORT_OFFSET
    ports = [first, first + 1] if base_port else free_ports(2)
    settings = {
        "store": "classic",
        "namesrv": [name_server],
        "remoting": {"listen": REMOTING_ADDRESS},
    }
    master = "SYNC_MASTER" if choices.get("role") == "sync" else "ASYNC_MASTER"
    of_node = [
        {
            "classic": {
                "broker_role": role,
                "waits_for_slaves": choices.get("role") == "sync",
                "ha_listen": f"{HOST}:{port}",
                "file_size": _FILE_SIZE,
            }
        }
        for port, role in zip(ports, (master, "SLAVE"), strict=True)
    ]
    program = {"factory": "broker_adapter.server.program:broker", "settings": settings}
    return Additions({"program": program}, [companion], True, len(of_node), of_node, has_log=False)


def _variables(plan: ClusterPlan) -> Mapping[str, str]:
    servers = [companion.address for companion in plan.companions if companion.name == _NAMESRV]
    return {NAMESRV_VARIABLE: ",".join(servers)} if servers else {}


def _cells(owner: OwnerFacts) -> Sequence[object]:
    if not owner:
        return ("", "")
    behind = owner.get("dispatch_behind_bytes")
    return (owner.get("broker_role"), None if behind is None else human_bytes(behind))


def _ports(plan: ClusterPlan, owners: Sequence[OwnerFacts]) -> Sequence[PortRow]:
    name_servers = [one for one in plan.companions if one.name == _NAMESRV]
    ha_addresses = [owner["ha_address"] for owner in owners if owner.get("ha_address")]
    rows = [
        PortRow(
            "log", plan.addresses, f"RocketMQ 5 clients, `dledger` with --servers ({SERVERS_VARIABLE}), nodes"
        ),
        PortRow(
            "NameServer",
            [one.address for one in name_servers],
            f"RocketMQ 4 clients, `dledger broker` with --namesrv ({NAMESRV_VARIABLE}), brokers",
        ),
        PortRow(
            "remoting",
            [node.remoting_address for node in plan.nodes],
            "RocketMQ 4 clients, through the NameServer",
        ),
    ]
    if ha_addresses:
        rows.append(PortRow("HA", ha_addresses, "slaves"))
    elif owners:
        sends = [node.send_address for node in plan.nodes]
        rows.append(PortRow("send-only", sends, "RocketMQ 4 clients that send, through the NameServer"))
    return [
        *rows,
        PortRow("NameServer's page", [one.http_address for one in name_servers], "browsers, Prometheus"),
    ]


def is_writable_master(owner: OwnerFacts) -> bool:
    """Return True if the master is writable and, if it serves slaves, at least one is connected."""
    slaves = owner.get("ha", {}).get("slaves")
    return owner.get("writable") is True and slaves != []


BROKER_KIND = ClusterKind(
    "broker",
    "With a broker on every node and a NameServer, in a new directory.",
    _prepare,
    _variables,
    ("broker", "dispatch lag"),
    _cells,
    _ports,
    "a writable master",
    is_writable_master,
    (
        KindChoice("store", ("replicated", "classic"), "With --broker: the kind of log."),
        KindChoice("role", ("async", "sync"), "With --store classic: sync makes sends wait for the slave."),
    ),
    ("broker_role", "remoting_address", "ha_address"),
)

add_kind(BROKER_KIND)
