"""Adds, replaces and removes nodes of a local cluster that runs."""

from __future__ import annotations

import asyncio
import re
import shutil
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from dledger.cli.local.cluster_plan import (
    HOST,
    MAX_NODES,
    NodePlan,
    free_ports,
    save_plan,
    to_toml,
)
from dledger.cli.local.local_cluster import TLS_FOLDER, ClusterError, LocalCluster
from dledger.cli.local.node_process import NodeProcess
from dledger.client import AsyncClient
from dledger.client.member_changes import MemberChanges
from dledger.core.membership_change import ChangeKind, MemberStep
from dledger.errors import Code, ConfigError, DLedgerError, Indeterminate, StorageError
from dledger.infra.files.descriptors import PRIVATE_DIRECTORY
from dledger.rpc.log_client import NetworkFailure
from dledger.status.model import NodeStatus
from dledger.store.identity import load_identity

Report = Callable[[str], None]

#: Seconds for a status of a node that starts, and before the next request.
_STATUS_S, _PAUSE_S = 1.0, 0.05
_LEADER_S = 10.0


def add_node(local: LocalCluster, timeout: float, report: Report) -> NodePlan:
    """Start a new node, add it to the group and make it a voter. Continues where an interrupted addition or
    replacement has stopped.

    `timeout`: seconds. `report` receives lines about the progress. Raises DLedgerErrors of the group; a node
    that was not added is then removed again.
    """
    _check_limit(local)
    new = _added(local, timeout, report)
    step = MemberStep(ChangeKind.PROMOTE, new.node_id)
    _run(local, timeout, report, lambda changes: changes.change(step))
    _save(local, local.plan.nodes)
    return new


def add_learner(local: LocalCluster, timeout: float, report: Report) -> NodePlan:
    """Start a new node and add it to the group as a learner. See `add_node`."""
    _check_limit(local)
    new = _added(local, timeout, report)
    _save(local, local.plan.nodes)
    return new


def _check_limit(local: LocalCluster) -> None:
    joining = local.plan.joining
    if len([node for node in local.plan.nodes if node != joining]) >= MAX_NODES:
        raise ConfigError(f"a local cluster has at most {MAX_NODES} nodes")


def replace_node(local: LocalCluster, old: str, timeout: float, report: Report) -> NodePlan:
    """Put a new node in the place of a node, whose directory may be gone. See `add_node`."""
    gone = local.plan.node(old)
    if gone == local.plan.joining:
        text = (
            f"{old} is not a voter yet: repeat the command that has started it, or `dledger cluster add-node`"
        )
        raise ConfigError(text)
    new = _added(local, timeout, report)
    steps = MemberStep(ChangeKind.PROMOTE, new.node_id), MemberStep(ChangeKind.REMOVE, old)
    _run(local, timeout, report, lambda changes: changes.change(*steps))
    local.stop_node(old)
    _save(local, tuple(node for node in local.plan.nodes if node != gone))
    return new


def remove_node(local: LocalCluster, node_id: str, timeout: float, report: Report) -> None:
    """Remove a node from the group and stop it. Its directory is kept."""
    _model(local)  # a cluster with a classic log has no members to change
    gone = local.plan.node(node_id)
    step = MemberStep(ChangeKind.REMOVE, node_id)
    _run(local, timeout, report, lambda changes: changes.change(step))
    local.stop_node(node_id)
    joining = None if local.plan.joining == gone else local.plan.joining
    _save(local, tuple(node for node in local.plan.nodes if node != gone), joining)


def new_node_ids(local: LocalCluster, count: int) -> list[str]:
    """Return the ids of the nodes that are added next."""
    # A node whose directory is gone is still a member.
    names = [*(path.name for path in local.directory.iterdir()), *local.node_ids]
    last = max(int(name[1:]) for name in names if re.fullmatch(r"n[0-9]+", name))
    return [f"n{last + number}" for number in range(1, count + 1)]


def _joining(local: LocalCluster) -> NodePlan:
    """Return the node whose addition was interrupted, or a new one, which is then in the plan as joining."""
    if local.plan.joining is not None:
        return local.plan.joining
    model = _model(local)
    [node_id] = new_node_ids(local, 1)
    if local.plan.tls and not (local.directory / TLS_FOLDER / f"{node_id}.pem").exists():
        text = f"there is no certificate for {node_id}: a local cluster has those of n1 to n{MAX_NODES}"
        raise ConfigError(text)
    ports = [f"{HOST}:{port}" for port in free_ports(4 if model.remoting_address else 2)]
    new = NodePlan(node_id, *ports)
    _save(local, local.plan.nodes, new)
    return new


def _start(local: LocalCluster, new: NodePlan) -> NodeProcess:
    """Start a joining node, unless it runs. Its configuration is that of another node."""
    folder = local.directory / new.node_id
    folder.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
    config = folder / "node.toml"
    if not config.exists():
        partial = folder / "node.toml.new"
        partial.write_text(_config_like(local, _model(local), new, folder))
        partial.replace(config)
    return local.start_new(new)


def _model(local: LocalCluster) -> NodePlan:
    """Return a node that still has its directory, with a replicated log."""
    for node in local.plan.nodes:
        if node == local.plan.joining:
            continue
        try:
            load_identity(local.store_directory(node.node_id))
        except StorageError as error:
            if error.code is not Code.NOT_INITIALIZED:
                raise
        else:
            return node
    raise ConfigError("no node of this cluster has a replicated log, whose members could change")


def _config_like(local: LocalCluster, model: NodePlan, new: NodePlan, folder: Path) -> str:
    values = tomllib.loads((local.folder(model.node_id) / "node.toml").read_text())
    nodes = (*local.plan.nodes, new)
    values |= {
        "node_id": new.node_id,
        "directory": str(folder / "store"),
        "http_listen": new.http_address,
        "members": {node.node_id: node.address for node in nodes},
        "http_members": {node.node_id: node.http_address for node in nodes},
    }
    if "tls" in values:
        certificates = local.directory / TLS_FOLDER
        values["tls"] |= {
            "certificate": str(certificates / f"{new.node_id}.pem"),
            "key": str(certificates / f"{new.node_id}.key"),
        }
    text = to_toml(values)
    if model.remoting_address:
        text = text.replace(model.remoting_address, new.remoting_address)
        text = text.replace(model.send_address, new.send_address)
    return text


def _added(local: LocalCluster, timeout: float, report: Report) -> NodePlan:
    """Start a node, and add it as a learner once it answers, and only then to the nodes of the plan.

    If it was not added, it is removed again. An interruption keeps it, because it may have been added.
    """
    new = _joining(local)
    try:
        process = _start(local, new)
        asyncio.run(_wait_until_answers(local, new, process, timeout))
        _run(local, timeout, report, lambda changes: changes.add(new.node_id, new.address, as_voter=False))
    except Indeterminate:
        raise
    except DLedgerError:
        if not _is_member(local, new):
            _forget(local, new)
        raise
    if new not in local.plan.nodes:
        _save(local, (*local.plan.nodes, new), new)
    return new


def _is_member(local: LocalCluster, new: NodePlan) -> bool:
    """Return True if the leader knows this node as a member, or if there is no leader."""

    async def request() -> NodeStatus:
        addresses = [node.address for node in local.plan.nodes if node != new]
        client = AsyncClient(addresses, group=local.plan.group, session=False, tls=local.tls_files)
        async with client:
            return await client.leader(timeout=_LEADER_S)

    try:
        members = asyncio.run(request()).members
    except DLedgerError:
        return True
    return (new.node_id, new.address) in [(member.node_id, member.address) for member in members]


def _forget(local: LocalCluster, new: NodePlan) -> None:
    """Stop a node that was not added, and remove its directory."""
    local.process(new.node_id).stop(1.0)
    shutil.rmtree(local.directory / new.node_id, ignore_errors=True)
    _save(local, tuple(node for node in local.plan.nodes if node != new))


async def _wait_until_answers(
    local: LocalCluster, new: NodePlan, process: NodeProcess, timeout: float
) -> None:
    """Raises ClusterError if the node ends before it answers, and its failure after `timeout` seconds."""
    deadline = asyncio.get_running_loop().time() + timeout
    client = AsyncClient([new.address], group=local.plan.group, session=False, tls=local.tls_files)
    async with client:
        while True:
            try:
                await client.status_of(new.address, timeout=_STATUS_S)
                return
            except NetworkFailure:
                if not process.is_alive:
                    lines = " | ".join((process.why_down(), *process.last_errors()))
                    raise ClusterError(f"{new.node_id} did not start: {lines}") from None
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)


def _save(local: LocalCluster, nodes: tuple[NodePlan, ...], joining: NodePlan | None = None) -> None:
    plan = replace(local.plan, nodes=nodes, joining=joining)
    save_plan(local.directory, plan)
    local.use(plan)


def _run(
    local: LocalCluster, timeout: float, report: Report, work: Callable[[MemberChanges], Awaitable[None]]
) -> None:
    async def run() -> None:
        client = AsyncClient(local.addresses, group=local.plan.group, session=False, tls=local.tls_files)
        async with client:
            await work(MemberChanges(client, timeout=timeout, report=report))

    asyncio.run(run())
