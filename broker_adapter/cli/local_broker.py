"""`dledger cluster up --broker`: a broker on every node, and a NameServer beside them. With
`--store classic`: a master and a slave, which have CommitLogs of RocketMQ's own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_adapter.cli.connect.options import NAMESRV_VARIABLE
from dledger.cli.local.cluster_kinds import Additions, ClusterKind, KindChoice, OwnerFacts
from dledger.cli.local.cluster_plan import HOST, ClusterPlan, CompanionPlan, free_ports
from dledger.cli.local.local_cluster import REMOTING_ADDRESS
from dledger.cli.output import human_bytes

_NAMESRV = "namesrv"
#: The NameServer's ports follow the nodes' at this distance.
_PORT_OFFSET = 200
#: ... and HA ports at this one.
_HA_PORT_OFFSET = 400
#: Smaller than RocketMQ's: a trial should not fill a laptop's disk.
_FILE_SIZE = 64 << 20


def _prepare(base_port: int, choices: Mapping[str, str]) -> Additions:
    first = base_port + _PORT_OFFSET
    ports = [first, first + 1, first + 2] if base_port else free_ports(3)
    address, http_address, remoting_address = (f"{HOST}:{port}" for port in ports)
    companion = CompanionPlan(_NAMESRV, "broker_adapter.namesrv", address, http_address, remoting_address)
    config = {
        "directory": "data",
        "listen": address,
        "http_listen": http_address,
        "remoting_listen": remoting_address,
    }
    if choices.get("store") == "classic":
        return _classic(base_port, choices, remoting_address, (companion, config))
    settings = {"namesrv": [address], "remoting": {"listen": REMOTING_ADDRESS}}
    program = {"factory": "broker_adapter.server.program:broker", "settings": settings}
    return Additions({"program": program}, [(companion, config)], remoting=True)


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
        "remoting": {
            "listen": REMOTING_ADDRESS,
            "namesrv": [name_server],
            **({"client_tls": True} if choices.get("tls") else {}),
        },
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


def is_writable_master(owner: OwnerFacts) -> bool:
    """One that serves slaves has one, too: the other node of the cluster."""
    slaves = owner.get("ha", {}).get("slaves")
    return owner.get("writable") is True and slaves != []


BROKER_KIND = ClusterKind(
    "broker",
    "With a broker on every node and a NameServer beside them, in a new directory.",
    _prepare,
    _variables,
    ("broker", "dispatch lag"),
    _cells,
    "a writable master",
    is_writable_master,
    (
        KindChoice("store", ("replicated", "classic"), "With --broker: the log of the brokers."),
        KindChoice("role", ("async", "sync"), "With --store classic: whether sends wait for the slave."),
    ),
    ("broker_role", "remoting_address", "ha_address"),
)
