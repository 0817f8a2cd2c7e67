"""`dledger cluster up --broker`: a broker on every node, and a NameServer beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.cli.local.cluster_kinds import Additions, ClusterKind, OwnerFacts
from dledger.cli.local.cluster_plan import HOST, ClusterPlan, CompanionPlan, free_ports
from dledger.cli.output import human_bytes

NAMESRV_VARIABLE = "DLEDGER_NAMESRV"
_NAMESRV = "namesrv"
#: The NameServer's ports follow the nodes' at this distance.
_PORT_OFFSET = 200


def _prepare(base_port: int) -> Additions:
    grpc, http = (base_port + _PORT_OFFSET, base_port + _PORT_OFFSET + 1) if base_port else free_ports(2)
    address, http_address = f"{HOST}:{grpc}", f"{HOST}:{http}"
    companion = CompanionPlan(_NAMESRV, "broker_adapter.namesrv", address, http_address)
    config = {"directory": "data", "listen": address, "http_listen": http_address}
    program = {"factory": "broker_adapter.server.program:broker", "settings": {"namesrv": [address]}}
    return Additions({"program": program}, [(companion, config)])


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
