"""`dledger set-term`: the way back of stopped nodes from a term that they cannot go on from."""

from __future__ import annotations

from pathlib import Path

import click

from dledger.cli.client_options import GREATEST
from dledger.store.offline.set_term import report_term
from dledger.store.offline.set_term import set_term as set_offline


@click.command("set-term")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", type=click.IntRange(1, GREATEST), help="The new term, the same on all nodes.")
@click.option(
    "--all-nodes-are-stopped",
    "stopped",
    is_flag=True,
    help="Say so: with one of them running, two nodes could lead in one term.",
)
def set_term(directory: Path, to: int | None, stopped: bool) -> None:
    """Give a stopped node another term, where elections do not lead out.

    Terms of peers are believed within reason only, so a running cluster does not get to an absurd one. If it
    has one from before that, or if a node says 624 at its start, lower it like this:

    \b
      1. stop ALL nodes of the cluster;
      2. on each: dledger set-term DIRECTORY; it says from which term on this node allows;
      3. take the greatest of these, and on EACH node: dledger set-term DIRECTORY --to TERM ...;
      4. start them all.

    A term is never set to that of a stored entry or below. Its vote is forgotten, which is safe only
    because no node runs and all of them go to the same term.

    To raise the term of one node, which refuses those of all others as too far ahead, stop this one only, and
    give it theirs; raising is always safe.

    \b
    Examples:
      dledger set-term /var/lib/dledger
      dledger set-term /var/lib/dledger --to 18 --all-nodes-are-stopped
    """
    if to is None:
        found = report_term(directory)
        click.echo(
            f"{found.node_id} of cluster {found.cluster_id} is in term {found.term}; its last entry is "
            f"{found.last_index}, the greatest term of an entry is {found.last_term}: it can be set to "
            f"{found.least} or more"
        )
        return
    if not stopped and to < report_term(directory).term:
        raise click.UsageError("a lower term needs --all-nodes-are-stopped: stop all nodes of the cluster")
    found = set_offline(directory, to)
    click.echo(f"{found.node_id} of cluster {found.cluster_id} was in term {found.term}, and is in {to} now")
