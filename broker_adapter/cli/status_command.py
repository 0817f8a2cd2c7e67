"""`dledger broker status`: the status of all brokers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from broker_adapter.cli.connect.errors import error_line
from broker_adapter.cli.connect.options import json_option, shown_time, target_options
from broker_adapter.cli.connect.target import Target, unreachable
from broker_adapter.client import Admin
from broker_adapter.errors import BrokerError
from broker_adapter.namesrv.values import BrokerEntry, ClusterInfo
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger import AsyncClient, DLedgerError, NodeStatus
from dledger.cli.client_options import Seconds
from dledger.cli.exits import Exit
from dledger.cli.output import human_bytes, is_terminal, print_json, print_table


class RemotingBroker(NamedTuple):
    """A classic broker, or a broker of RocketMQ. NameServers know only its port for RocketMQ clients."""

    broker_id: int
    known_to: str  # number of NameServers that list it
    is_writable: bool
    runtime: Mapping[str, str]


Answer = NodeStatus | RemotingBroker | DLedgerError | BrokerError
Answers = Mapping[str, Answer]

_COLUMNS = (
    "node",
    "address",
    "broker role",
    "id",
    "term",
    "writable",
    "last switch",
    "dispatch lag",
    "NameServers",
    "state",
)
_NODE_SECONDS = 2.0


@click.command()
@target_options
@click.option("--log-group", default="default", show_default=True, help="Name of the log.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between refreshes, for --watch.",
)
@json_option
def status(target: Target, log_group: str, watch: bool, interval: float, as_json: bool) -> None:
    """Show every broker: role, term, last switch between master and slave, dispatch lag.

    `dispatch lag` is the amount of committed data that is not yet visible to consumers of the node. `state`
    shows the progress of a role change. Exits with 0 if a master accepts messages, otherwise with 1.

    \b
    Examples:
      dledger broker status
      dledger broker status --watch
      dledger broker status --json | jq '.nodes[] | select(.writable)'
    """

    async def run() -> bool:
        while True:
            try:
                answers = await query_nodes(target, log_group)
            except BrokerError as error:
                if not watch:
                    raise
                click.echo(error_line(error), err=True)
                await asyncio.sleep(interval)
                continue
            if watch and is_terminal() and not as_json:
                click.clear()
                click.echo(time.strftime("%H:%M:%S"))
            _print(answers, as_json=as_json, one_line=watch)
            if not watch:
                return any(_is_writable(answer) for answer in answers.values())
            await asyncio.sleep(interval)

    if not asyncio.run(run()):
        raise click.exceptions.Exit(Exit.FAILED)


async def query_nodes(target: Target, log_group: str) -> Answers:
    """Query the status of all nodes.

    The result includes members that no NameServer knows but other nodes report. Raises PutRefused
    (NOT_CONNECTED) if no NameServer responds.
    """
    servers, remoting = list(target.servers), dict[str, Answer]()
    if not servers:
        infos = await target.cluster_infos()
        found = [info for info in infos.values() if isinstance(info, ClusterInfo)]
        if not found:
            raise unreachable(infos)
        for address, info in infos.items():
            if isinstance(info, BrokerError):
                click.echo(f"NameServer {address} did not respond: {info.message}", err=True)
        rows = [row for info in found for row in info.brokers]
        remoting = await _ask_remoting(found, [row for row in rows if not row.node_address], target)
        servers = sorted({row.node_address for row in rows if row.node_address})
        if not rows:
            click.echo(f"no broker is registered with {', '.join(infos)}", err=True)
    answers = await _query_servers(servers, log_group, target) if servers else {}
    members = {m.address for a in answers.values() if isinstance(a, NodeStatus) for m in a.members}
    if missing := sorted(members - set(answers)):
        answers = {**answers, **await _query_servers(missing, log_group, target)}
    return dict(sorted({**answers, **remoting}.items(), key=_by_node_id))


async def _ask_remoting(
    infos: Sequence[ClusterInfo], rows: Sequence[BrokerEntry], target: Target
) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    async with Admin(target.namesrv, options=target.options, tls=target.client_tls) as admin:
        for row in {row.address: row for row in rows}.values():
            try:
                runtime = await admin.broker_runtime(row.address)
            except BrokerError as error:
                answers[row.address] = error
                continue
            known = [info for info in infos if row.address in {one.address for one in info.brokers}]
            is_writable = row.broker_id == MASTER_ID and any(
                row.broker_name not in info.write_wiped for info in known
            )
            shown = f"{len(known)} of {len(infos)}"
            answers[row.address] = RemotingBroker(row.broker_id, shown, is_writable, runtime)
    return answers


async def _query_servers(servers: Sequence[str], log_group: str, target: Target) -> Mapping[str, Answer]:
    async with AsyncClient(servers, group=log_group, session=False, tls=target.tls) as client:
        return await client.status(timeout=min(target.timeout, _NODE_SECONDS))


def _by_node_id(item: tuple[str, Answer]) -> tuple[bool, str]:
    address, answer = item
    return (False, answer.node_id) if isinstance(answer, NodeStatus) else (True, address)


def _is_writable(answer: Answer) -> bool:
    if isinstance(answer, RemotingBroker):
        return answer.is_writable
    return isinstance(answer, NodeStatus) and bool(answer.owner.get("writable"))


def _print(answers: Answers, *, as_json: bool, one_line: bool) -> None:
    if not as_json:
        print_table(_COLUMNS, [table_row(address, answer) for address, answer in answers.items()])
    elif one_line:
        click.echo(json.dumps(to_json(answers), ensure_ascii=False))
    else:
        print_json(to_json(answers))


def to_json(answers: Answers) -> dict[str, Any]:
    nodes = []
    for address, answer in answers.items():
        if isinstance(answer, NodeStatus):
            owner = {key: value for key, value in answer.owner.items() if key != "card"}
            nodes.append({"node_id": answer.node_id, "address": address, "error": None, **owner})
        elif isinstance(answer, RemotingBroker):
            told = answer._asdict()
            told["writable"] = told.pop("is_writable")
            nodes.append({"address": address, "error": None, "broker_role": _role(answer), **told})
        else:
            nodes.append({"address": address, "error": str(answer)})
    return {"nodes": nodes}


def _role(broker: RemotingBroker) -> str:
    """Derive the role from the broker id, which is all that NameServers know about it."""
    return "MASTER" if broker.broker_id == MASTER_ID else "SLAVE"


def _remoting_row(address: str, broker: RemotingBroker) -> tuple[object, ...]:
    behind = broker.runtime.get("dispatchBehindBytes", "")
    lag = human_bytes(int(behind)) if behind.isdecimal() else ""
    is_writable = "yes" if broker.is_writable else "no"
    return ("", address, _role(broker), broker.broker_id, "", is_writable, "", lag, broker.known_to, "ok")


def table_row(address: str, answer: Answer) -> tuple[object, ...]:
    if isinstance(answer, RemotingBroker):
        return _remoting_row(address, answer)
    if isinstance(answer, BrokerError):
        return ("", address, "down", *[""] * 6, str(answer))
    if isinstance(answer, DLedgerError):
        cause = answer.message.removeprefix(f"{address}: ")
        return ("", address, "down", *[""] * 6, f"{answer.code.name}: {cause}")
    owner = answer.owner
    if not owner:
        return (answer.node_id, address, *[""] * 7, "no broker runs on this node")
    change = owner["role_change"]
    servers = owner["nameservers"]
    registered = sum(server["registered"] for server in servers.values())
    return (
        answer.node_id,
        address,
        owner["broker_role"],
        owner["broker_id"],
        owner["term"],
        "yes" if owner["writable"] else "no",
        shown_time(change["last_switch_unix_ms"]),
        human_bytes(owner["dispatch_behind_bytes"]),
        f"{registered} of {len(servers)}",
        _state(change),
    )


def _state(change: Mapping[str, Any]) -> str:
    if change["waits_for"]:
        return f"waits {change['waiting_ms'] / 1000:.1f} s for {change['waits_for']}"
    return str(change["last_failure"] if not change["fit"] and change["last_failure"] else "ok")
