"""Options shared by all commands that connect to a cluster: addresses, group, TLS files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dledger.infra.addresses import is_address

if TYPE_CHECKING:
    from dledger.client import TlsFiles

SERVERS_VARIABLE = "DLEDGER_SERVERS"
TLS_VARIABLES = {"ca": "DLEDGER_TLS_CA", "cert": "DLEDGER_TLS_CERT", "key": "DLEDGER_TLS_KEY"}


class Seconds(click.FloatRange):
    """A finite number of seconds. "nan" and "inf" are floats, but not valid timeouts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


class TargetDirectory(click.Path):
    """A directory to write to. An empty text, as from a shell variable that is not set, is not the current
    one."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


TARGET_DIRECTORY = TargetDirectory(file_okay=False, path_type=Path)
#: Type of timeout options.
TIMEOUT = Seconds(0.01)
#: Maximum of indexes and counts on the wire.
MAX_INT64 = (1 << 63) - 1


def parse_servers(_ctx: click.Context, _param: click.Parameter, value: str) -> list[str]:
    """Parse comma-separated addresses and remove duplicates."""
    addresses = [part.strip() for part in value.split(",") if part.strip()]
    for address in addresses:
        if not is_address(address):
            raise click.BadParameter(f"{address!r} is not an address of the form host:port")
    if not addresses:
        raise click.BadParameter("at least one address is required")
    return list(dict.fromkeys(addresses))


def parse_address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Check one address, if there is one."""
    if value is not None and not is_address(value):
        raise click.BadParameter(f"{value!r} is not an address of the form host:port")
    return value


def tls_files(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """Return the TLS files, or None if the connection uses plain text."""
    # imports gRPC, which callers that only need the variables' names should not load
    from dledger.client import TlsFiles

    if ca is None and (certificate or key):
        raise click.UsageError("--tls-cert and --tls-key need --tls-ca, the CA of the nodes")
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together")
    return None if ca is None else TlsFiles(ca, certificate, key)


def tls_options(command: Callable[..., Any], peers: str) -> Any:
    """Add --tls-ca, --tls-cert and --tls-key. `peers` names the servers in the help texts."""
    texts = {
        "ca": "Trusted CA (PEM); enables TLS.",
        "cert": f"This client's certificate (PEM), if the {peers} require one.",
        "key": "Key of the certificate (PEM).",
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
    """Add --servers and --group, and combine --tls-ca, --tls-cert and --tls-key into the argument `tls`."""

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
        help=f"Addresses of the nodes; also from the variable {SERVERS_VARIABLE}.",
    )(with_tls)
