"""`dledger mirror`: shows how far learners are behind, and makes a learner a group of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dledger.cli.client_options import TIMEOUT, client_options
from dledger.cli.output import print_json, print_table
from dledger.cli.recover_command import confirm, print_rows, report_json
from dledger.cli.search_notice import reporting_search
from dledger.cli.server_commands import node_config
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.client import AsyncClient, TlsFiles
from dledger.errors import Code, DLedgerError, Refused
from dledger.node.probe import Probe, probe_members
from dledger.status.model import NodeStatus
from dledger.store.offline.recover import ForcedRecovery, RecoveryReport

if TYPE_CHECKING:
    from dledger.node.setup.config import NodeConfig

_COLUMNS = ("node", "address", "committed", "lacks", "lag", "bytes", "state")
_STATUS_S = 2.0


@click.group(cls=SuggestingGroup)
def mirror() -> None:
    """Keep a copy of a log in another place, and make it a group of its own.

    The copy is a learner: it receives the log and counts in no majority, so its distance delays no append.
    Add it with `dledger member add --learner`.

    This is not `dledger broker mirror`, which copies a RocketMQ broker while you migrate from it.

    \b
    Examples:
      dledger member add m1 --address 10.9.0.1:20911 --learner
      dledger mirror status
      dledger mirror promote --config m1.toml
    """


@mirror.command("status")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Time limit in seconds.")
def mirror_status(
    servers: list[str], group: str, tls: TlsFiles | None, as_json: bool, timeout: float
) -> None:
    """Show how far each learner of the group is behind the leader.

    `committed` is the last entry that the learner knows to be committed, and `lacks` the number of committed
    entries after it: those that a promotion at this moment would lose. "?" means that the learner does not
    answer. `lag` and `bytes` are what the leader still has to send, including uncommitted entries.

    \b
    Example:
      dledger mirror status
    """
    leader, learners = asyncio.run(_statuses(servers, group, tls, timeout))
    rows = learner_rows(leader, learners)
    if as_json:
        print_json(
            {
                "cluster_id": leader.cluster_id,
                "leader_id": leader.leader_id,
                "committed_index": leader.committed_index,
                "learners": [dict(zip(_COLUMNS, row, strict=True)) for row in rows],
            }
        )
        return
    click.echo(f"cluster {leader.cluster_id}: committed up to entry {leader.committed_index}")
    shown = [["?" if value is None else value for value in row] for row in rows]
    print_table(_COLUMNS, shown)
    if not rows:
        click.echo("the group has no learner: add one with `dledger member add --learner`", err=True)


async def _statuses(
    servers: list[str], group: str, tls: TlsFiles | None, timeout: float
) -> tuple[NodeStatus, dict[str, NodeStatus | None]]:
    """Return the status of the leader, requested after those of its learners, and theirs by node id."""
    client = AsyncClient(servers, group=group, session=False, tls=tls)
    async with client, reporting_search(client):
        leader = await client.leader(timeout=timeout)

        async def status_of(address: str) -> NodeStatus | None:
            try:
                status = await client.status_of(address, timeout=_STATUS_S)
            except DLedgerError:
                return None
            return status if status.cluster_id == leader.cluster_id else None

        learners = [member for member in leader.members if member.role == "learner"]
        answers = await asyncio.gather(*(status_of(member.address) for member in learners))
        statuses = {member.node_id: answer for member, answer in zip(learners, answers, strict=True)}
        return await client.leader(timeout=timeout), statuses


def learner_rows(
    leader: NodeStatus, learners: dict[str, NodeStatus | None]
) -> list[tuple[str | int | None, ...]]:
    """Return a row of _COLUMNS for each learner. None: unknown."""
    followers = {follower.node_id: follower for follower in leader.followers}
    rows: list[tuple[str | int | None, ...]] = []
    for member in leader.members:
        if member.role != "learner":
            continue
        status, follower = learners.get(member.node_id), followers.get(member.node_id)
        committed = None if status is None else status.committed_index
        lacks = None if committed is None else max(0, leader.committed_index - committed)
        lag = (None, None, "") if follower is None else (follower.lag_entries, follower.lag_bytes, "ready")
        if follower is not None and follower.not_ready:
            lag = (*lag[:2], follower.not_ready)
        rows.append((member.node_id, member.address, committed, lacks, *lag))
    return rows


@mirror.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The TOML file of the stopped learner.",
)
@click.option("--new-cluster-id", metavar="ID", help="Id of the new cluster.  [default: generated]")
@click.option("--fork", "is_fork", is_flag=True, help="Also while members of the former group run.")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--timeout", type=TIMEOUT, default=3.0, show_default=True, help="Seconds to wait for other members."
)
def promote(
    path: Path, new_cluster_id: str | None, is_fork: bool, is_confirmed: bool, as_json: bool, timeout: float
) -> None:
    """Make a stopped learner the only member of a new cluster, with a copy of the log.

    The log is cut to the last entry that the learner knows to be committed. Acknowledged entries after it are
    missing in the new cluster: `dledger mirror status` shows their number while the group runs.

    Stop the learner with SIGTERM, which stores the last commit that it knows; a killed node may have stored
    it up to `timing.checkpoint_ms` before. Then run this command, set the printed cluster_id, start the node,
    and add members with `dledger member add`.

    The former group is not changed, and nothing that it stores later reaches the new cluster. As long as one
    of its members answers, the command refuses: stop them, or pass --fork to have two groups that go separate
    ways. For the directory of a voter use `dledger recover`. If the command is interrupted, run it again.

    \b
    Examples:
      dledger mirror promote --config m1.toml
      dledger mirror promote --config m1.toml --new-cluster-id orders-2 --yes --json
      dledger mirror promote --config m1.toml --fork
    """
    config = node_config(path, {})
    with ForcedRecovery(
        config.directory, config.node_id, config.members, cluster_id=new_cluster_id, promotes_learner=True
    ) as promotion:
        probe = _probe(config, promotion, timeout, is_fork=is_fork)
        report = promotion.report
        if not as_json:
            _print(report, probe)
        if not is_confirmed:
            text = f"Cut the log of {report.node_id}, and make it the new cluster {report.cluster_id}?"
            confirm(text, Code.PROMOTION_REFUSED)
            _probe(config, promotion, timeout, is_fork=is_fork)
        promotion.carry_out()
        if as_json:
            print_json(_as_json(report, probe))
        else:
            _print_next_steps(report, path)


def _probe(config: NodeConfig, promotion: ForcedRecovery, timeout_s: float, *, is_fork: bool) -> Probe:
    """Ask the members of the former group. Raises Refused PROMOTION_REFUSED if one runs, unless forked."""
    clusters = (promotion.report.former_id,)
    probe = asyncio.run(probe_members(config, clusters, promotion.others, timeout_s))
    if probe.running and not is_fork:
        lacks = _missing_count(promotion.report, probe)
        lag = "" if lacks is None else f"; the learner lacks {lacks} entries that they have committed"
        text = f"members of the former group run: {'; '.join(probe.running)}{lag}"
        raise Refused(text, code=Code.PROMOTION_REFUSED)
    return probe


def _missing_count(report: RecoveryReport, probe: Probe) -> int | None:
    """Return the number of committed entries that the learner lacks, as far as running members know."""
    known = probe.committed_index
    return None if known < 0 else max(0, known - report.committed_index)


def _print(report: RecoveryReport, probe: Probe) -> None:
    former = ", ".join(f"{member.node_id} ({member.address})" for member in report.dropped)
    missing = _missing_count(report, probe)
    rows = {
        "node": f"{report.node_id}, {report.role or 'no member'} of group {report.group}",
        "cluster": f"{report.former_id}; new: {report.cluster_id} (forced recovery {report.number})",
        "kept": f"all up to entry {report.committed_index}, the last one known to be committed",
        "cut": f"{max(0, report.uncommitted_count)} entries above it, committed in the former group or not",
        "missing": "unknown: no member of the former group answers"
        if missing is None
        else f"{missing} entries that the former group has committed by now",
        "former members": former or "none",
    }
    for damage in report.damages:
        rows[f"damaged entries {damage.first_index}..{damage.last_index}"] = (
            "cannot be repaired without the former group; the node may not be able to lead"
        )
    print_rows(rows)
    if report.is_repeated:
        click.echo("An earlier promotion of this directory was interrupted. It will be completed.")
    for name in probe.running:
        click.echo(f"warning: {name}. Both groups accept appends from now on, and go separate ways")
    for name in probe.silent:
        click.echo(f"warning: {name} accepts connections but does not answer: the former group may run")


def _print_next_steps(report: RecoveryReport, path: Path) -> None:
    click.echo(
        f"\n{report.node_id} is the only member of cluster {report.cluster_id}. Set in {path}:\n\n"
        f'  cluster_id = "{report.cluster_id}"\n\n'
        "Remove the other nodes from its [members], start it, and add members with `dledger member add`.\n"
        f"If the former group runs again, remove {report.node_id} from it with `dledger member remove`."
    )


def _as_json(report: RecoveryReport, probe: Probe) -> dict[str, Any]:
    return {
        **report_json(report, probe),
        "running": list(probe.running),
        "missing_count": _missing_count(report, probe),
    }
