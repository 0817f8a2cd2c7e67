"""`dledger dev --nodes N`: nodes in processes of their own, for failover on a laptop."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from broker_adapter.cli.cluster_command import is_writable_master, replicated_broker
from broker_adapter.server.dev import DevPorts, stop_at_end_of_stdin
from dledger.cli.local.cluster_commands import stopping_after_failure, supervise
from dledger.cli.local.cluster_kinds import Additions
from dledger.cli.local.cluster_plan import HOST, free_ports
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode
from dledger.core.values import FlushMode

_READY_S = 60.0


class NodesSettings(NamedTuple):
    """`ports`: those of the first node, which the others follow, and of the NameServer; None: free ports.

    `log_only`: nodes without a broker, and no NameServer.
    """

    directory: Path
    nodes: int
    ports: DevPorts | None
    fsync: bool
    as_json: bool
    stops_with_stdin: bool
    log_only: bool


def run_nodes(settings: NodesSettings) -> None:
    """Start the nodes, print their addresses, and supervise them until SIGTERM or Ctrl-C."""
    directory = settings.directory
    cluster = _open(settings) if LocalCluster.exists(directory) else _create(settings)
    if settings.stops_with_stdin:
        threading.Thread(target=stop_at_end_of_stdin, name="stdin", daemon=True).start()
    deadline = time.monotonic() + _READY_S

    def remaining() -> float:
        return max(1.0, round(deadline - time.monotonic()))

    with stopping_after_failure(cluster):
        cluster.start()
        if cluster.plan.companions:
            cluster.wait_until(_writable_master, remaining(), "a writable master")
        cluster.wait_for_leader(remaining())
        cluster.wait_for_answers(remaining())
        click.echo(_as_json(cluster) if settings.as_json else _as_text(cluster))
        supervise(cluster)


def _open(settings: NodesSettings) -> LocalCluster:
    cluster = LocalCluster(settings.directory)
    if running := cluster.running():
        raise ClusterError(
            f"{', '.join(running)} of {cluster.directory} are already running: choose another --dir, or stop "
            f"them with `dledger cluster down --dir {cluster.directory}`"
        )
    if settings.log_only is bool(cluster.plan.companions):
        kind = "brokers" if cluster.plan.companions else "only a log"
        raise ClusterError(f"{cluster.directory} has {kind}: choose another --dir, or change --log")
    return cluster


def _create(settings: NodesSettings) -> LocalCluster:
    ports = settings.ports
    name_server = free_ports(1)[0] if ports is None else ports.name_server
    additions = Additions({}) if settings.log_only else replicated_broker(f"{HOST}:{name_server}", "")
    first_ports = () if ports is None else (ports.grpc, ports.page, ports.broker, ports.send_only)
    return LocalCluster.create(
        settings.directory,
        nodes=settings.nodes,
        base_port=0,
        first_ports=first_ports if additions.remoting else first_ports[:2],
        flush_mode=FlushMode.SYNC_FLUSH if settings.fsync else FlushMode.ASYNC_FLUSH,
        settings=additions.settings,
        companions=additions.companions,
        remoting=additions.remoting,
    )


def _writable_master(nodes: Sequence[LocalNode]) -> LocalNode | None:
    return next((node for node in nodes if is_writable_master(node.owner)), None)


def _as_json(cluster: LocalCluster) -> str:
    nodes = [
        {
            "node_id": node.node_id,
            "grpc": node.address,
            "broker": node.remoting_address,
            "send_only": node.send_address,
            "page": f"http://{node.http_address}/",
        }
        for node in cluster.plan.nodes
    ]
    return json.dumps(
        {
            "name_server": "".join(companion.address for companion in cluster.plan.companions),
            "grpc": ",".join(cluster.addresses),
            "nodes": nodes,
            "directory": str(cluster.directory),
            "pid": os.getpid(),
        }
    )


def _as_text(cluster: LocalCluster) -> str:
    servers = ",".join(cluster.addresses)
    if cluster.plan.companions:
        name_server = cluster.plan.companions[0].address
        topic = f"--namesrv {name_server} --topic greetings"
        use = [
            f"  RocketMQ 4   NameServer {name_server}",
            f"  RocketMQ 5   endpoints {';'.join(cluster.addresses)}",
            f"  send         echo hello | dledger broker produce {topic}",
            f"  receive      dledger broker consume {topic}",
        ]
    else:
        use = [
            f"  log          {servers}",
            f"  append       echo hello | dledger append --servers {servers}",
            f"  read         dledger read --servers {servers}",
        ]
    pages = [f"  page of {node.node_id}   http://{node.http_address}/" for node in cluster.plan.nodes]
    failover = f"  failover     dledger cluster kill --dir {cluster.directory} leader"
    return "\n".join(("Ready.", *use, *pages, failover))
