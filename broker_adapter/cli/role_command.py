"""`dledger broker role`: make a broker with a classic log master, or slave."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import click

from broker_adapter.cli.connect.target import Target
from broker_adapter.client import change_role
from dledger.cli.client_options import TIMEOUT, tls_options
from dledger.platform import parse_servers, tls_files


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
@click.option("--force", is_flag=True, help="Whatever a slave lacks: that is lost.")
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
    """Make a broker with `store = "classic"` master, or slave of whoever is master then.

    A slave is refused while its master lives, and if it lacks what that had: the answer says how much. Stop
    the old master, or make it a slave, before there is a new one: two masters write two logs. A master is
    refused while a connected slave lacks something.

    \b
    Examples:
      dledger broker role slave --server 10.0.0.1:10911
      dledger broker role master --server 10.0.0.2:10911
    """
    if len(servers) != 1:
        raise click.BadParameter("one broker at a time", param_hint="--server")
    target = Target([], servers, tls_files(tls_ca, tls_cert, tls_key), timeout)
    options = target.options
    asyncio.run(
        change_role(servers[0], to_master=to == "master", force=force, options=options, tls=target.client_tls)
    )
    click.echo(f"{servers[0]} is {to}")
