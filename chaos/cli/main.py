"""The `dledger-chaos` command."""

from __future__ import annotations

import logging
import os
from typing import Any

import click

from chaos.cli.convert_command import convert_command
from chaos.cli.demo_command import demo
from chaos.cli.failover_command import failover
from chaos.cli.run_command import run
from chaos.cli.soak_command import soak
from chaos.plans.scenario import all_scenarios

#: As where a run could not be carried out.
_EXIT_FAILED = 3


class _Root(click.Group):
    """A file or directory that cannot be used is one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read has seen enough, as `head` does: click ends without a word
        except OSError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(_EXIT_FAILED)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Break a real cluster on purpose, under load, and check that it kept its promises.

    \b
    Examples:
      dledger-chaos list
      dledger-chaos run leader-kill --check
      dledger-chaos demo

    Exit codes: see the help of each command.
    """


@cli.command("list")
def list_scenarios() -> None:
    """List the scenarios that come with this program.

    \b
    Example:
      dledger-chaos list

    Exit codes: 0 done.
    """
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
