"""`dledger dev`: a broker for tests and laptops."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_adapter.cli.dev_signals import stopping_by_signals
from dledger.cli.local.cluster_plan import MAX_NODES, PLAN_FILE, free_ports, port_in_use
from dledger.errors import Code, ConfigError
from dledger.infra.addresses import is_destination

if TYPE_CHECKING:
    from broker_adapter.server.dev import DevPorts, DevSettings

_LOOPBACK = "127.0.0.1"
_CLIENT, _LATER = "client", "later"
_ATTEMPTS = 100
_PORT = click.IntRange(1, 65535)
#: The VIP channel is two ports below, and the send-only port ten above.
_BROKER_PORT = click.IntRange(3, 65525)


def _free_ports_wanted(_ctx: click.Context, _param: click.Parameter, port: int | None) -> bool:
    if port not in (None, 0):
        raise click.BadParameter(
            f"{port}: takes only 0, for free ports; choose others with --namesrv-port, --broker-port, "
            "--grpc-port and --page-port"
        )
    return port == 0


def _check_advertised(_ctx: click.Context, _param: click.Parameter, host: str | None) -> str | None:
    if host is not None and not is_destination(host):
        raise click.BadParameter(
            f"{host!r}: expected a host name, or an IP address without brackets and port, that clients can "
            "connect to"
        )
    return host


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep messages here.  [default: a temporary directory, removed at exit]",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    default=1,
    show_default=True,
    help="More than one: nodes in processes of their own, at consecutive ports.",
)
@click.option("--log", "log_only", is_flag=True, help="Only the log: nodes without a broker, no NameServer.")
@click.option(
    "--port",
    "any_free",
    type=int,
    callback=_free_ports_wanted,
    help="0: use free ports instead of RocketMQ's.",
    metavar="0",
)
@click.option("--namesrv-port", type=_PORT, help="Port of the NameServer.  [default: 9876]")
@click.option(
    "--broker-port",
    type=_BROKER_PORT,
    help="Port for RocketMQ 4 clients; the ports -2, +8 and +10 are used, too.  [default: 10911]",
)
@click.option("--grpc-port", type=_PORT, help="Port for RocketMQ 5 clients and the log.  [default: 8081]")
@click.option("--page-port", type=_PORT, help="Port of the status page.  [default: 10980]")
@click.option(
    "--listen", default=_LOOPBACK, show_default=True, help="Host to listen on; 0.0.0.0 in a container."
)
@click.option(
    "--advertise",
    callback=_check_advertised,
    metavar="HOST|client|later",
    help="Host in routes. client: RocketMQ 5 clients get the endpoints that they use. later: so do they, and "
    "RocketMQ 4 clients get what PUT /advertise sets.  [default: 127.0.0.1]",
)
@click.option("--no-fsync", is_flag=True, help="Confirm messages before they are on disk.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object once it is ready.")
@click.option(
    "--stop-with-stdin", is_flag=True, help="Stop when stdin is closed, for programs that start it."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Lowest level of lines on stderr.",
)
def dev(
    directory: Path | None,
    nodes: int,
    log_only: bool,
    any_free: bool,
    namesrv_port: int | None,
    broker_port: int | None,
    grpc_port: int | None,
    page_port: int | None,
    listen: str,
    advertise: str | None,
    no_fsync: bool,
    as_json: bool,
    stop_with_stdin: bool,
    log_level: str,
) -> None:
    """Run a broker and a NameServer in one process, for tests and laptops.

    RocketMQ clients of versions 4 and 5 can connect to it without any configuration. Topics and groups are
    created on first use. A message is confirmed once it is on disk, as in a cluster. With --nodes 3, two more
    nodes can take over if the first one fails.

    Without TLS and accounts: listen on 127.0.0.1 only, or in a network that you trust.

    \b
    Examples:
      dledger dev
      dledger dev --port 0 --json
      dledger dev --dir ./messages
      dledger dev --nodes 3
      dledger dev --nodes 3 --log
      dledger dev --listen 0.0.0.0 --advertise 192.168.0.7
      dledger dev --listen 0.0.0.0 --advertise later

    \b
    Exit codes:
      0  stopped by SIGTERM, SIGHUP or Ctrl-C
      1  failed to start, or a disk error prevented an orderly stop
      2  wrong option or argument, or a port is in use
     74  the disk failed while it ran
    """
    gc.disable()  # `run_node` enables it after the imports
    _import_structlog_alone()
    chosen = {"name_server": namesrv_port, "broker": broker_port, "grpc": grpc_port, "page": page_port}
    given = {name: number for name, number in chosen.items() if number is not None}
    is_temporary = directory is None
    with stopping_by_signals(directory) as directory:
        if nodes > 1 or log_only:
            if listen != _LOOPBACK or advertise is not None:
                raise click.UsageError("several nodes and --log do not support --listen and --advertise")
            if any_free and given:
                raise click.UsageError("several nodes and --log take either --port 0 or ports")
            _run_nodes(directory, nodes, given, any_free, not no_fsync, as_json, stop_with_stdin, log_only)
            return
        if (directory / PLAN_FILE).exists():
            raise click.UsageError(
                f"{directory} contains several nodes: add --nodes, or choose another --dir"
            )
        ports = _ports(given, listen, any_free=any_free)
        from broker_adapter.server.dev import DevSettings

        settings = DevSettings(
            directory.resolve(),
            ports,
            listen,
            requested=advertise in (_CLIENT, _LATER),
            later=advertise == _LATER,
            fsync=not no_fsync,
            log_level=log_level,
            stops_with_stdin=stop_with_stdin,
        )
        settings = settings._replace(
            advertise=settings.own_host if advertise is None or settings.requested else advertise
        )
        show = _as_json if as_json else partial(_as_text, is_temporary)
        raise click.exceptions.Exit(_run_one(settings, show))


def _import_structlog_alone() -> None:
    """Import structlog without rich, which it would import for tracebacks that the log does not contain: 90
    modules, a tenth of the start."""
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        modules: dict[str, Any] = sys.modules
        modules["rich"] = None  # `import rich` fails
        try:
            import_module("structlog")
        finally:
            del modules["rich"]


def _run_one(settings: DevSettings, show: Callable[[DevSettings, float], str]) -> int:
    from broker_adapter.server.dev import DevBroker
    from dledger.node.run import run_node

    settings.directory.mkdir(parents=True, exist_ok=True)
    program = DevBroker(settings, lambda seconds: click.echo(show(settings, seconds)))
    return run_node(program.config, program=program)


def _run_nodes(
    directory: Path,
    nodes: int,
    given: Mapping[str, int],
    any_free: bool,
    fsync: bool,
    as_json: bool,
    stops_with_stdin: bool,
    log_only: bool,
) -> None:
    from broker_adapter.cli.dev_nodes import NodesSettings, run_nodes
    from broker_adapter.server.dev import DevPorts

    gc.enable()
    ports = None if any_free else DevPorts()._replace(**given)
    run_nodes(NodesSettings(directory, nodes, ports, fsync, as_json, stops_with_stdin, log_only))


def _ports(given: Mapping[str, int], listen: str, *, any_free: bool) -> DevPorts:
    """Return the ports to use at the host `listen`. Raises ConfigError if they or the host cannot be used."""
    from broker_adapter.server.dev import DevPorts

    _check_host(listen)
    ports = (_free_ports(listen) if any_free else DevPorts())._replace(**given)
    names: dict[int, str] = {}
    for name, number in ports.named().items():
        if number in names:
            raise ConfigError(f"port {number} is that of {names[number]} and of {name}")
        names[number] = name
    if busy := [str(one) for one in ports.all() if port_in_use(listen, one)]:
        raise ConfigError(
            f"these ports are in use by another process: {', '.join(busy)}; stop it, or use `--port 0` for "
            "free ports",
            code=Code.PORT_IN_USE,
        )
    return ports


def _check_host(listen: str) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(listen, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label is empty or too long
        raise _unusable_host(listen, "the name is unknown") from error
    except OSError as error:
        raise _unusable_host(listen, error.strerror or str(error)) from error


def _unusable_host(listen: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--listen {listen}: {reason}; use an address of this machine, or 0.0.0.0 for all of them"
    )


def _free_ports(listen: str) -> DevPorts:
    from broker_adapter.server.dev import DevPorts

    for _ in range(_ATTEMPTS):
        ports = DevPorts(*free_ports(len(DevPorts._fields)))
        numbers = ports.all()
        if len(set(numbers)) == len(numbers) and not any(port_in_use(listen, one) for one in numbers):
            return ports
    raise ConfigError("this machine has no free ports left", code=Code.PORT_IN_USE)


def _as_json(settings: DevSettings, seconds: float) -> str:
    facts: dict[str, Any] = {
        **settings.addresses(),
        "directory": str(settings.directory),
        "pid": os.getpid(),
        "ready_s": round(seconds, 3),
    }
    return json.dumps(facts)


def _as_text(is_temporary: bool, settings: DevSettings, seconds: float) -> str:
    at = settings.addresses()
    topic = f"--namesrv {at['name_server']} --topic greetings"
    return "\n".join(
        (
            f"Ready after {seconds:.1f} s.",
            f"  RocketMQ 4   NameServer {at['name_server']}, broker {at['broker']}",
            f"  RocketMQ 5   endpoints {at['grpc']}",
            f"  page         {at['page']}",
            f"  messages     {settings.directory}" + (", removed at exit" if is_temporary else ""),
            f"  send         echo hello | dledger broker produce {topic}",
            f"  receive      dledger broker consume {topic}",
            "Ctrl-C stops it.",
        )
    )
