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
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.cli.version_option import version_option

#: Same code as for a run that could not be executed.
_EXIT_FAILED = 3


class _ChaosCommands(SuggestingGroup):
    """Reports an unusable file or directory on one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click exits silently if the reader closed the pipe, as `head` does
        except OSError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(_EXIT_FAILED)


@click.group(cls=_ChaosCommands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def cli() -> None:
    """Inject faults into a real cluster under load, and check its guarantees.

    \b
    Examples:
      dledger-chaos list
      dledger-chaos run leader-kill --check
      dledger-chaos demo

    Exit codes: see the help of each command.
    """


@cli.command("list")
def list_scenarios() -> None:
    """List the built-in scenarios.

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
    # gRPC logs every broken connection, and many faults break connections.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Clients log the faults they meet. The trace records the relevant ones.
    logging.getLogger().addHandler(logging.NullHandler())
    cli()
