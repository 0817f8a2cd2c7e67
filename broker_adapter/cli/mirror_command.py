"""`dledger broker mirror`: replicate a live RocketMQ master to a replicated group, and take over from it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import click

from broker_adapter.migration.master import Master
from broker_adapter.migration.mirror import Mirror, MirrorSettings
from broker_adapter.migration.takeover import Takeover, TakeoverSettings
from broker_adapter.migration.target import ImportTarget
from dledger.cli.client_options import parse_servers
from dledger.infra.loops.signals import calling_at_stop


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Parse one host:port. Return "" if the option is absent."""
    if not value:
        return ""
    found = parse_servers(ctx, param, value)
    if len(found) != 1:
        raise click.BadParameter("exactly one HOST:PORT is required")
    return found[0]


@click.command()
@click.option(
    "--from",
    "ha_address",
    required=True,
    metavar="HOST:PORT",
    callback=_address,
    help="The master's port for slaves (haListenPort, 10912 by default).",
)
@click.option(
    "--namesrv",
    required=True,
    metavar="HOST:PORT,...",
    callback=parse_servers,
    help="NameServers of the target group: their port for RocketMQ clients (9876 for RocketMQ's, "
    "`listen` for those of this project).",
)
@click.option(
    "--broker", "broker_name", default="", help="Broker name of the target group, if there are several."
)
@click.option(
    "--master",
    "master_address",
    default="",
    metavar="HOST:PORT",
    callback=_address,
    help="The master's port for clients (listenPort), if these NameServers do not know the master.",
)
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    help="Timeout per step in seconds, including changes of the target's master.",
)
@click.option("--takeover", is_flag=True, help="Take over from the master once everything is copied.")
@click.option(
    "--drain",
    default=30.0,
    show_default=True,
    help="With --takeover: maximum time in seconds for which producers are refused.",
)
@click.option(
    "--consume-within",
    default=60.0,
    show_default=True,
    help="With --takeover: time in seconds for groups to consume the master's messages.",
)
@click.option(
    "--linger",
    default=35.0,
    show_default=True,
    help="With --takeover: time in seconds for all clients to refresh their routes.",
)
@click.option(
    "--leave-pending",
    is_flag=True,
    help="With --takeover: abandon open transactions and pending timers.",
)
def mirror(
    ha_address: str,
    namesrv: list[str],
    broker_name: str,
    master_address: str,
    timeout: float,
    takeover: bool,
    drain: float,
    consume_within: float,
    linger: float,
    leave_pending: bool,
) -> None:
    """Replicate a live RocketMQ master as its slave until Ctrl-C or SIGTERM, or take over from it.

    Messages keep their queue offsets in the target group. Topics, groups and their offsets are copied every
    few seconds. The topics have no permissions in the target group, so that clients continue to use the
    master. After an interruption, run the command again: it continues at the end of the group's log. For
    details see docs/moving-in.md.

    With --takeover, the master refuses producers once the copy is complete. The command then copies the
    remaining messages, and the NameServer directs producers to the target group. When the groups have
    consumed the master's messages, or the time is over, the NameServer also directs consumers to the target
    group, where they continue at their offsets. Then stop the master.

    \b
    Examples:
      dledger broker mirror --from 10.0.0.5:10912 --namesrv 10.0.0.1:9876 --broker broker-1
      dledger broker mirror --from 10.0.0.5:10912 --master 10.0.0.5:10911 --namesrv 10.0.0.9:21111
      dledger broker mirror --from 10.0.0.5:10912 --namesrv 10.0.0.1:9876 --broker broker-1 --takeover

    \b
    Exit codes:
      0    stopped on request, or takeover complete
      1    cannot continue, or cannot take over; the message gives the reason
      2    wrong option or argument
    """

    async def run() -> None:
        async with (
            ImportTarget(namesrv, broker_name, timeout_s=timeout) as target,
            Master(namesrv, address=master_address) as master,
        ):
            await master.find(ha_address)
            click.echo(f"the master is {master.name} at {master.address}")
            mirror = Mirror(master, target, ha_address, click.echo, MirrorSettings(step_s=timeout))
            if takeover:
                settings = TakeoverSettings(drain, consume_within, linger, leave_pending)
                handover = Takeover(mirror, master, target, click.echo, settings)
                await run_until_signal(take_over_while_following(mirror, handover))
            else:
                await run_until_signal(mirror.follow())
            _sum_up(mirror)

    asyncio.run(run())


async def take_over_while_following(mirror: Mirror, takeover: Takeover) -> None:
    if await takeover.was_interrupted():
        click.echo("resuming an interrupted takeover")
        await takeover.finish()
        return
    following = asyncio.ensure_future(mirror.follow())
    moving = asyncio.ensure_future(takeover.run())
    try:
        await asyncio.wait([following, moving], return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        await moving
    finally:
        for task in (moving, following):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends or a signal arrives. Further signals do not interrupt the end of the work."""
    task = asyncio.ensure_future(work)
    with calling_at_stop(lambda: task.cancelling() or task.cancel()):
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _sum_up(mirror: Mirror) -> None:
    figures = mirror.figures
    for topic, count in sorted(figures.left.items()):
        click.echo(f"left: {count} messages of {topic}")
    click.echo(f"ended at offset {figures.position}; {figures.stored} messages were stored")
