"""`dledger cluster`: a cluster of real processes on this machine."""

from __future__ import annotations

import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import click
from click.core import ParameterSource

from dledger.cli.client_options import SERVERS_VARIABLE, TIMEOUT, TLS_VARIABLES, Seconds
from dledger.cli.exits import Exit
from dledger.cli.local.cluster_kinds import ClusterKind, PortRow
from dledger.cli.local.cluster_plan import DEFAULT_BASE_PORT, MAX_NODES
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode
from dledger.cli.output import print_json, print_table
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.errors import ConfigError

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


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """Run, watch and disturb a cluster of real processes on this machine.

    \b
    Examples:
      dledger cluster up --dir /tmp/log                 in the foreground, Ctrl-C stops it
      dledger cluster up --dir /tmp/log --detach        in the background
      dledger cluster status --dir /tmp/log
      dledger cluster kill --dir /tmp/log leader        SIGKILL the leader
      dledger cluster restart-node --dir /tmp/log n1
      dledger cluster replace-node --dir /tmp/log n3    put a new node in its place
      dledger cluster down --dir /tmp/log
    """


@cluster.command()
@_dir_option
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), help="Number of nodes, for a new directory.  [default: 3]"
)
@click.option(
    "--base-port",
    type=int,
    help=f"First port, for a new directory; 0: any free ports.  [default: {DEFAULT_BASE_PORT}]",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Mutual TLS, for a new directory: creates a CA and certificates in DIR/tls.",
)
@click.option(
    "--detach", is_flag=True, help="Return once there is a leader and all nodes answer; they keep running."
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
    """Start a local cluster: a new one, or the existing one in --dir.

    A new directory gets configs, identities and cluster.json. An existing one is never initialized again, so
    its log is kept. With --detach, nodes that are running continue, and the others are started. Nodes that
    were removed from the group are not started. In the foreground, the command prints events until Ctrl-C and
    then stops the nodes.

    \b
    Examples:
      dledger cluster up --dir /tmp/log
      dledger cluster up --dir /tmp/log5 --nodes 5 --base-port 23000 --detach
      dledger cluster up --dir /tmp/safe --tls
    """
    chosen = [kind for kind in _kinds if kinds[kind.name]]
    _check_choices(chosen)
    is_new = not directory.exists()
    local = _open_or_create(directory, nodes, base_port, tls, chosen, kinds)
    running = [name for name in local.running() if name in local.node_ids]
    if running and not detach:
        raise ClusterError(
            f"{', '.join(running)} of {local.directory} are already running: start the others with "
            "`--detach`, see `dledger cluster status`, or stop all with `dledger cluster down`"
        )
    with nullcontext() if running else stopping_after_failure(local):
        try:
            started = local.start()
        except ConfigError:  # nothing was started
            if is_new:
                shutil.rmtree(local.directory)
            raise
        for gone in local.removed():
            text = f"`dledger cluster remove-node --dir {directory} {gone}` forgets it"
            click.echo(f"{gone} is no longer a member of the group, so it is not started; {text}", err=True)
        click.echo(f"started {', '.join(started) or 'no node'}; waiting for a leader", err=True)
        leader = local.wait_for_leader(timeout)
        click.echo(f"{leader.node_id} leads in term {leader.term}", err=True)
        # The next user of the cluster should not meet a node that is still starting.
        local.wait_for_answers(timeout)
        for kind in _kinds_of(local):
            ready = _wait_until_ready(local, kind, timeout)
            click.echo(f"{ready.node_id} is {kind.ready_name}", err=True)
    _print_nodes(local, local.status())
    _print_servers(local)
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
    """Add an option for this kind to `cluster up`. Idempotent."""
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


def _check_choices(chosen: Sequence[ClusterKind]) -> None:
    """Raise UsageError for a choice of a kind that was not chosen."""
    source = click.get_current_context().get_parameter_source
    for kind in _kinds:
        for choice in kind.choices:
            if kind not in chosen and source(choice.name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{choice.name} requires --{kind.name}")


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
                {choice.name: str(chosen[choice.name]) for choice in kind.choices}
                | ({"tls": "tls"} if tls else {}),
            )
            for kind in kinds
        ]
        of_node = next((addition.of_node for addition in additions if addition.of_node), ())
        if of_node and nodes not in (None, len(of_node)):
            raise click.UsageError(
                f"this kind of cluster has {len(of_node)} nodes; --nodes cannot change that"
            )
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
        raise click.UsageError(f"{directory} starts at {local.addresses[0]}; --base-port cannot change that")
    for kind in kinds:
        if not kind.variables(local.plan):
            raise click.UsageError(f"{directory} was created without --{kind.name}, which cannot be added")
    if tls and not local.plan.tls:
        raise click.UsageError(f"{directory} was created without TLS; --tls cannot change that")
    return local


@cluster.command()
@_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print all fields as JSON.")
def status(directory: Path, as_json: bool) -> None:
    """Show every node: process, addresses, role, term, indexes, and why it is down. Then show which ports
    there are, and who connects to them.

    Exits with 0 if there is a leader, otherwise with 1.

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
                "ports": [row._asdict() for row in _ports(local, nodes)],
                # The list is repeated as an object with names as keys, for callers that need a specific
                # server.
                **companions,
            }
        )
    else:
        _print_nodes(local, nodes)
        click.echo()
        rows = [(row.port, " ".join(row.addresses), row.clients) for row in _ports(local, nodes)]
        print_table(("port", "addresses", "clients"), rows)
    if not any(node.role == "LEADER" for node in nodes):
        raise click.exceptions.Exit(Exit.FAILED)


def _ports(local: LocalCluster, nodes: Sequence[LocalNode]) -> list[PortRow]:
    pages = [node.http_address for node in local.plan.nodes]
    own = [
        PortRow("log", local.addresses, f"`dledger` with --servers ({SERVERS_VARIABLE}), nodes"),
        PortRow("status page", pages, "browsers, Prometheus"),
    ]
    owners = [node.owner for node in nodes if node.owner]
    further = [row for kind in _kinds_of(local) for row in kind.ports(local.plan, owners)]
    rows = {row.port: row for row in (*own, *further)}
    return [row for row in rows.values() if any(row.addresses)]


def _facts(local: LocalCluster, node: LocalNode) -> dict[str, object]:
    return {name: node.owner.get(name, "") for kind in _kinds_of(local) for name in kind.facts}


@cluster.command()
@_dir_option
@click.option("--timeout", type=Seconds(0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
def down(directory: Path, timeout: float) -> None:
    """Stop all nodes of a local cluster. Its log is kept.

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
    help="KILL: terminate immediately. STOP: suspend. CONT: resume. TERM: stop gracefully.",
)
def kill(directory: Path, node: str, name: str) -> None:
    """Send a signal to NODE: n1, n2, ..., `leader`, or an additional server such as namesrv.

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
@click.option("--rejoin", is_flag=True, help="Recreate a lost directory, and fetch the log from the others.")
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


@cluster.command("add-node")
@_dir_option
@click.option("--timeout", type=TIMEOUT, default=120.0, show_default=True, help="Time limit in seconds.")
def add_node(directory: Path, timeout: float) -> None:
    """Start a further node and add it to the group, as a voter.

    \b
    Example:
      dledger cluster add-node --dir /tmp/log
    """
    from dledger.cli.local import local_members  # imports gRPC

    local = LocalCluster(directory)
    new = local_members.add_node(local, timeout, _report)
    click.echo(f"{new.node_id} is a voter, at {new.address}")
    _print_servers(local)


@cluster.command("replace-node")
@_dir_option
@click.argument("node")
@click.option("--timeout", type=TIMEOUT, default=120.0, show_default=True, help="Time limit in seconds.")
def replace_node(directory: Path, node: str, timeout: float) -> None:
    """Replace NODE (n1, n2, ..., or `leader`), which may be down and its directory lost, by a new node.

    \b
    Example:
      dledger cluster kill --dir /tmp/log n3 && rm -r /tmp/log/n3
      dledger cluster replace-node --dir /tmp/log n3
    """
    from dledger.cli.local import local_members  # imports gRPC

    local = LocalCluster(directory)
    old = _resolve(local, node)
    new = local_members.replace_node(local, old, timeout, _report)
    click.echo(f"{new.node_id} is a voter in place of {old}, at {new.address}")
    _print_servers(local)


@cluster.command("remove-node")
@_dir_option
@click.argument("node")
@click.option("--timeout", type=TIMEOUT, default=120.0, show_default=True, help="Time limit in seconds.")
def remove_node(directory: Path, node: str, timeout: float) -> None:
    """Remove NODE (n1, n2, ..., or `leader`) from the group and stop it. Its directory is kept.

    \b
    Example:
      dledger cluster remove-node --dir /tmp/log n4
    """
    from dledger.cli.local import local_members  # imports gRPC

    local = LocalCluster(directory)
    gone = _resolve(local, node)
    local_members.remove_node(local, gone, timeout, _report)
    click.echo(f"{gone} is stopped and no longer a member; its directory {local.directory / gone} is kept")
    _print_servers(local)


def _print_servers(local: LocalCluster) -> None:
    click.echo(f"\nexport {SERVERS_VARIABLE}={','.join(local.addresses)}")


def _report(line: str) -> None:
    click.echo(line, err=True)


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


_POLL_SECONDS = 0.25


@contextmanager
def stopping_after_failure(cluster: LocalCluster) -> Iterator[None]:
    """Stop the nodes if the block fails or a signal interrupts it. A partly started cluster in the background
    would block the next attempt. Further signals do not interrupt the stop.

    The first signal takes effect at the next step of `cluster`. An exception of the handler could leave a
    lock of a thread pool locked, or be lost in a callback. Only a second signal raises one, in case a step
    hangs.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        cluster.check_interrupted()
        cluster.is_interrupted = True

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
        cluster.check_interrupted()
    except BaseException:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        cluster.stop()
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def supervise(cluster: LocalCluster) -> None:
    """Print events until Ctrl-C, SIGTERM, or until all nodes are down; then stop the nodes."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    if cluster.is_interrupted:
        ended.set()
    cluster.is_interrupted = False  # from here on, signals end the loop
    try:
        # Take the first status before the message: every event after the message is then printed.
        before = [*cluster.status(), *cluster.companions()]
        _print_event("Ctrl-C stops the cluster")
        while not ended.wait(_POLL_SECONDS):
            nodes = cluster.status()
            now = [*nodes, *cluster.companions()]
            for event in events_between(before, now):
                _print_event(event)
            if all(node.state == "down" for node in nodes):
                _print_event("all nodes are down")
                return
            before = now
        _print_event("stopping")
    finally:
        for node_id, by_itself in cluster.stop().items():
            _print_event(f"{node_id} " + ("stopped" if by_itself else "did not stop in time and was killed"))
        for number, handler in previous.items():
            signal.signal(number, handler)


def events_between(before: Sequence[LocalNode], now: Sequence[LocalNode]) -> list[str]:
    """Describe the changes between two statuses of the cluster."""
    events = []
    for old, new in zip(before, now, strict=True):
        if new.state != old.state or new.pid != old.pid:
            events.append(_state_event(old, new))
        if new.role == "LEADER" and (old.role, old.term) != (new.role, new.term):
            events.append(f"{new.node_id} leads in term {new.term}")
        elif old.role == "LEADER" and new.state == "running" and new.role != "LEADER":
            events.append(f"{new.node_id} is {new.role} in term {new.term}, no longer leader")
        if new.health != old.health and new.state == old.state == "running":
            events.append(f"{new.node_id}: {new.health}")
    return events


def _state_event(old: LocalNode, new: LocalNode) -> str:
    if new.state == "down":
        lines = "".join(f"\n    {line}" for line in new.last_log_lines)
        return f"{new.node_id} (pid {new.pid}) is down: {new.why}{lines}"
    if new.state == "paused":
        return f"{new.node_id} (pid {new.pid}) is paused"
    if new.pid != old.pid:
        return f"{new.node_id} was started (pid {new.pid})"
    if new.state == "running":
        return f"{new.node_id} (pid {new.pid}) answers"
    return f"{new.node_id} (pid {new.pid}) does not answer"


def _print_event(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)
