"""Directories and addresses of a local cluster: `cluster.json`, the node configs, the ports.

::

    D/cluster.json    this plan; other programs may read it
    D/n1/node.toml    configuration of the server
    D/n1/store/       the node's directory (created by `dledger init`)
    D/n1/server.log   output of the server
    D/n1/pid, exit    of the last run
    D/namesrv/        config.toml, server.log, pid, exit of an additional server
    D/secret          the secret shared by the nodes
    D/tls/            with --tls: ca.pem, certificate and key of each node, and of a client
"""

from __future__ import annotations

import errno
import json
import os
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dledger.errors import Code, ConfigError
from dledger.infra.files import platform

PLAN_FILE = "cluster.json"
PLAN_VERSION = 1
DEFAULT_GROUP = "default"
DEFAULT_BASE_PORT = 20911
HOST = "127.0.0.1"
#: Distance of HTTP ports from the gRPC ports.
HTTP_PORT_OFFSET = 100
#: Distance of ports for RocketMQ's remoting protocol, if a program on the nodes uses it.
REMOTING_PORT_OFFSET = 300
#: Distance of the second remoting port, for sends only.
SEND_PORT_OFFSET = 500
MAX_NODES = 9
# Below the ephemeral port range, so that the port of a stopped node is still free when the node restarts.
_FREE_PORTS = range(21_500, 32_000)


@dataclass(frozen=True, slots=True)
class NodePlan:
    node_id: str
    address: str
    http_address: str
    remoting_address: str = ""
    send_address: str = ""


@dataclass(frozen=True, slots=True)
class CompanionPlan:
    """A server that the nodes need in addition: `python -m MODULE --config FILE` runs it."""

    name: str
    module: str
    address: str
    http_address: str = ""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    cluster_id: str
    group: str
    nodes: tuple[NodePlan, ...]
    tls: bool = False
    companions: tuple[CompanionPlan, ...] = ()
    #: A node whose addition has started and not ended. It is one of `nodes` once it is a member.
    joining: NodePlan | None = None

    @property
    def started(self) -> tuple[NodePlan, ...]:
        """All nodes that may run."""
        is_other = self.joining is not None and self.joining not in self.nodes
        return (*self.nodes, self.joining) if self.joining is not None and is_other else self.nodes

    def node(self, node_id: str) -> NodePlan:
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        known = ", ".join(n.node_id for n in self.nodes)
        raise ConfigError(f"there is no node {node_id!r} in this cluster; its nodes are {known}")

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]


def plan_cluster(
    cluster_id: str,
    group: str,
    nodes: int,
    base_port: int,
    *,
    tls: bool = False,
    remoting: bool = False,
    first_ports: Sequence[int] = (),
) -> ClusterPlan:
    """Plan `nodes` nodes n1, n2, ... with ports starting at `base_port`; use base_port 0 to select free
    ports. `remoting`: add ports for the remoting protocol. `first_ports`: the port of the first node of each
    kind (gRPC, HTTP, remoting, sends), instead of those that follow from `base_port`."""
    if not 1 <= nodes <= MAX_NODES:
        raise ConfigError(f"a local cluster has 1 to {MAX_NODES} nodes, not {nodes}")
    offsets = [0, HTTP_PORT_OFFSET, *([REMOTING_PORT_OFFSET, SEND_PORT_OFFSET] if remoting else [])]
    last = 65535 - offsets[-1] - nodes
    if first_ports:
        columns = [[first + i for i in range(nodes)] for first in first_ports]
    elif base_port == 0:
        ports = free_ports(len(offsets) * nodes)
        columns = [ports[n * nodes :][:nodes] for n in range(len(offsets))]
    elif 1024 <= base_port <= last:
        columns = [[base_port + offset + i for i in range(nodes)] for offset in offsets]
    else:
        raise ConfigError(f"--base-port is {base_port}: expected 1024 to {last}, or 0 to select free ports")
    return ClusterPlan(
        cluster_id,
        group,
        tuple(
            NodePlan(f"n{i}", *(f"{HOST}:{port}" for port in ports))
            for i, ports in enumerate(zip(*columns, strict=True), start=1)
        ),
        tls,
    )


#: Processes that choose ports at the same time usually have consecutive ids.
_SHARES = 16


_drawn: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return random unused ports, preferably from a range that depends on the id of this process. Processes
    that choose ports at the same time, before they listen, thus rarely choose the same port. A process reuses
    a port only after it has used all others."""
    chosen: list[int] = []
    mine = os.getpid() % _SHARES
    ports = random.sample(_FREE_PORTS, len(_FREE_PORTS))
    for port in sorted(ports, key=lambda port: (port in _drawn, port % _SHARES != mine)):
        if not port_in_use(HOST, port):
            chosen.append(port)
            if len(chosen) == count:
                _drawn.update(chosen)
                return chosen
    raise ConfigError("this machine has no free ports left", code=Code.PORT_IN_USE)


def port_in_use(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Servers set the same option, so a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL  # the host is not this machine
    return False


def ports_in_use(addresses: Iterable[str]) -> list[str]:
    busy = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        if port_in_use(host, int(port)):
            busy.append(address)
    return busy


def save_plan(directory: Path, plan: ClusterPlan) -> None:
    """Write the plan atomically. Call this after all other files are written, so that a directory with a plan
    is complete."""
    content = {"version": PLAN_VERSION, **asdict(plan)}
    partial = directory / f"{PLAN_FILE}.new"
    with partial.open("w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        platform.sync_all(file.fileno())
    partial.replace(directory / PLAN_FILE)


def load_plan(directory: Path) -> ClusterPlan:
    path = directory / PLAN_FILE
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} does not contain a local cluster (no {PLAN_FILE}): create one with `dledger "
            f"cluster up --dir {directory}`"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    try:
        if content["version"] != PLAN_VERSION:
            raise ConfigError(
                f"{path} has version {content['version']}; this program supports {PLAN_VERSION}"
            )
        nodes = tuple(map(_node_of, content["nodes"]))
        tls = bool(content.get("tls", False))
        companions = tuple(
            CompanionPlan(str(c["name"]), str(c["module"]), str(c["address"]), str(c.get("http_address", "")))
            for c in content.get("companions", ())
        )
        joining = None if content.get("joining") is None else _node_of(content["joining"])
        return ClusterPlan(str(content["cluster_id"]), str(content["group"]), nodes, tls, companions, joining)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: missing or invalid field {error}") from error


def _node_of(fields: Mapping[str, Any]) -> NodePlan:
    return NodePlan(
        str(fields["node_id"]),
        str(fields["address"]),
        str(fields["http_address"]),
        str(fields.get("remoting_address", "")),
        str(fields.get("send_address", "")),
    )


def to_toml(values: Mapping[str, Any]) -> str:
    """Format the subset of TOML that node configs need: scalars, lists of scalars, tables of tables."""
    return "\n".join(_toml_lines(values, ())) + "\n"


def _toml_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in tables:
            # JSON strings are valid TOML, except for DEL, which TOML requires to be escaped.
            written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            yield f"{key} = {written}"
    for key, table in tables.items():
        yield ""
        yield f"[{'.'.join((*path, key))}]"
        yield from _toml_lines(table, (*path, key))
