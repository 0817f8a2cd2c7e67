"""Clusters of two brokers with classic logs: their settings and health checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaos.network.links import HOST
from dledger.cli.local.cluster_plan import free_ports
from dledger.status.model import NodeStatus

#: Suffix of the link target for a node's HA port, which slaves connect to: `n1/ha`.
HA = "/ha"
#: A slave within this distance counts as caught up: the rest is in flight.
_NEAR_BYTES = 4 << 20
_TRANSFER = "TRANSFER"


def node_settings(double_write: bool, file_size: int) -> list[dict[str, Any]]:
    """Return the broker settings of each node. The first node is the master. `double_write`: sends wait for
    the slave."""
    master = "SYNC_MASTER" if double_write else "ASYNC_MASTER"
    return [
        {
            "classic": {
                "broker_role": role,
                "waits_for_slaves": double_write,
                "ha_listen": f"{HOST}:{port}",
                "ha_handshake": "required",
                "file_size": file_size,
            }
        }
        for port, role in zip(free_ports(2), (master, "SLAVE"), strict=True)
    ]


def master_in(seen: Mapping[str, NodeStatus]) -> NodeStatus | None:
    """Return the writable master with the latest role epoch."""
    masters = [node for node in seen.values() if node.is_leader and node.owner.get("writable")]
    return max(masters, key=lambda node: node.role_epoch, default=None)


def follows(status: NodeStatus) -> bool:
    """Return True for a slave that is connected to its master."""
    return bool(status.owner.get("ha", {}).get("state") == _TRANSFER)


def lacking_bytes(status: NodeStatus) -> int:
    """Return by how many bytes a slave is behind the last known end of its master's log; -1 if that is
    unknown."""
    return int(status.owner.get("ha", {}).get("lacking_bytes", -1))


def are_well(seen: Mapping[str, NodeStatus]) -> bool:
    """Return True if there is a master and a slave close behind it."""
    master = master_in(seen)
    slaves = [] if master is None else master.owner.get("ha", {}).get("slaves", [])
    return len(seen) == 2 and len(slaves) == 1 and slaves[0]["lag_bytes"] < _NEAR_BYTES
