"""`--version` of each command."""

from __future__ import annotations

import sys
from importlib import metadata

import click


def _show(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        try:
            version = metadata.version("dledger")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        click.echo(f"dledger {version}, Python {sys.version.split()[0]}")
        ctx.exit()


version_option = click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show, help="Show the version."
)
