"""`dledger recover`: founds a new cluster on the log of one member, if the others are lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dledger.cli.client_options import TIMEOUT
from dledger.cli.output import print_json
from dledger.cli.server_commands import node_config
from dledger.errors import Code, Refused
from dledger.node.probe import Probe, probe_members
from dledger.store.offline.recover import ForcedRecovery, RecoveryReport

if TYPE_CHECKING:
    from dledger.node.setup.config import NodeConfig


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The TOML file of the stopped node.",
)
@click.option(
    "--force-new-cluster",
    "is_forced",
    is_flag=True,
    required=True,
    help="Confirm that the other members are lost for good.",
)
@click.option("--new-cluster-id", metavar="ID", help="Id of the new cluster.  [default: generated]")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--timeout", type=TIMEOUT, default=3.0, show_default=True, help="Seconds to wait for other members."
)
def recover(
    path: Path, is_forced: bool, new_cluster_id: str | None, is_confirmed: bool, as_json: bool, timeout: float
) -> None:
    """Make a stopped node the only member of a new cluster, which continues with its log.

    For a group that has lost more than a minority of its voters for good. Acknowledged entries that only the
    lost members had are lost. If any other member has its directory, start it instead.

    Run it on the survivor with the longest log (the greatest term of the last entry, then the greatest index:
    `dledger inspect`), with all other members stopped. Then set the printed cluster_id, start the node, and
    add new members with `dledger member add`. Never start former members with their directories again.

    If the command is interrupted, run it again.

    \b
    Examples:
      dledger recover --config n1.toml --force-new-cluster
      dledger recover --config n1.toml --force-new-cluster --yes --json
    """
    config = node_config(path, {})
    with ForcedRecovery(
        config.directory, config.node_id, config.members, cluster_id=new_cluster_id
    ) as recovery:
        probe = _require_stopped(config, recovery, timeout)
        if not as_json:
            _print(recovery.report, probe)
        if not is_confirmed:
            report = recovery.report
            confirm(
                f"Give up all other members, and found cluster {report.cluster_id} on {report.node_id}?",
                Code.RECOVERY_REFUSED,
            )
            _require_stopped(config, recovery, timeout)
        recovery.carry_out()
        if as_json:
            print_json(report_json(recovery.report, probe))
        else:
            _print_next_steps(recovery.report, path)


def _require_stopped(config: NodeConfig, recovery: ForcedRecovery, timeout_s: float) -> Probe:
    """Ask the other members. Raises Refused RECOVERY_REFUSED if one runs."""
    report = recovery.report
    clusters = (report.former_id, report.cluster_id)
    probe = asyncio.run(probe_members(config, clusters, recovery.others, timeout_s))
    if probe.running:
        text = f"other members run: {'; '.join(probe.running)}"
        raise Refused(text, code=Code.RECOVERY_REFUSED)
    return probe


def confirm(text: str, refused: Code) -> None:
    """Ask on the terminal. Raises Refused with the code `refused`, and UsageError without a terminal."""
    if not _has_terminal():
        raise click.UsageError("nothing was changed: pass --yes, as there is no terminal to ask on")
    if not click.confirm(text, err=True):
        raise Refused("it was not confirmed", code=refused)


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _print(report: RecoveryReport, probe: Probe) -> None:
    dropped = ", ".join(f"{member.node_id} ({member.address})" for member in report.dropped)
    rows = {
        "node": f"{report.node_id}, {report.role or 'no member'} of group {report.group}",
        "cluster": f"{report.former_id}; new: {report.cluster_id} (forced recovery {report.number})",
        "end of the log": f"entry {report.end_index} of term {report.end_term}",
        "known to be committed": f"up to entry {report.committed_index}",
        "kept": f"{report.uncommitted_count} entries above it, acknowledged or not",
        "may be lost": f"acknowledged entries after entry {report.end_index} that only other members have, "
        "an unknown number",
        "dropped members": dropped or "none",
    }
    if report.lost_end is not None:
        term, index = report.lost_end
        rows["damaged end"] = f"this log reached entry {index} of term {term} before it was damaged"
    for damage in report.damages:
        rows[f"damaged entries {damage.first_index}..{damage.last_index}"] = (
            "cannot be repaired without other members; the node may not be able to lead"
        )
    if report.image_fault:
        rows["state image"] = f"none, so no state machine can load its state: {report.image_fault}"
    print_rows(rows)
    if report.is_repeated:
        click.echo("An earlier recovery of this directory was interrupted. It will be completed.")
    for name in probe.silent:
        click.echo(f"warning: {name} accepts connections but does not answer: make sure that it is stopped")


def print_rows(rows: Mapping[str, str]) -> None:
    """Print texts with their names, in two columns."""
    width = max(map(len, rows))
    for name, text in rows.items():
        click.echo(f"{name + ':':{width + 1}} {text}")


def _print_next_steps(report: RecoveryReport, path: Path) -> None:
    click.echo(
        f"\n{report.node_id} is the only member of cluster {report.cluster_id}. Set in {path}:\n\n"
        f'  cluster_id = "{report.cluster_id}"\n\n'
        "Remove the other nodes from its [members], start it, and add members with `dledger member add`."
    )


def report_json(report: RecoveryReport, probe: Probe) -> dict[str, Any]:
    return {
        **report._asdict(),
        "uncommitted_count": report.uncommitted_count,
        "damages": [damage._asdict() for damage in report.damages],
        "dropped": [member._asdict() for member in report.dropped],
        "silent": list(probe.silent),
    }
