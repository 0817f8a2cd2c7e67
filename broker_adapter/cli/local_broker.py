"""`dledger cluster up --broker`: a broker on every node, and a NameServer beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.cli.local.cluster_kinds import Additions, ClusterKind, OwnerFacts
from dledger.cli.local.cluster_plan import HOST, ClusterPlan, CompanionPlan, free_ports
from dledger.cli.local.local_cluster import REMOTING_ADDRESS
from dledger.cli.output import human_bytes

NAMESRV_VARIABLE = "DLEDGER_NAMESRV"
_NAMESRV = "namesrv"
#: The NameServer's ports follow the nodes' at this distance.
_PORT_OFFSET = 200


def _prepare(base_port: int) -> Additions:
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
    settings = {"namesrv": [address], "remoting": {"listen": REMOTING_ADDRESS}}
    program = {"factory": "broker_adapter.server.program:broker", "settings": settings}
    return Additions({"program": program}, [(companion, config)], remoting=True)


def _variables(plan: ClusterPlan) -> Mapping[str, str]:
    servers = [companion.address for companion in plan.companions if companion.name == _NAMESRV]
    return {NAMESRV_VARIABLE: ",".join(servers)} if servers else {}


def _cells(owner: OwnerFacts) -> Sequence[object]:
    if not owner:
        return ("", "")
    behind = owner.get("dispatch_behind_bytes")
    return (owner.get("broker_role"), None if behind is None else human_bytes(behind))


def is_writable_master(owner: OwnerFacts) -> bool:
    return owner.get("writable") is True


BROKER_KIND = ClusterKind(
    "broker",
    "With a broker on every node and a NameServer beside them, in a new directory.",
    _prepare,
    _variables,
    ("broker", "dispatch lag"),
    _cells,
    "a writable master",
    is_writable_master,
)
