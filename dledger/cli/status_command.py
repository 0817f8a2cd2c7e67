"""`dledger status` and `dledger transfer`: the status of the nodes, and transfer of leadership."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import click

from dledger.cli.client_options import TIMEOUT, Seconds, client_options
from dledger.cli.exits import Exit
from dledger.cli.output import is_terminal, print_json, print_table
from dledger.cli.search_notice import reporting_search
from dledger.client import AsyncClient, TlsFiles
from dledger.errors import DLedgerError
from dledger.status.encoding import node_status_to_json
from dledger.status.model import NodeStatus

Answers = Mapping[str, NodeStatus | DLedgerError]

_COLUMNS = ("node", "address", "role", "term", "leader", "begin", "end", "committed", "lag", "disk", "health")


@click.command()
@client_options
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(0.1),
    default=1.0,
    show_default=True,
    help="Refresh interval of --watch, in seconds.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print all fields as JSON; with --watch, one object per line."
)
@click.option("--timeout", type=TIMEOUT, default=2.0, show_default=True, help="Seconds to wait for a node.")
def status(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    watch: bool,
    interval: float,
    as_json: bool,
    timeout: float,
) -> None:
    """Show role, term, indexes and lag of every node: of --servers, and of the members that they know.

    Exits with 0 if a leader was found, otherwise with 1. `lag` is in entries, as reported by the leader.

    \b
    Examples:
      dledger status --servers 127.0.0.1:20911,127.0.0.1:20912,127.0.0.1:20913
      dledger status --watch
      dledger status --json | jq '.nodes[].committed_index'
    """
    has_leader = asyncio.run(_status(servers, group, tls, interval if watch else None, as_json, timeout))
    if not has_leader:
        raise click.exceptions.Exit(Exit.FAILED)


async def _status(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    interval: float | None,
    as_json: bool,
    timeout: float,
) -> bool:
    """Print the status, repeatedly if there is an interval. Returns True if a leader was found."""
    async with AsyncClient(servers, group=group, session=False, tls=tls) as client:
        while True:
            answers = await _query(client, timeout)
            if interval is not None and is_terminal() and not as_json:
                click.clear()
                click.echo(time.strftime("%H:%M:%S"))
            _print(answers, as_json=as_json, one_line=interval is not None)
            if interval is None:
                return leader_of(answers) is not None
            await asyncio.sleep(interval)


async def _query(client: AsyncClient, timeout: float) -> Answers:
    """Return the answers of the servers, and of members that are not among them."""
    answers = await client.status(timeout=timeout)
    statuses = [answer for answer in answers.values() if isinstance(answer, NodeStatus)]
    newest = max(statuses, key=lambda status: status.membership_index, default=None)
    members = () if newest is None else newest.members
    # A server may be configured with another address than the members use.
    known = {status.node_id for status in statuses}
    others = [m.address for m in members if m.node_id not in known and m.address not in answers]

    async def status_of(address: str) -> NodeStatus | DLedgerError:
        try:
            return await client.status_of(address, timeout=timeout)
        except DLedgerError as error:
            return error

    return answers | dict(zip(others, await asyncio.gather(*map(status_of, others)), strict=True))


def leader_of(answers: Answers) -> NodeStatus | None:
    """Return the node that claims to lead in the highest term. A deposed leader may still claim to lead in an
    earlier term."""
    leaders = [a for a in answers.values() if isinstance(a, NodeStatus) and a.is_leader]
    return max(leaders, key=lambda node: node.term, default=None)


def _print(answers: Answers, *, as_json: bool, one_line: bool) -> None:
    if not as_json:
        print_table(_COLUMNS, table_rows(answers))
    elif one_line:
        click.echo(json.dumps(to_json(answers), ensure_ascii=False))
    else:
        print_json(to_json(answers))


def to_json(answers: Answers) -> dict[str, Any]:
    leader = leader_of(answers)
    nodes = []
    for address, answer in answers.items():
        if isinstance(answer, NodeStatus):
            nodes.append({**node_status_to_json(answer), "asked_address": address, "error": None})
        else:
            nodes.append({"asked_address": address, "error": str(answer)})
    return {"leader_id": None if leader is None else leader.node_id, "nodes": nodes}


def table_rows(answers: Answers) -> list[tuple[object, ...]]:
    leader = leader_of(answers)
    lags = {} if leader is None else {f.node_id: f.lag_entries for f in leader.followers}
    rows: list[tuple[object, ...]] = []
    for address, answer in answers.items():
        if isinstance(answer, DLedgerError):
            cause = answer.message.removeprefix(f"{address}: ")
            rows.append(("", address, "down", *[""] * 7, f"{answer.code.name}: {cause}"))
            continue
        rows.append(
            (
                answer.node_id,
                address,
                answer.role,
                answer.term,
                answer.leader_id,
                answer.ledger_begin_index,
                answer.ledger_end_index,
                answer.committed_index,
                0 if answer.is_leader else lags.get(answer.node_id),
                answer.disk,
                answer.health,
            )
        )
    return rows


@click.command()
@client_options
@click.option("--to", required=True, metavar="NODE", help="Id of the new leader, e.g. n1.")
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Time limit in seconds.")
def transfer(servers: list[str], group: str, tls: TlsFiles | None, to: str, timeout: float) -> None:
    """Transfer leadership to another node. Appends are delayed for a moment, and none is lost.

    \b
    Example:
      dledger transfer --servers 127.0.0.1:20911,127.0.0.1:20912,127.0.0.1:20913 --to n2
    """
    if not to:  # the servers would interpret it as any node
        raise click.BadParameter("a node id is required", param_hint="--to")
    term, leader_id = asyncio.run(_transfer(servers, group, tls, to, timeout))
    click.echo(f"{leader_id} leads in term {term}")


async def _transfer(
    servers: list[str], group: str, tls: TlsFiles | None, to: str, timeout: float
) -> tuple[int, str]:
    client = AsyncClient(servers, group=group, session=False, tls=tls)
    async with client, reporting_search(client):
        return await client.transfer_leadership(to, timeout=timeout)
