"""What all commands that talk to a cluster have in common: its addresses, its group, its TLS files."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dledger.client import TlsFiles

SERVERS_VARIABLE = "DLEDGER_SERVERS"
TLS_VARIABLES = {"ca": "DLEDGER_TLS_CA", "cert": "DLEDGER_TLS_CERT", "key": "DLEDGER_TLS_KEY"}


class Seconds(click.FloatRange):
    """A number of seconds that is one: "nan" and "inf" are floats too, and nothing can wait for them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


#: Of options that say how long to wait.
TIMEOUT = Seconds(0.01)
#: The greatest number that travels, of an index and whatever else is counted.
GREATEST = (1 << 63) - 1


def parse_servers(_ctx: click.Context, _param: click.Parameter, value: str) -> list[str]:
    """Addresses separated by commas, as a list without repetitions."""
    addresses = [part.strip() for part in value.split(",") if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{address!r} is not host:port")
    if not addresses:
        raise click.BadParameter("no address is given")
    return list(dict.fromkeys(addresses))


def tls_files(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """None: plain text."""
    from dledger.client import TlsFiles  # with gRPC: not for those who only want the names of the variables

    if ca is None and (certificate or key):
        raise click.UsageError("--tls-cert and --tls-key need --tls-ca: which CA are the nodes to be of?")
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    return None if ca is None else TlsFiles(ca, certificate, key)


def tls_options(command: Callable[..., Any], peers: str) -> Any:
    """--tls-ca, --tls-cert and --tls-key. `peers`: what the command talks to."""
    texts = {
        "ca": "Whom to trust (PEM): speak TLS.",
        "cert": f"This client's certificate (PEM), where the {peers} want one.",
        "key": "Its key (PEM).",
    }
    for name, variable in reversed(TLS_VARIABLES.items()):
        command = click.option(
            f"--tls-{name}",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            envvar=variable,
            metavar="FILE",
            help=f"{texts[name]}  [{variable}]",
        )(command)
    return command


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--servers, --group, and --tls-ca, --tls-cert, --tls-key as the one argument `tls`."""

    @wraps(command)
    def with_tls(
        *args: Any, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **options: Any
    ) -> Any:
        return command(*args, tls=tls_files(tls_ca, tls_cert, tls_key), **options)

    with_tls = tls_options(with_tls, "nodes")
    with_tls = click.option("--group", default="default", show_default=True, help="Name of the log.")(
        with_tls
    )
    return click.option(
        "--servers",
        callback=parse_servers,
        envvar=SERVERS_VARIABLE,
        required=True,
        metavar="HOST:PORT,...",
        help=f"The nodes; also from the variable {SERVERS_VARIABLE}.",
    )(with_tls)
