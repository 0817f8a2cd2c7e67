"""`dledger-namesrv`: run a NameServer, and ask running ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker_adapter.errors import BrokerError, NameServerUnavailable, Status
from dledger import Code, ConfigError, DLedgerError
from dledger.cli.client_options import TIMEOUT, tls_options
from dledger.cli.exits import show_exit_codes
from dledger.cli.overrides import overrides_of
from dledger.platform import Exit, parse_servers, print_json, print_table, silence_grpc, tls_files

if TYPE_CHECKING:
    from broker_adapter.namesrv.client import NameServerClient
    from broker_adapter.namesrv.values import ClusterInfo, Route
    from dledger import TlsFiles

T = TypeVar("T")

SERVERS_VARIABLE = "DLEDGER_NAMESRV"
_FIXES = {
    Status.NAMESRV_UNREACHABLE: f"check --servers ({SERVERS_VARIABLE}), and that a NameServer runs there",
    Status.TOPIC_UNKNOWN: "see `dledger-namesrv topics`",
    Status.NAMESRV_BROKER_UNKNOWN: "see `dledger-namesrv cluster`",
}
_EXITS = """\b
Exit codes:
  0    done
  1    something failed; nothing is in doubt
  2    wrong option, argument or configuration
  3    in doubt: no answer came to something that changes a setting
  130  interrupted (Ctrl-C)
"""


class _Root(click.Group):
    """Turns errors into one line and an exit code."""

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
            raise  # whoever read has seen enough, as `head` does: click ends without a word
        except OSError as error:
            click.echo(f"error {DLedgerError(str(error), code=Code.DISK_ERROR)}", err=True)
            ctx.exit(Exit.FAILED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXITS,
)
def cli() -> None:
    """Run a NameServer, and ask it where topics are and which brokers live.

    \b
    Run one, and ask it:
      dledger-namesrv run --directory /tmp/namesrv --http-listen 127.0.0.1:9880
      export DLEDGER_NAMESRV=127.0.0.1:9876
      dledger-namesrv status
      dledger-namesrv cluster
      dledger-namesrv route orders
      dledger-namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4

    Several NameServers do not know of each other: brokers register with all of them, name all in --servers.
    """


@cli.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file. Options given here override it.",
)
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), help="Where settings are kept."
)
@click.option("--listen", help="host:port to serve on.  [default: 127.0.0.1:9876]")
@click.option("--remoting-listen", help="host:port for RocketMQ's 4.x protocol; empty: not spoken.")
@click.option("--http-listen", help="host:port of status page and metrics; empty: none.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least level that is written.  [default: info]",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="json for machines.  [default: text]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. expiry.default_ms=60000."
)
def run(
    path: Path | None,
    directory: Path | None,
    listen: str | None,
    remoting_listen: str | None,
    http_listen: str | None,
    log_level: str | None,
    log_format: str | None,
    settings: Sequence[str],
) -> None:
    """Run a NameServer until SIGTERM or Ctrl-C. It logs to stderr.

    \b
    A file may have:
      directory = "/var/lib/namesrv"
      listen = "10.0.0.1:9876"
      http_listen = "10.0.0.1:9880"
      [tls]
      certificate = "namesrv.pem"
      key = "namesrv.key"
      ca = "ca.pem"

    Without [tls] it serves on loopback only, unless allow_plaintext = true.

    \b
    Examples:
      dledger-namesrv run --config namesrv.toml
      dledger-namesrv run --directory /tmp/namesrv --listen 127.0.0.1:9876
      dledger-namesrv run --directory /tmp/namesrv --listen 127.0.0.1:9877 --remoting-listen 127.0.0.1:9876
    """
    from broker_adapter.namesrv.config import load_config
    from broker_adapter.namesrv.server import run_name_server

    options = {
        "directory": None if directory is None else str(directory),
        "listen": listen,
        "remoting_listen": remoting_listen,
        "http_listen": http_listen,
    }
    overrides = overrides_of(settings, options, {"level": log_level, "format": log_format})
    raise click.exceptions.Exit(run_name_server(load_config(path, overrides)))


# -- questions --------------------------------------------------------------------------------------------


def _asking(command: Callable[..., Any]) -> Callable[..., Any]:
    """--servers, --tls-ca, --tls-cert, --tls-key and --timeout, as the one argument `ask`: it runs an async
    function of a client."""

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

        def ask(question: Callable[[NameServerClient], Awaitable[T]]) -> T:
            return asyncio.run(_ask(question, servers, tls, timeout))

        return command(*arguments, ask=ask, **options)

    with_timeout = click.option(
        "--timeout", type=TIMEOUT, default=3.0, show_default=True, help="Seconds for a server."
    )(with_client)
    with_options: Callable[..., Any] = tls_options(with_timeout, "servers")
    return click.option(
        "--servers",
        callback=parse_servers,
        envvar=SERVERS_VARIABLE,
        required=True,
        metavar="HOST:PORT,...",
        help=f"The NameServers; also from the variable {SERVERS_VARIABLE}.",
    )(with_options)


async def _ask(
    question: Callable[[NameServerClient], Awaitable[T]],
    servers: Sequence[str],
    tls: TlsFiles | None,
    timeout: float,
) -> T:
    from broker_adapter.namesrv.client import NameServerClient

    async with NameServerClient(servers, tls, timeout_s=timeout) as client:
        return await question(client)


_json_option = click.option("--json", "as_json", is_flag=True, help="All facts, as JSON.")


@cli.command()
@_asking
@_json_option
def status(ask: Callable[..., Any], as_json: bool) -> None:
    """Show how every NameServer is. Exits with 1 if one does not answer.

    \b
    Example:
      dledger-namesrv status --servers 127.0.0.1:9876,127.0.0.1:9877
    """
    answers: dict[str, ClusterInfo | BrokerError] = ask(lambda client: client.cluster_infos())
    if as_json:
        print_json({server: _info_json(answer) for server, answer in answers.items()})
    else:
        columns = ("server", "up for", "brokers", "topics", "sessions", "watchers", "settings", "health")
        print_table(columns, [_status_row(server, answer) for server, answer in answers.items()])
    if any(isinstance(answer, BrokerError) for answer in answers.values()):
        raise click.exceptions.Exit(Exit.FAILED)


def _status_row(server: str, answer: ClusterInfo | BrokerError) -> tuple[object, ...]:
    if isinstance(answer, BrokerError):
        # gRPC tells the story from outside in; what a person wants stands at its end.
        return (server, *[""] * 6, f"{answer.status.name}: {answer.message.rpartition(': ')[2]}")
    uptime = f"{answer.uptime_ms // 1000} s"
    counts = (len(answer.brokers), answer.topics, answer.sessions, answer.watchers, answer.config_entries)
    return (server, uptime, *counts, "ok")


def _info_json(answer: ClusterInfo | BrokerError) -> dict[str, Any]:
    if isinstance(answer, BrokerError):
        return {"error": str(answer)}
    return {**answer._asdict(), "brokers": [entry._asdict() for entry in answer.brokers], "error": None}


@cli.command()
@_asking
@_json_option
def cluster(ask: Callable[..., Any], as_json: bool) -> None:
    """Show all registered brokers. Id 0 is the master, -1 one that is not published.

    \b
    Example:
      dledger-namesrv cluster
    """
    info: ClusterInfo = ask(lambda client: client.cluster_info())
    if as_json:
        print_json(_info_json(info))
        return
    columns = ("cluster", "broker", "node", "id", "role", "address", "term", "role epoch", "heard of", "note")
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
@_asking
@_json_option
def route(topic: str, ask: Callable[..., Any], as_json: bool) -> None:
    """Show where a TOPIC is.

    \b
    Example:
      dledger-namesrv route orders
    """
    found: Route = ask(lambda client: client.route(topic))
    if as_json:
        print_json({**found._asdict(), "queues": {n: q._asdict() for n, q in found.queues.items()}})
        return
    rows = [
        (name, queues.read_queues, queues.write_queues, queues.perm, broker_id, address)
        for name, queues in found.queues.items()
        for broker_id, address in found.brokers[name].items()
    ]
    print_table(("broker", "read queues", "write queues", "perm", "id", "address"), rows)


@cli.command()
@_asking
@_json_option
def topics(ask: Callable[..., Any], as_json: bool) -> None:
    """Show the names of all topics, one a line.

    \b
    Example:
      dledger-namesrv topics
    """
    names: list[str] = ask(lambda client: client.list_topics())
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@cli.command()
@click.argument("broker")
@click.option("--give-back", is_flag=True, help="Make it writable again.")
@_asking
@click.pass_context
def wipe(ctx: click.Context, broker: str, give_back: bool, ask: Callable[..., Any]) -> None:
    """Wipe the write permission of a BROKER name, so that producers go elsewhere before it is stopped.

    On every server in --servers.

    \b
    Examples:
      dledger-namesrv wipe broker-a
      dledger-namesrv wipe broker-a --give-back
    """
    ctx.meta["changes"] = True
    count = ask(lambda client: client.wipe_write_permission(broker, give_back=give_back))
    click.echo(f"{broker} is {'writable' if give_back else 'not writable'} now ({count} topics)")


@cli.group()
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
@_asking
@click.pass_context
def put(ctx: click.Context, namespace: str, key: str, value: str, ask: Callable[..., Any]) -> None:
    """Set KEY of NAMESPACE to VALUE.

    \b
    Example:
      dledger-namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4
    """
    ctx.meta["changes"] = True
    ask(lambda client: client.kv_put(namespace, key, value))


@kv.command()
@click.argument("namespace")
@click.argument("key")
@_asking
def get(namespace: str, key: str, ask: Callable[..., Any]) -> None:
    """Print the value of KEY of NAMESPACE.

    \b
    Example:
      dledger-namesrv kv get ORDER_TOPIC_CONFIG orders
    """
    click.echo(ask(lambda client: client.kv_get(namespace, key)))


@kv.command()
@click.argument("namespace")
@click.argument("key")
@_asking
@click.pass_context
def delete(ctx: click.Context, namespace: str, key: str, ask: Callable[..., Any]) -> None:
    """Delete KEY of NAMESPACE.

    \b
    Example:
      dledger-namesrv kv delete ORDER_TOPIC_CONFIG orders
    """
    ctx.meta["changes"] = True
    ask(lambda client: client.kv_delete(namespace, key))


@kv.command(name="list")
@click.argument("namespace", default="")
@_asking
@_json_option
def list_(namespace: str, ask: Callable[..., Any], as_json: bool) -> None:
    """Show all keys and values of NAMESPACE; without one, the namespaces.

    \b
    Examples:
      dledger-namesrv kv list
      dledger-namesrv kv list ORDER_TOPIC_CONFIG
    """
    values: dict[str, str] = ask(lambda client: client.kv_list(namespace))
    if as_json:
        print_json(values if namespace else sorted(values))
    elif namespace:
        print_table(("key", "value"), sorted(values.items()))
    else:
        for name in sorted(values):
            click.echo(name)


show_exit_codes(cli, _EXITS)


def main() -> None:
    silence_grpc()
    cli(prog_name="dledger-namesrv")


if __name__ == "__main__":
    main()
