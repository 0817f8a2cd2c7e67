"""What all commands that talk to a cluster have in common: its addresses, its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SERVERS_VARIABLE = "DLEDGER_SERVERS"


def parse_servers(_ctx: click.Context, _param: click.Parameter, value: str) -> list[str]:
    """Addresses separated by commas, as a list without repetitions."""
    addresses = [part.strip() for part in value.split(",") if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{address!r} is not host:port")
    if not addresses:
        raise click.BadParameter("no address is given")
    return list(dict.fromkeys(addresses))


def client_options(command: F) -> F:
    """--servers and --group."""
    command = click.option("--group", default="default", show_default=True, help="Name of the log.")(command)
    return click.option(
        "--servers",
        callback=parse_servers,
        envvar=SERVERS_VARIABLE,
        required=True,
        metavar="HOST:PORT,...",
        help=f"The nodes; also from the variable {SERVERS_VARIABLE}.",
    )(command)
