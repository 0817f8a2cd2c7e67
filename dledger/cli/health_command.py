"""`dledger health`: one request to a probe, for health checks of containers."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import click

from dledger.cli.client_options import TIMEOUT, TLS_VARIABLES
from dledger.cli.exits import Exit

#: Where the image of examples/deploy states which probe to request.
URL_VARIABLE = "DLEDGER_HEALTH_URL"
_MAX_BODY = 4096


@click.command()
@click.argument("url", envvar=URL_VARIABLE)
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=TLS_VARIABLES["ca"],
    metavar="FILE",
    help=f"Trusted CA (PEM) of an https URL.  [{TLS_VARIABLES['ca']}]",
)
@click.option("--timeout", type=TIMEOUT, default=3.0, show_default=True, help="Seconds to wait.")
def health(url: str, tls_ca: Path | None, timeout: float) -> None:
    """Request a probe of a node or NameServer, and print its response.

    URL is the status page (http_listen), with one of the probes /health, /livez, /leader and /replica as its
    path; /health if it has no path. A NameServer has /livez only. Without the argument, DLEDGER_HEALTH_URL is
    used. Exits with 0 if the status is 200, and otherwise with 1.

    \b
    Examples:
      dledger health http://127.0.0.1:20980
      dledger health https://n1:20980/livez --tls-ca ca.pem
    """
    target = urlsplit(url)
    if target.scheme not in ("http", "https") or not target.hostname:
        raise click.UsageError(f"{url!r}: expected http://host:port/path or https://host:port/path")
    try:
        port = target.port
    except ValueError as error:
        raise click.UsageError(f"{url!r}: {error}") from error
    path = (target.path if target.path not in ("", "/") else "/health") + (
        target.query and f"?{target.query}"
    )
    connection: http.client.HTTPConnection
    try:
        if target.scheme == "https":
            context = ssl.create_default_context(cafile=tls_ca)
            connection = http.client.HTTPSConnection(target.hostname, port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(target.hostname, port, timeout=timeout)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(_MAX_BODY).decode(errors="replace").strip()
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        click.echo(f"no response from {url}: {error}", err=True)
        raise click.exceptions.Exit(Exit.FAILED) from None
    click.echo(body)
    if response.status != http.client.OK:
        raise click.exceptions.Exit(Exit.FAILED)
