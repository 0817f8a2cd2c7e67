"""The `dledger-chaos` command."""

from __future__ import annotations

import logging
import os

import click

from chaos.cli.convert_command import convert_command
from chaos.cli.demo_command import demo
from chaos.cli.failover_command import failover
from chaos.cli.run_command import run
from chaos.cli.soak_command import soak
from chaos.scenario import all_scenarios


@click.group()
def cli() -> None:
    """Break a real cluster on purpose, under load, and see what it has promised and kept."""


@cli.command("list")
def list_scenarios() -> None:
    """The scenarios that come with this program."""
    for scenario in all_scenarios():
        size = f"{scenario.nodes} nodes, {scenario.seconds:g} s"
        click.echo(f"{scenario.name:24} {scenario.workload:8} {size:16} {scenario.title}")


cli.add_command(run)
cli.add_command(convert_command)
cli.add_command(demo)
cli.add_command(failover)
cli.add_command(soak)


def main() -> None:
    # gRPC tells of every connection that breaks, and here they break on purpose.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # What clients log, they log of what is done to them; what matters of it is in the trace.
    logging.getLogger().addHandler(logging.NullHandler())
    cli()
