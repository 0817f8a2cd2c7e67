"""Clusters of ours for genuine clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from dledger.cli.local.local_cluster import LocalCluster, LocalNode

_WITHIN_S = 60


@contextmanager
def cluster(
    home: Path, genuine_name_server: str = "", accounts: Path | None = None
) -> Iterator[LocalCluster]:
    """Three nodes with a broker, and a NameServer of ours; or registered with that one alone. `accounts`: the
    file with those that may do something."""
    additions = BROKER_KIND.prepare(0, {})
    settings, companions = additions.settings, additions.companions
    if genuine_name_server:
        broker = {**settings["program"]["settings"], "namesrv": [genuine_name_server]}
        settings = {"program": {**settings["program"], "settings": broker}}
        companions = []
    if accounts is not None:
        known = {**settings["program"]["settings"], "rocketmq_v2": {"access_control": str(accounts)}}
        settings = {"program": {**settings["program"], "settings": known}}
    with LocalCluster.create(
        home,
        base_port=0,
        data_file_size=16 << 20,
        settings=settings,
        companions=companions,
        remoting=True,
    ) as running:
        running.start()
        master(running)
        yield running


def master(running: LocalCluster, other_than: str = "") -> LocalNode:
    def found(nodes: object) -> LocalNode | None:
        assert isinstance(nodes, list)
        return next((n for n in nodes if is_writable_master(n.owner) and n.node_id != other_than), None)

    return running.wait_until(found, _WITHIN_S, "a writable master")


def pids(running: LocalCluster) -> dict[str, int]:
    """The process of each node, by its role."""
    master_id = master(running).node_id
    slaves = [node for node in running.node_ids if node != master_id]
    names = {"master": master_id, **{f"slave {node}": node for node in slaves}}
    processes = {name: running.process(node).pid for name, node in names.items()}
    return {name: pid for name, pid in processes.items() if pid is not None}
