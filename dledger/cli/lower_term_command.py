"""`dledger lower-term`: the way back of a stopped cluster from an absurd term."""

from __future__ import annotations

from pathlib import Path

import click

from dledger.cli.client_options import GREATEST
from dledger.store.lower_term import lower_term as lower
from dledger.store.lower_term import report_term


@click.command("lower-term")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", type=click.IntRange(1, GREATEST), help="The new term, the same on all nodes.")
@click.option(
    "--all-nodes-are-stopped",
    "stopped",
    is_flag=True,
    help="Say so: with one of them running, two nodes could lead in one term.",
)
def lower_term(directory: Path, to: int | None, stopped: bool) -> None:
    """Give a stopped node a lower term, after a peer had driven it out of range.

    Terms of peers are believed within reason only, so a running cluster does not get there. One that was
    attacked before that, or whose node says 624 at its start, comes back like this:

    \b
      1. stop ALL nodes of the cluster;
      2. on each: dledger lower-term DIRECTORY; it says from which term on this node allows;
      3. take the greatest of these, and on EACH node: dledger lower-term DIRECTORY --to TERM ...;
      4. start them all.

    A term is never lowered to that of a stored entry or below. Its vote is forgotten, which is safe only
    because no node runs and all of them go to the same term.

    \b
    Examples:
      dledger lower-term /var/lib/dledger
      dledger lower-term /var/lib/dledger --to 18 --all-nodes-are-stopped
    """
    if to is None:
        found = report_term(directory)
        click.echo(
            f"{found.node_id} of cluster {found.cluster_id} is in term {found.term}; its last entry is "
            f"{found.last_index}, the greatest term of an entry is {found.last_term}: it can be lowered to "
            f"{found.least} or more"
        )
        return
    if not stopped:
        raise click.UsageError("--to needs --all-nodes-are-stopped: stop all nodes of the cluster first")
    found = lower(directory, to)
    click.echo(f"{found.node_id} of cluster {found.cluster_id} was in term {found.term}, and is in {to} now")
