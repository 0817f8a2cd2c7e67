"""`dledger broker import`: import the store of a RocketMQ broker into a replicated group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from broker_adapter.cli.connect.options import NAMESRV_VARIABLE
from broker_adapter.cli.connect.target import Target
from broker_adapter.log.classic.store_directory import StoreContents, StoreDirectory
from broker_adapter.migration.importer import Importer, ImportPlan, plan_of
from broker_adapter.migration.target import ImportTarget
from dledger.cli.client_options import parse_servers
from dledger.cli.output import print_json, print_table


@click.command("import")
@click.option(
    "--from",
    "store",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Store directory of the stopped broker (storePathRootDir).",
)
@click.option(
    "--namesrv",
    envvar=NAMESRV_VARIABLE,
    metavar="HOST:PORT,...",
    callback=lambda ctx, param, value: parse_servers(ctx, param, value) if value else [],
    help=f"NameServers of the target group.  [env: {NAMESRV_VARIABLE}]",
)
@click.option(
    "--broker", "broker_name", default="", help="Broker name of the target group, if there are several."
)
@click.option("--check", is_flag=True, help="Examine the store and show the planned import. Changes nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --check: print all values as JSON.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    help="Timeout per step in seconds, including changes of the master.",
)
def import_(
    store: Path, namesrv: list[str], broker_name: str, check: bool, as_json: bool, timeout: float
) -> None:
    """Import the store directory of a stopped RocketMQ broker.

    Messages and groups keep their offsets. After an interruption, run the command again: it continues.
    Producers must not send to the topics meanwhile. Nodes and NameServers must speak the remoting protocol.

    \b
    Examples:
      dledger broker import --from /var/rocketmq/store --check
      dledger broker import --from /var/rocketmq/store --namesrv 127.0.0.1:21111
    """
    if not check and not namesrv:
        raise click.UsageError(f"no target group given: pass --namesrv ({NAMESRV_VARIABLE}), or --check")
    directory = StoreDirectory(store)
    contents = directory.survey()
    if check:
        _show(directory, contents, plan_of(directory, contents), as_json=as_json)
        return
    click.echo(_found(directory, contents))

    async def run() -> ImportPlan:
        names = await Target(namesrv, [], None, timeout).name_servers()
        async with ImportTarget(names, broker_name, timeout_s=timeout) as target:
            return await Importer(directory, target, click.echo, timeout_s=timeout).run(contents)

    plan = asyncio.run(run())
    for topic, count in sorted(plan.left.items()):
        click.echo(f"left: {count} messages of {topic}")
    if plan.clamped:
        click.echo(
            f"{plan.clamped} group offsets were beyond the ends of their queues and were set to the ends"
        )


def _found(directory: StoreDirectory, contents: StoreContents) -> str:
    stop = "clean stop" if directory.is_clean else "no clean stop"
    return (
        f"{contents.messages} messages from {contents.log_begin} to {contents.log_end} ({stop}); "
        f"{contents.units_compared} units of ConsumeQueues agree, {contents.units_missing} are missing, "
        f"{contents.dirty_bytes} bytes after the end are ignored"
    )


def _show(directory: StoreDirectory, contents: StoreContents, plan: ImportPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "clean": directory.is_clean,
                "log": {
                    "begin": contents.log_begin,
                    "end": contents.log_end,
                    "end_reason": contents.end_reason,
                    "dirty_bytes": contents.dirty_bytes,
                },
                "units": {"compared": contents.units_compared, "missing": contents.units_missing},
                "messages": plan.messages,
                "deleted": contents.deleted,
                "delayed": plan.delayed,
                "left": dict(sorted(plan.left.items())),
                "topics": sorted(plan.topics),
                "queues": [{**one._asdict(), "messages": one.messages} for one in plan.queues.values()],
                "groups": sorted(plan.groups),
                "offsets": sum(map(len, plan.offsets.values())),
            }
        )
        return
    click.echo(_found(directory, contents))
    rows = [(one.topic, one.queue_id, one.begin, one.end, one.digest) for one in plan.queues.values()]
    print_table(("topic", "queue", "begin", "end", "digest"), rows)
    for topic, count in sorted(plan.left.items()):
        click.echo(f"left: {count} messages of {topic}")
    messages = f"{plan.messages} messages, {plan.delayed} delayed messages"
    click.echo(f"{len(plan.topics)} topics, {len(plan.groups)} groups, {messages} to import")
