"""`dledger cluster`: a cluster of real processes on this machine."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dledger.cli.client_options import SERVERS_VARIABLE, TIMEOUT, TLS_VARIABLES, Seconds
from dledger.cli.exits import Exit
from dledger.cli.local.cluster_kinds import ClusterKind
from dledger.cli.local.cluster_plan import DEFAULT_BASE_PORT, MAX_NODES
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode
from dledger.cli.local.supervise import supervise
from dledger.cli.output import print_json, print_table

_LEADER_SECONDS = 30.0
_SIGNALS = {
    "KILL": signal.SIGKILL,
    "STOP": signal.SIGSTOP,
    "CONT": signal.SIGCONT,
    "TERM": signal.SIGTERM,
}

_dir_option = click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the local cluster.",
)


@click.group()
def cluster() -> None:
    """Run, watch and hurt a cluster of real processes on this machine.

    \b
    Examples:
      dledger cluster up --dir /tmp/log                 in the foreground, Ctrl-C stops it
      dledger cluster up --dir /tmp/log --detach        in the background
      dledger cluster status --dir /tmp/log
      dledger cluster kill --dir /tmp/log leader        SIGKILL the leader
      dledger cluster restart-node --dir /tmp/log n1
      dledger cluster down --dir /tmp/log
    """


@cluster.command()
@_dir_option
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), help="How many, in a new directory.  [default: 3]"
)
@click.option(
    "--base-port",
    type=int,
    help=f"First port, in a new directory; 0 takes free ones.  [default: {DEFAULT_BASE_PORT}]",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Mutual TLS, in a new directory: makes a CA and certificates in DIR/tls.",
)
@click.option(
    "--detach", is_flag=True, help="Return when a leader is there and all nodes answer; they go on running."
)
@click.option("--timeout", type=TIMEOUT, default=_LEADER_SECONDS, show_default=True, help="Seconds to wait.")
def up(
    directory: Path,
    nodes: int | None,
    base_port: int | None,
    tls: bool,
    detach: bool,
    timeout: float,
    **kinds: Any,
) -> None:
    """Start a local cluster: a new one, or the one in --dir again.

    A new directory gets configs, identities and cluster.json; an existing one is never initialised again,
    so its log is there. Nodes that are down are started. In the foreground it prints what happens until
    Ctrl-C, then stops the nodes.

    \b
    Examples:
      dledger cluster up --dir /tmp/log
      dledger cluster up --dir /tmp/log5 --nodes 5 --base-port 23000 --detach
      dledger cluster up --dir /tmp/safe --tls
    """
    chosen = [kind for kind in _kinds if kinds[kind.name]]
    local = _open_or_create(directory, nodes, base_port, tls, chosen, kinds)
    if running := [name for name in local.running() if name in local.node_ids]:
        raise ClusterError(
            f"{', '.join(running)} of {local.directory} run already: see `dledger cluster status`, "
            "end them with `dledger cluster down`, or start one node with `dledger cluster restart-node`"
        )
    started = local.start()
    click.echo(f"started {', '.join(started)}; waiting for a leader", err=True)
    try:
        leader = local.wait_for_leader(timeout)
        click.echo(f"{leader.node_id} leads in term {leader.term}", err=True)
        # Whoever uses the cluster next should not meet a node that still starts.
        local.wait_for_answers(timeout)
        for kind in _kinds_of(local):
            ready = _wait_until_ready(local, kind, timeout)
            click.echo(f"{ready.node_id} is {kind.ready_name}", err=True)
    except BaseException:
        # Half a cluster in the background would be in the way of the next try.
        local.stop()
        raise
    _print_nodes(local, local.status())
    click.echo(f"\nexport {SERVERS_VARIABLE}={','.join(local.addresses)}")
    for kind in _kinds:
        for variable, value in kind.variables(local.plan).items():
            click.echo(f"export {variable}={shlex.quote(value)}")
    if (files := local.tls_files) is not None:
        for variable, path in zip(TLS_VARIABLES.values(), files.paths(), strict=True):
            click.echo(f"export {variable}={shlex.quote(str(path))}")
    if not detach:
        supervise(local)


_kinds: list[ClusterKind] = []


def add_kind(kind: ClusterKind) -> None:
    """From now on `cluster up` has an option for it. Repeatable."""
    if kind in _kinds:
        return
    _kinds.append(kind)
    up.params.append(click.Option([f"--{kind.name}"], is_flag=True, help=kind.help))
    for choice in kind.choices:
        default = choice.values[0]
        up.params.append(
            click.Option(
                [f"--{choice.name}"],
                type=click.Choice(list(choice.values)),
                default=default,
                show_default=True,
                help=choice.help,
            )
        )


def _kinds_of(local: LocalCluster) -> list[ClusterKind]:
    return [kind for kind in _kinds if kind.variables(local.plan)]


def _wait_until_ready(local: LocalCluster, kind: ClusterKind, timeout: float) -> LocalNode:
    def ready(nodes: Sequence[LocalNode]) -> LocalNode | None:
        return next((node for node in nodes if kind.is_ready(node.owner)), None)

    return local.wait_until(ready, timeout, kind.ready_name)


def _open_or_create(
    directory: Path,
    nodes: int | None,
    base_port: int | None,
    tls: bool,
    kinds: Sequence[ClusterKind],
    chosen: Mapping[str, Any],
) -> LocalCluster:
    if not LocalCluster.exists(directory):
        first_port = DEFAULT_BASE_PORT if base_port is None else base_port
        additions = [
            kind.prepare(
                first_port,
                {one.name: str(chosen[one.name]) for one in kind.choices} | ({"tls": "tls"} if tls else {}),
            )
            for kind in kinds
        ]
        of_node = next((addition.of_node for addition in additions if addition.of_node), ())
        if of_node and nodes not in (None, len(of_node)):
            raise click.UsageError(f"such a cluster has {len(of_node)} nodes; --nodes cannot change that")
        return LocalCluster.create(
            directory,
            nodes=nodes or max((addition.nodes for addition in additions), default=3),
            of_node=of_node,
            has_log=all(addition.has_log for addition in additions),
            base_port=first_port,
            tls=tls,
            settings={key: value for addition in additions for key, value in addition.settings.items()},
            companions=[companion for addition in additions for companion in addition.companions],
            remoting=any(addition.remoting for addition in additions),
        )
    local = LocalCluster(directory)
    if nodes is not None and nodes != len(local.node_ids):
        raise click.UsageError(f"{directory} has {len(local.node_ids)} nodes; --nodes cannot change that")
    if base_port and not local.addresses[0].endswith(f":{base_port}"):
        raise click.UsageError(f"{directory} begins at {local.addresses[0]}; --base-port cannot change that")
    for kind in kinds:
        if not kind.variables(local.plan):
            raise click.UsageError(f"{directory} was made without --{kind.name}, which cannot be added")
    if tls and not local.plan.tls:
        raise click.UsageError(f"{directory} was made without TLS; --tls cannot change that")
    return local


@cluster.command()
@_dir_option
@click.option("--json", "as_json", is_flag=True, help="All facts, for programs.")
def status(directory: Path, as_json: bool) -> None:
    """Show every node: process, addresses, role, term, indexes, and why it is down if it is.

    Exits with 0 when a leader is there, else with 1.

    \b
    Examples:
      dledger cluster status --dir /tmp/log
      dledger cluster status --dir /tmp/log --json | jq '.nodes[] | select(.role == "LEADER")'
    """
    local = LocalCluster(directory)
    nodes = local.status()
    if as_json:
        companions = {companion.node_id: companion.to_json() for companion in local.companions()}
        print_json(
            {
                "cluster_id": local.plan.cluster_id,
                "group": local.plan.group,
                "directory": str(local.directory),
                "nodes": [{**node.to_json(), **_facts(local, node)} for node in nodes],
                "companions": list(companions.values()),
                # Whoever looks for one of them knows its name.
                **companions,
            }
        )
    else:
        _print_nodes(local, nodes)
    if not any(node.role == "LEADER" for node in nodes):
        raise click.exceptions.Exit(Exit.FAILED)


def _facts(local: LocalCluster, node: LocalNode) -> dict[str, object]:
    return {name: node.owner.get(name, "") for kind in _kinds_of(local) for name in kind.facts}


@cluster.command()
@_dir_option
@click.option("--timeout", type=Seconds(0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
def down(directory: Path, timeout: float) -> None:
    """Stop all nodes of a local cluster. Its log stays.

    \b
    Example:
      dledger cluster down --dir /tmp/log
    """
    ended = LocalCluster(directory).stop(seconds=timeout)
    if not ended:
        click.echo("no node was running", err=True)
    for node_id, by_itself in ended.items():
        how = "stopped" if by_itself else f"killed: it did not stop in {timeout:g} s"
        click.echo(f"{node_id} {how}", err=True)
    if not all(ended.values()):
        raise click.exceptions.Exit(Exit.FAILED)


@cluster.command()
@_dir_option
@click.argument("node")
@click.option(
    "--signal",
    "name",
    type=click.Choice(list(_SIGNALS), case_sensitive=False),
    default="KILL",
    show_default=True,
    help="KILL: dies at once. STOP: freezes. CONT: goes on. TERM: stops gracefully.",
)
def kill(directory: Path, node: str, name: str) -> None:
    """Send a signal to NODE (n1, n2, ..., `leader`, or a server beside the nodes, as namesrv).

    \b
    Examples:
      dledger cluster kill --dir /tmp/log leader
      dledger cluster kill --dir /tmp/log n2 --signal STOP
      dledger cluster kill --dir /tmp/log n2 --signal CONT
    """
    local = LocalCluster(directory)
    node_id = _resolve(local, node)
    if name.upper() == "KILL":
        pid = local.kill(node_id)
    else:
        pid = local.send_signal(node_id, _SIGNALS[name.upper()])
    click.echo(f"SIG{name.upper()} to {node_id} (pid {pid})")


@cluster.command("restart-node")
@_dir_option
@click.argument("node")
@click.option("--timeout", type=Seconds(0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
@click.option("--rejoin", is_flag=True, help="Its directory was lost: it gets its log from the others.")
def restart_node(directory: Path, node: str, timeout: float, rejoin: bool) -> None:
    """Stop NODE (n1, n2, ..., `leader`, or namesrv) if it runs, and start it.

    \b
    Examples:
      dledger cluster restart-node --dir /tmp/log n1
      rm -r /tmp/log/n2/store && dledger cluster restart-node --dir /tmp/log n2 --rejoin
    """
    local = LocalCluster(directory)
    node_id = _resolve(local, node)
    pid = local.restart_node(node_id, seconds=timeout, rejoin=rejoin)
    click.echo(f"{node_id} started (pid {pid})")


def _resolve(local: LocalCluster, node: str) -> str:
    if node in {companion.name for companion in local.plan.companions}:
        return node
    if node != "leader":
        return local.plan.node(node).node_id
    leader = local.leader()
    if leader is None:
        raise ClusterError("no node leads now; see `dledger cluster status`")
    return leader.node_id


_COLUMNS = ("node", "state", "pid", "address", "http", "role", "term", "leader", "begin", "end", "committed")


def _print_nodes(local: LocalCluster, nodes: Sequence[LocalNode]) -> None:
    kinds, companions = _kinds_of(local), local.companions()
    columns = [*_COLUMNS, *(column for kind in kinds for column in kind.columns)]
    rows = [_node_row(local, node, kinds) for node in nodes]
    for c in companions:
        url = local.url(c.http_address) if c.http_address else ""
        row = (c.node_id, c.state, c.pid, c.address, url)
        rows.append((*row, *[""] * (len(columns) - len(row))))
    print_table(columns, rows)
    for n in (*nodes, *companions):
        if n.state == "down":
            click.echo(f"{n.node_id} is down: {n.why}")
            for line in n.last_log_lines:
                click.echo(f"    {line}")
        elif n.health not in ("", "ok"):
            click.echo(f"{n.node_id}: {n.health}")


def _node_row(local: LocalCluster, n: LocalNode, kinds: Sequence[ClusterKind]) -> tuple[object, ...]:
    row = (n.node_id, n.state, n.pid, n.address, local.http_url(n.node_id))
    cells = [cell for kind in kinds for cell in kind.cells(n.owner)]
    if n.state != "running":
        return (*row, *[""] * (len(_COLUMNS) - len(row) + len(cells)))
    facts = (n.role, n.term, n.leader_id, n.ledger_begin_index, n.ledger_end_index, n.committed_index)
    return (*row, *facts, *cells)
