"""`dledger init` and `dledger server`: one node."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dledger.cli.overrides import overrides_of
from dledger.core.values import FlushMode
from dledger.errors import Code, ConfigError, StorageError
from dledger.infra.libraries import configure_node_channels

if TYPE_CHECKING:
    from dledger.node.machine.state_machine import StateMachine
    from dledger.node.setup.config import NodeConfig

_config_option = click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The node's TOML file. Options override its keys.",
)
_directory_option = click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), help="The node's directory."
)
_node_id_option = click.option("--node-id", help="Id of this node, one of the members.")
_cluster_id_option = click.option("--cluster-id", help="Id of the cluster, the same on all nodes.")
_group_option = click.option("--group", help="Name of the log.  [default: default]")


@click.command()
@_config_option
@_directory_option
@_node_id_option
@_cluster_id_option
@_group_option
@click.option("--data-file-size", type=int, help="Bytes per data file, fixed permanently.  [default: 1 GiB]")
@click.option(
    "--flush-mode",
    type=click.Choice([mode.value for mode in FlushMode], case_sensitive=False),
    default=FlushMode.SYNC_FLUSH.value,
    show_default=True,
    help="When to acknowledge: SYNC_FLUSH: on the disks of a majority; ASYNC_FLUSH: written, not flushed.",
)
@click.option(
    "--new-secret",
    is_flag=True,
    help="Create the file named by cluster_secret_file. On one node only; copy it to the others.",
)
def init(
    path: Path | None,
    directory: Path | None,
    node_id: str | None,
    cluster_id: str | None,
    group: str | None,
    data_file_size: int | None,
    flush_mode: str,
    new_secret: bool,
) -> None:
    """Initialize an empty directory for a new node.

    Once per node, before its first start; a server refuses an uninitialized directory. Never do this for a
    node that lost its directory, because it no longer knows how it voted: start it with `server --rejoin`.

    All nodes of a cluster need the same cluster id, group, data file size, flush mode and ids of members,
    which are the first members of the group. A node that is added to a running group is not initialized:
    start it with `server --join`, and add it with `member add`.

    A cluster on several machines without mutual TLS needs a cluster_secret_file, which authenticates members.
    --new-secret creates it on the first node; copy it to the others before their init.

    \b
    Examples:
      dledger init --config n1.toml
      dledger init --config n1.toml --new-secret
      dledger init --directory /var/lib/log --cluster-id orders --node-id n1
    """
    from dledger.infra.files.config_faults import check_keys, read_toml
    from dledger.node.setup.config import NodeConfig
    from dledger.store.identity import Identity, first_incarnation, init_directory, member_list

    values = read_toml(path) if path is not None else {}
    check_keys(NodeConfig, values, str(path))
    if path is not None and directory is None and "directory" in values:
        # Relative to the file, as for the server.
        directory = path.parent / str(values["directory"])
    node_id = node_id or values.get("node_id")
    cluster_id = cluster_id or values.get("cluster_id")
    needed = {"--directory": directory, "--node-id": node_id, "--cluster-id": cluster_id}
    if missing := [name for name, value in needed.items() if not value]:
        raise click.UsageError(f"{', '.join(missing)} must be given as options or in --config")
    assert directory is not None
    assert node_id is not None
    assert cluster_id is not None
    # If there is no file, the first start adopts the members of its configuration.
    members = values.get("members")
    if members and node_id not in members:
        raise click.UsageError(f"node {node_id} is not one of the members {', '.join(members)} of {path}")
    sizes: dict[str, Any] = {} if data_file_size is None else {"data_file_size": data_file_size}
    identity = Identity(
        cluster_id=cluster_id,
        group=group or values.get("group", "default"),
        node_id=node_id,
        flush_mode=FlushMode(flush_mode.upper()),
        members=member_list(members) if members else None,
        **sizes,
    )
    _init_secret(path, values.get("cluster_secret_file"), new=new_secret)
    init_directory(directory, identity, incarnation=first_incarnation())
    click.echo(f"{directory} now belongs to {node_id} of cluster {cluster_id}")


def _init_secret(config: Path | None, name: object, *, new: bool) -> None:
    """Check or create the secret before the directory is created, because a node with an invalid secret would
    not start."""
    from dledger.node.setup.secret_file import load_secret, make_secret

    if not isinstance(name, str) or config is None:
        if new:
            raise click.UsageError("--new-secret needs a --config that names a cluster_secret_file")
        return
    if new:
        make_secret(config.parent / name)
    load_secret(config.parent / name)


@click.command()
@_config_option
@_directory_option
@_node_id_option
@_cluster_id_option
@_group_option
@click.option("--member", "members", multiple=True, metavar="ID=HOST:PORT", help="A member; repeat it.")
@click.option("--listen", help="host:port to listen on.  [default: this node's address in members]")
@click.option(
    "--http-listen", help="host:port of the status page and metrics; if empty, they are not served."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Minimum level of log lines.  [default: info]",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.  [default: text]"
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key, e.g. timing.heartbeat_ms=50."
)
@click.option(
    "--rejoin",
    is_flag=True,
    help="Recreate a lost directory, and fetch the log from the other nodes.",
)
@click.option(
    "--join",
    is_flag=True,
    help="If the directory is empty, create that of a node which `dledger member add` adds to a group.",
)
@click.option(
    "--if-empty",
    type=click.Choice(["refuse", "init", "rejoin", "join"]),
    envvar="DLEDGER_IF_EMPTY",
    default="refuse",
    show_default=True,
    help="If the directory has no identity: fail, do `dledger init` (only at the first start of a cluster), "
    "--rejoin, or --join.  [env: DLEDGER_IF_EMPTY]",
)
@click.option(
    "--state-machine",
    "machine",
    metavar="MODULE:FACTORY",
    help="Apply the log to the object returned by FACTORY().",
)
def server(
    path: Path | None,
    directory: Path | None,
    node_id: str | None,
    cluster_id: str | None,
    group: str | None,
    members: Sequence[str],
    listen: str | None,
    http_listen: str | None,
    log_level: str | None,
    log_format: str | None,
    settings: Sequence[str],
    rejoin: bool,
    join: bool,
    if_empty: str,
    machine: str | None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C. It logs to stderr.

    A minimal file of a node in a cluster of three:

    \b
        node_id = "n1"
        cluster_id = "orders"
        directory = "/var/lib/log"
        http_listen = "10.0.0.1:20980"
        [members]
        n1 = "10.0.0.1:20911"
        n2 = "10.0.0.2:20911"
        n3 = "10.0.0.3:20911"
        [tls]
        certificate = "n1.pem"
        key = "n1.key"
        ca = "ca.pem"

    Without [tls] it serves on loopback only, unless allow_plaintext = true.

    \b
    Examples:
      dledger init --config n1.toml && dledger server --config n1.toml
      dledger server --config n1.toml --log-level debug --set timing.election_min_ms=2000
      dledger server --config n1.toml --rejoin
      dledger server --config n4.toml --join
      dledger server --config n1.toml --state-machine examples.kv:KeyValueStore

    \b
    Exit codes:
      0   stopped by SIGTERM or Ctrl-C
      1   failed to start, or a disk error prevented an orderly stop
      2   wrong option, argument or configuration
      70  the event loop was stuck for timing.loop_stall_ms
      74  a disk failed; the log of the process names the file
    """
    # Imported objects are never freed. Garbage collections among them would only take a tenth of the start.
    # `run_node` starts with a collection.
    gc.disable()
    configure_node_channels()
    from dledger.node.run import run_node

    options = {
        "directory": None if directory is None else directory.resolve(),
        "node_id": node_id,
        "cluster_id": cluster_id,
        "group": group,
        "listen": listen,
        "http_listen": http_listen,
        "members": dict(split_member(text) for text in members) or None,
    }
    if rejoin and join:
        raise click.UsageError("--rejoin is for a member that lost its directory, --join for a new one")
    log = {"level": log_level, "format": log_format}
    config = node_config(path, overrides_of(settings, options, log))
    if if_empty != "refuse" and not _is_initialized(config):
        rejoin, join = rejoin or if_empty == "rejoin", join or if_empty == "join"
        if if_empty == "init":
            from dledger.node.setup.directory import init_directory

            init_directory(config)
    state_machine = None if machine is None else _state_machine(machine)
    raise click.exceptions.Exit(run_node(config, state_machine, rejoin=rejoin, join=join))


def _is_initialized(config: NodeConfig) -> bool:
    from dledger.store.identity import load_identity

    try:
        load_identity(config.directory)
    except StorageError as error:
        if error.code is not Code.NOT_INITIALIZED:
            raise
        return False
    return True


def _state_machine(name: str) -> StateMachine:
    module, colon, factory = name.partition(":")
    if not colon:
        raise click.UsageError(f"--state-machine {name!r}: expected MODULE:FACTORY")
    # A console script does not search the working directory, where the user's module usually is.
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--state-machine {name}: cannot load the factory: {error}") from error
    assert all(callable(getattr(made, method, None)) for method in ("apply", "save", "load")), made
    machine: StateMachine = made
    return machine


def node_config(path: Path | None, overrides: Mapping[str, Any]) -> NodeConfig:
    """Return the configuration read from a file, with overrides applied. Tables are merged key by key."""
    from dledger.node.setup.config import load_config, parse_config

    if path is None:
        if "directory" not in overrides:
            raise click.UsageError(
                "give the node's --config, or its --directory, --node-id, --cluster-id and --member"
            )
        return parse_config(overrides, where="command line")
    config = load_config(path)
    if not overrides:
        return config
    content = config.model_dump(exclude_unset=True)
    for key, value in overrides.items():
        # The members are replaced as a whole, because a remaining member would change the majority.
        if isinstance(value, Mapping) and key != "members":
            content[key] = {**content.get(key, {}), **value}
        else:
            content[key] = value
    return parse_config(content, where=f"{path} and command line")


def split_member(text: str) -> tuple[str, str]:
    """Split a --member option into node id and address."""
    node_id, equals, address = text.partition("=")
    if not equals:
        raise click.UsageError(f"--member {text!r}: expected ID=HOST:PORT")
    return node_id, address
