"""`dledger-namesrv`: run a NameServer, and query running ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker_adapter.errors import BrokerError, NameServerUnavailable, Status
from dledger import ConfigError, DLedgerError
from dledger.cli.client_options import TIMEOUT, parse_servers, tls_files, tls_options
from dledger.cli.exits import Exit, disk_error, exit_code_of, print_error, show_exit_codes
from dledger.cli.output import print_json, print_table
from dledger.cli.overrides import overrides_of
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.cli.version_option import version_option

if TYPE_CHECKING:
    from broker_adapter.client import TopicRoute
    from broker_adapter.namesrv.client import NameServerClient
    from broker_adapter.namesrv.values import ClusterInfo
    from dledger import TlsFiles

T = TypeVar("T")

SERVERS_VARIABLE = "DLEDGER_NAMESRV"
_FIXES = {
    Status.NAMESRV_UNREACHABLE: f"check --servers ({SERVERS_VARIABLE}), and that it is a NameServer",
    Status.TOPIC_UNKNOWN: "see `dledger-namesrv topics`",
    Status.NAMESRV_BROKER_UNKNOWN: "see `dledger-namesrv cluster`",
}
_EXITS = """\b
Exit codes:
  0    done
  1    something failed; nothing is in doubt
  2    wrong option, argument or configuration
  3    in doubt: a change got no response
  130  interrupted (Ctrl-C)
"""


class _NameServerCli(SuggestingGroup):
    """Prints an error on one line and exits with its code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokerError as error:
            fix = _FIXES.get(error.status)
            click.echo(f"error {error}" + (f"; {fix}" if fix else ""), err=True)
            changes = ctx.meta.get("changes", False) and isinstance(error, NameServerUnavailable)
            ctx.exit(Exit.INDETERMINATE if changes else Exit.FAILED)
        except DLedgerError as error:
            click.echo(f"error {error}", err=True)
            ctx.exit(Exit.USAGE if isinstance(error, ConfigError) else Exit.FAILED)
        except BrokenPipeError:
            raise  # the reader, such as `head`, has closed stdout: click exits without a message
        except OSError as error:
            refused = disk_error(error)
            print_error(refused)
            ctx.exit(exit_code_of(refused))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)


@click.group(
    cls=_NameServerCli,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXITS,
)
@version_option
def cli() -> None:
    """Run a NameServer, or query routes and brokers.

    \b
    Run one, and query it:
      dledger-namesrv run --directory /tmp/namesrv --http-listen 127.0.0.1:9880
      export DLEDGER_NAMESRV=127.0.0.1:9876
      dledger-namesrv status
      dledger-namesrv cluster
      dledger-namesrv route orders
      dledger-namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4

    NameServers do not replicate to each other: brokers register with all of them, so list all in --servers.
    """


@cli.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file (TOML). Options on the command line override it.",
)
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Directory for settings.")
@click.option("--listen", help="host:port to serve on.  [default: 127.0.0.1:9876]")
@click.option("--http-listen", help="host:port of the status page and metrics; empty: disabled.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level to write.  [default: info]",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Log format.  [default: text]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set any key, for example expiry.default_ms=60000.",
)
def run(
    path: Path | None,
    directory: Path | None,
    listen: str | None,
    http_listen: str | None,
    log_level: str | None,
    log_format: str | None,
    settings: Sequence[str],
) -> None:
    """Run a NameServer until SIGTERM or Ctrl-C. Logs to stderr.

    \b
    Example configuration:
      directory = "/var/lib/namesrv"
      listen = "10.0.0.1:9876"
      http_listen = "10.0.0.1:9880"
      [tls]
      certificate = "namesrv.pem"
      key = "namesrv.key"
      ca = "ca.pem"

    Without [tls] it serves only on loopback, unless allow_plaintext = true.

    \b
    Examples:
      dledger-namesrv run --config namesrv.toml
      dledger-namesrv run --directory /tmp/namesrv --listen 127.0.0.1:9876
    """
    from broker_adapter.namesrv.config import load_config
    from broker_adapter.namesrv.server import run_name_server

    options = {
        "directory": None if directory is None else str(directory),
        "listen": listen,
        "http_listen": http_listen,
    }
    overrides = overrides_of(settings, options, {"level": log_level, "format": log_format})
    raise click.exceptions.Exit(run_name_server(load_config(path, overrides)))


# -- queries ----------------------------------------------------------------------------------------------


def _client_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --servers, --tls-ca, --tls-cert, --tls-key and --timeout.

    The command receives the argument `run_client`, which calls an async function with a client.
    """

    @wraps(command)
    def with_client(
        *arguments: Any,
        servers: list[str],
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        timeout: float,
        **options: Any,
    ) -> Any:
        tls = tls_files(tls_ca, tls_cert, tls_key)

        def run_client(call: Callable[[NameServerClient], Awaitable[T]]) -> T:
            return asyncio.run(_run_client(call, servers, tls, timeout))

        return command(*arguments, run_client=run_client, **options)

    with_timeout = click.option(
        "--timeout", type=TIMEOUT, default=3.0, show_default=True, help="Timeout per server in seconds."
    )(with_client)
    with_options: Callable[..., Any] = tls_options(with_timeout, "servers")
    return click.option(
        "--servers",
        callback=parse_servers,
        envvar=SERVERS_VARIABLE,
        required=True,
        metavar="HOST:PORT,...",
        help=f"Addresses of NameServers.  [env: {SERVERS_VARIABLE}]",
    )(with_options)


async def _run_client(
    call: Callable[[NameServerClient], Awaitable[T]],
    servers: Sequence[str],
    tls: TlsFiles | None,
    timeout: float,
) -> T:
    from broker_adapter.namesrv.client import NameServerClient

    async with NameServerClient(servers, tls, timeout_s=timeout) as client:
        return await call(client)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print all values as JSON.")


@cli.command()
@_client_command
@_json_option
def status(run_client: Callable[..., Any], as_json: bool) -> None:
    """Show the state of every NameServer. Exits with 1 if one does not respond.

    \b
    Example:
      dledger-namesrv status --servers 127.0.0.1:9876,127.0.0.1:9877
    """
    answers: dict[str, ClusterInfo | BrokerError] = run_client(lambda client: client.cluster_infos())
    if as_json:
        print_json({server: _info_json(answer) for server, answer in answers.items()})
    else:
        columns = ("server", "up for", "brokers", "topics", "sessions", "watchers", "settings", "health")
        print_table(columns, [_status_row(server, answer) for server, answer in answers.items()])
    if any(isinstance(answer, BrokerError) for answer in answers.values()):
        raise click.exceptions.Exit(Exit.FAILED)


def _status_row(server: str, answer: ClusterInfo | BrokerError) -> tuple[object, ...]:
    if isinstance(answer, BrokerError):
        # the cause is at the end of the message
        return (server, *[""] * 6, f"{answer.status.name}: {answer.message.rpartition(': ')[2]}")
    uptime = f"{answer.uptime_ms // 1000} s"
    counts = (len(answer.brokers), answer.topics, answer.sessions, answer.watchers, answer.config_entries)
    return (server, uptime, *counts, "ok")


def _info_json(answer: ClusterInfo | BrokerError) -> dict[str, Any]:
    if isinstance(answer, BrokerError):
        return {"error": str(answer)}
    return {**answer._asdict(), "brokers": [entry._asdict() for entry in answer.brokers], "error": None}


@cli.command()
@_client_command
@_json_option
def cluster(run_client: Callable[..., Any], as_json: bool) -> None:
    """Show all registered brokers. Id 0 is the master; -1 marks a broker that is not published.

    \b
    Example:
      dledger-namesrv cluster
    """
    info: ClusterInfo = run_client(lambda client: client.cluster_info())
    if as_json:
        print_json(_info_json(info))
        return
    columns = (
        "cluster",
        "broker",
        "node",
        "id",
        "role",
        "address",
        "term",
        "role epoch",
        "last seen",
        "note",
    )
    wiped = set(info.write_wiped)
    rows = [
        (
            entry.cluster,
            entry.broker_name,
            entry.node_id,
            entry.broker_id,
            entry.role,
            entry.address,
            entry.term,
            entry.role_epoch,
            f"{entry.last_update_ms / 1000:.1f} s ago",
            "write permission wiped" if entry.broker_name in wiped else "",
        )
        for entry in info.brokers
    ]
    print_table(columns, rows)


@cli.command()
@click.argument("topic")
@_client_command
@_json_option
def route(topic: str, run_client: Callable[..., Any], as_json: bool) -> None:
    """Show the route of TOPIC.

    \b
    Example:
      dledger-namesrv route orders
    """
    found: TopicRoute = run_client(lambda client: client.route(topic))
    if as_json:
        queues = {one.broker_name: asdict(one) for one in found.queues}
        brokers = {name: dict(broker.addresses) for name, broker in found.brokers.items()}
        print_json(
            {"topic": topic, "queues": queues, "brokers": brokers, "master_terms": dict(found.master_terms)}
        )
        return
    rows = [
        (one.broker_name, one.read_queues, one.write_queues, one.permission, broker_id, address)
        for one in found.queues
        for broker_id, address in sorted(found.brokers[one.broker_name].addresses.items())
    ]
    print_table(("broker", "read queues", "write queues", "perm", "id", "address"), rows)


@cli.command()
@_client_command
@_json_option
def topics(run_client: Callable[..., Any], as_json: bool) -> None:
    """Show the names of all topics, one per line.

    \b
    Example:
      dledger-namesrv topics
    """
    names: list[str] = run_client(lambda client: client.list_topics())
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@cli.command()
@click.argument("broker")
@click.option("--give-back", is_flag=True, help="Make it writable again.")
@_client_command
@click.pass_context
def wipe(ctx: click.Context, broker: str, give_back: bool, run_client: Callable[..., Any]) -> None:
    """Wipe the write permission of a BROKER name, so that producers leave the broker before it is stopped.

    Applies to every server in --servers.

    \b
    Examples:
      dledger-namesrv wipe broker-a
      dledger-namesrv wipe broker-a --give-back
    """
    ctx.meta["changes"] = True
    count = run_client(lambda client: client.wipe_write_permission(broker, give_back=give_back))
    click.echo(f"{broker} is {'writable' if give_back else 'not writable'} now ({count} topics)")


@cli.group(cls=SuggestingGroup)
def kv() -> None:
    """Read and change settings by namespace and key. Changes go to every server in --servers.

    \b
    Examples:
      dledger-namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4
      dledger-namesrv kv get ORDER_TOPIC_CONFIG orders
      dledger-namesrv kv list
    """


@kv.command()
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
@_client_command
@click.pass_context
def put(ctx: click.Context, namespace: str, key: str, value: str, run_client: Callable[..., Any]) -> None:
    """Set KEY of NAMESPACE to VALUE.

    \b
    Example:
      dledger-namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4
    """
    ctx.meta["changes"] = True
    run_client(lambda client: client.kv_put(namespace, key, value))


@kv.command()
@click.argument("namespace")
@click.argument("key")
@_client_command
def get(namespace: str, key: str, run_client: Callable[..., Any]) -> None:
    """Print the value of KEY of NAMESPACE.

    \b
    Example:
      dledger-namesrv kv get ORDER_TOPIC_CONFIG orders
    """
    click.echo(run_client(lambda client: client.kv_get(namespace, key)))


@kv.command()
@click.argument("namespace")
@click.argument("key")
@_client_command
@click.pass_context
def delete(ctx: click.Context, namespace: str, key: str, run_client: Callable[..., Any]) -> None:
    """Delete KEY of NAMESPACE.

    \b
    Example:
      dledger-namesrv kv delete ORDER_TOPIC_CONFIG orders
    """
    ctx.meta["changes"] = True
    run_client(lambda client: client.kv_delete(namespace, key))


@kv.command(name="list")
@click.argument("namespace", default="")
@_client_command
@_json_option
def list_(namespace: str, run_client: Callable[..., Any], as_json: bool) -> None:
    """Show all keys and values of NAMESPACE. Without NAMESPACE, show the namespaces.

    \b
    Examples:
      dledger-namesrv kv list
      dledger-namesrv kv list ORDER_TOPIC_CONFIG
    """
    values: dict[str, str] = run_client(lambda client: client.kv_list(namespace))
    if as_json:
        print_json(values if namespace else sorted(values))
    elif namespace:
        print_table(("key", "value"), sorted(values.items()))
    else:
        for name in sorted(values):
            click.echo(name)


show_exit_codes(cli, _EXITS)


def main() -> None:
    cli(prog_name="dledger-namesrv")


if __name__ == "__main__":
    main()
