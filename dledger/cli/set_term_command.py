"""`dledger set-term`: sets the term of stopped nodes that cannot continue in their current term."""

from __future__ import annotations

from pathlib import Path

import click

from dledger.cli.client_options import MAX_INT64
from dledger.store.offline.set_term import report_term
from dledger.store.offline.set_term import set_term as set_offline


@click.command("set-term")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", type=click.IntRange(1, MAX_INT64), help="The new term, the same on all nodes.")
@click.option(
    "--all-nodes-are-stopped",
    "stopped",
    is_flag=True,
    help="Confirm it: with a running node, two nodes could lead in one term.",
)
def set_term(directory: Path, to: int | None, stopped: bool) -> None:
    """Set the term of a stopped node that elections cannot repair.

    Nodes only accept terms of peers within limits, so a running cluster cannot reach an absurd term. If it
    got one in an earlier version, or if a node reports error 624 at its start, lower it as follows:

    \b
      1. stop ALL nodes of the cluster;
      2. on each node, run dledger set-term DIRECTORY; it prints the lowest term that the node allows;
      3. take the maximum, and on EACH node run dledger set-term DIRECTORY --to TERM ...;
      4. start all nodes.

    The new term must be higher than the term of every stored entry. The vote of the old term is discarded,
    which is safe only because no node runs and all nodes get the same term.

    To raise the term of a single node that rejects the terms of all others as too far ahead, stop only this
    node and set their term; raising is always safe.

    \b
    Examples:
      dledger set-term /var/lib/dledger
      dledger set-term /var/lib/dledger --to 18 --all-nodes-are-stopped
    """
    if to is None:
        report = report_term(directory)
        click.echo(
            f"{report.node_id} of cluster {report.cluster_id} is in term {report.term}; its last entry is "
            f"{report.last_index}, the greatest term of an entry is {report.last_term}: it can be set to "
            f"{report.least} or more"
        )
        return
    if not stopped and to < report_term(directory).term:
        raise click.UsageError(
            "to lower the term, stop all nodes of the cluster and pass --all-nodes-are-stopped"
        )
    report = set_offline(directory, to)
    click.echo(
        f"{report.node_id} of cluster {report.cluster_id} was in term {report.term}, and is in {to} now"
    )
