"""`dledger broker role`: make a broker with a classic log master or slave."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import click

from broker_adapter.cli.connect.target import Target
from broker_adapter.client import change_role
from broker_adapter.errors import RemotingRefused, Status, error_for
from dledger.cli.client_options import TIMEOUT, parse_servers, tls_files, tls_options


@click.command()
@click.argument("to", metavar="master|slave", type=click.Choice(["master", "slave"]))
@click.option(
    "--server",
    "servers",
    required=True,
    callback=parse_servers,
    metavar="HOST:PORT",
    help="The broker's port for the remoting protocol.",
)
@click.option(
    "--force", is_flag=True, help="Change the role even if a slave lacks messages, which are then lost."
)
@partial(tls_options, peers="brokers")
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Seconds.")
def role(
    to: str,
    servers: list[str],
    force: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    timeout: float,
) -> None:
    """Make a broker with `store = "classic"` master, or slave of the new master.

    A slave cannot become master while its master is alive, or if it lacks messages of the master. The error
    shows the number of missing bytes. Stop the old master, or make it a slave, before you make another broker
    master, because two masters write two different logs. A master cannot become slave while a connected slave
    lacks messages.

    \b
    Examples:
      dledger broker role slave --server 10.0.0.1:10911
      dledger broker role master --server 10.0.0.2:10911
    """
    if len(servers) != 1:
        raise click.BadParameter(
            "pass exactly one broker: the role of only one broker can be changed at a time",
            param_hint="--server",
        )
    target = Target([], servers, tls_files(tls_ca, tls_cert, tls_key), timeout)
    options = target.options
    change = change_role(
        servers[0], to_master=to == "master", force=force, options=options, tls=target.client_tls
    )
    try:
        asyncio.run(change)
    except RemotingRefused as error:
        if error.status is not Status.CODE_UNKNOWN:
            raise
        text = (
            f"{servers[0]} is not a broker with a classic log of this project. A group with a replicated log "
            "elects its master: `dledger transfer --to NODE` moves it"
        )
        raise error_for(Status.CODE_UNKNOWN, text) from None
    click.echo(f"{servers[0]} is {to}")
