"""`dledger member`: list and change the members of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TypeVar

import click

from dledger.cli.client_options import TIMEOUT, client_options, parse_address
from dledger.cli.output import print_json, print_table
from dledger.cli.search_notice import reporting_search
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.client import AsyncClient, TlsFiles
from dledger.client.member_changes import MemberChanges
from dledger.core.membership_change import ChangeKind, MemberStep
from dledger.status.model import NodeStatus

_COLUMNS = ("node", "address", "role", "uid", "lag", "state")

T = TypeVar("T")


_address_option = click.option(
    "--address",
    required=True,
    metavar="HOST:PORT",
    callback=parse_address,
    help="Address of the node, as clients and members use it.",
)
_timeout_option = click.option(
    "--timeout", type=TIMEOUT, default=300.0, show_default=True, help="Time limit in seconds."
)
_force_option = click.option(
    "--force", is_flag=True, help="Even if too few voters are in contact, or the learner lags."
)


_older_option = click.option(
    "--force", is_flag=True, help="Even if a member that is down might run a release before 0.3."
)


@click.group(cls=SuggestingGroup)
def member() -> None:
    """List and change the members of a group while it runs.

    A member is a voter, which counts in majorities, or a learner, which only receives the log. A new machine
    starts as a learner and becomes a voter once it has caught up. Start it before or after `add`, with an
    empty directory:

    \b
      dledger server --config n4.toml --join

    Its file names itself and the current members. If a command is interrupted, repeat it: it continues.

    \b
    Examples:
      dledger member list
      dledger member add n4 --address 10.0.0.4:20911
      dledger member replace n3 --by n4 --address 10.0.0.4:20911
      dledger member remove n4
    """


@member.command("list")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Time limit in seconds.")
def list_members(servers: list[str], group: str, tls: TlsFiles | None, as_json: bool, timeout: float) -> None:
    """List the members, as the leader knows them.

    `uid` distinguishes members that had the same node id one after the other; 0: a member from the beginning.
    `lag` is in entries. A learner whose state is "ready" can be promoted.

    \b
    Example:
      dledger member list
    """
    status = _run(servers, group, tls, lambda client: client.leader(timeout=timeout))
    rows = _rows(status)
    if as_json:
        print_json(
            {
                "leader_id": status.leader_id,
                "membership_index": status.membership_index,
                "changes": status.membership_changes,
                "members": [
                    asdict(shown) | {"lag": row[-2], "state": row[-1]}
                    for shown, row in zip(status.members, rows, strict=True)
                ],
            }
        )
        return
    print_table(_COLUMNS, rows)
    if status.membership_changes:
        click.echo("a change of the members is under way", err=True)


def _rows(status: NodeStatus) -> list[tuple[object, ...]]:
    followers = {follower.node_id: follower for follower in status.followers}
    rows: list[tuple[object, ...]] = []
    for shown in status.members:
        follower = followers.get(shown.node_id)
        if follower is None:
            lag, state = 0, "leader" if shown.node_id == status.leader_id else ""
        else:
            lag = follower.lag_entries
            state = follower.not_ready or ("ready" if shown.role == "learner" else follower.push_state)
        rows.append((shown.node_id, shown.address, shown.role, shown.uid, lag, state))
    return rows


@member.command()
@client_options
@click.argument("node")
@_address_option
@click.option("--learner", is_flag=True, help="Keep it a learner. `promote` makes it a voter later.")
@_older_option
@_timeout_option
def add(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    node: str,
    address: str,
    learner: bool,
    force: bool,
    timeout: float,
) -> None:
    """Add a node, and make it a voter once it has caught up.

    The node must be started with an empty directory and `dledger server --join`.

    \b
    Examples:
      dledger member add n4 --address 10.0.0.4:20911
      dledger member add n4 --address 10.0.0.4:20911 --learner
    """

    def work(changes: MemberChanges) -> Awaitable[None]:
        return changes.add(node, address, as_voter=not learner, force=force)

    _change(servers, group, tls, timeout, work)
    click.echo(f"{node} is a {'learner' if learner else 'voter'}")


@member.command()
@client_options
@click.argument("node")
@_force_option
@_timeout_option
def promote(
    servers: list[str], group: str, tls: TlsFiles | None, node: str, force: bool, timeout: float
) -> None:
    """Make a learner a voter. Waits until it has caught up.

    \b
    Example:
      dledger member promote n4
    """
    step = MemberStep(ChangeKind.PROMOTE, node)
    _change(servers, group, tls, timeout, lambda changes: changes.change(step, force=force))
    click.echo(f"{node} is a voter")


@member.command()
@client_options
@click.argument("node")
@_force_option
@_timeout_option
def demote(
    servers: list[str], group: str, tls: TlsFiles | None, node: str, force: bool, timeout: float
) -> None:
    """Make a voter a learner. If it leads, another voter takes over.

    \b
    Example:
      dledger member demote n3
    """
    step = MemberStep(ChangeKind.DEMOTE, node)
    _change(servers, group, tls, timeout, lambda changes: changes.change(step, force=force))
    click.echo(f"{node} is a learner")


@member.command()
@client_options
@click.argument("node")
@_force_option
@_timeout_option
def remove(
    servers: list[str], group: str, tls: TlsFiles | None, node: str, force: bool, timeout: float
) -> None:
    """Remove a member. If it leads, another voter takes over.

    Stop the machine afterwards. To add it again, remove its directory first. The command fails if the node is
    not a member, unless it runs, is one of --servers, and was removed before.

    \b
    Example:
      dledger member remove n3
    """
    _change(servers, group, tls, timeout, lambda changes: changes.remove(node, force=force))
    click.echo(f"{node} is no longer a member")


@member.command()
@client_options
@click.argument("node")
@_address_option
@_timeout_option
def move(
    servers: list[str], group: str, tls: TlsFiles | None, node: str, address: str, timeout: float
) -> None:
    """Change the address of a member. It keeps its directory and its vote.

    Stop the node, run this command, and start the node at the new address.

    \b
    Example:
      dledger member move n3 --address 10.0.0.13:20911
    """
    step = MemberStep(ChangeKind.MOVE, node, address)
    _change(servers, group, tls, timeout, lambda changes: changes.change(step))
    click.echo(f"{node} is at {address}")


@member.command()
@client_options
@click.argument("node")
@click.option("--by", "new", metavar="NODE", help="Id of the new node.  [default: the same id]")
@_address_option
@_older_option
@_timeout_option
def replace(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    node: str,
    new: str | None,
    address: str,
    force: bool,
    timeout: float,
) -> None:
    """Replace a member, which may be gone for good, by a new machine.

    The new node is added, receives the log, and then takes the place of the old one in one step: the group
    always needs a majority of the full number of voters. With the same node id, the old member is removed
    first, and in the meantime a group of three needs both remaining voters.

    If the old machine comes back, it is refused and stops.

    \b
    Examples:
      dledger member replace n3 --by n4 --address 10.0.0.4:20911
      dledger member replace n3 --address 10.0.0.3:20911
    """
    by = new or node
    _change(servers, group, tls, timeout, lambda changes: changes.replace(node, by, address, force=force))
    click.echo(f"{by} is a voter in place of {node if by != node else f'the old {node}'}")


def _change(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    timeout: float,
    work: Callable[[MemberChanges], Awaitable[None]],
) -> None:
    def report(line: str) -> None:
        click.echo(line, err=True)

    _run(servers, group, tls, lambda client: work(MemberChanges(client, timeout=timeout, report=report)))


def _run(
    servers: list[str], group: str, tls: TlsFiles | None, work: Callable[[AsyncClient], Awaitable[T]]
) -> T:
    async def run() -> T:
        client = AsyncClient(servers, group=group, session=False, tls=tls)
        async with client, reporting_search(client):
            return await work(client)

    return asyncio.run(run())
