"""Clusters of two brokers with classic logs: their settings, and how they say that they are well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaos.network.links import HOST
from dledger.cli.local.cluster_plan import free_ports
from dledger.status.model import NodeStatus

#: Of the port at which a node serves slaves, among the targets of links: `n1/ha`.
HA = "/ha"
#: A slave that has all but what is on its way is not behind.
_NEAR_BYTES = 4 << 20
_TRANSFER = "TRANSFER"


def node_settings(double_write: bool, file_size: int) -> list[dict[str, Any]]:
    """Of the program on each node: the first one is master. `double_write`: sends wait for the slave."""
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
    """Who was made master last, and takes messages."""
    masters = [one for one in seen.values() if one.is_leader and one.owner.get("writable")]
    return max(masters, key=lambda one: one.role_epoch, default=None)


def follows(status: NodeStatus) -> bool:
    """A slave, with a connection to its master."""
    return bool(status.owner.get("ha", {}).get("state") == _TRANSFER)


def lacking_bytes(status: NodeStatus) -> int:
    """Of a slave: what its master had when it was last heard of; -1: nobody knows."""
    return int(status.owner.get("ha", {}).get("lacking_bytes", -1))


def are_well(seen: Mapping[str, NodeStatus]) -> bool:
    """There is a master, and a slave that has nearly all that it has."""
    master = master_in(seen)
    slaves = [] if master is None else master.owner.get("ha", {}).get("slaves", [])
    return len(seen) == 2 and len(slaves) == 1 and slaves[0]["lag_bytes"] < _NEAR_BYTES
