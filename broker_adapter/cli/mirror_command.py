"""`dledger broker mirror`: a group of ours follows a live master of RocketMQ, and takes over from it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import click

from broker_adapter.moving.master import Master
from broker_adapter.moving.mirror import Mirror, MirrorSettings
from broker_adapter.moving.takeover import Takeover, TakeoverSettings
from broker_adapter.moving.target import ImportTarget
from dledger.platform import parse_servers


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """One of host and port; "" if none is given."""
    if not value:
        return ""
    found = parse_servers(ctx, param, value)
    if len(found) != 1:
        raise click.BadParameter("one HOST:PORT")
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
    help="NameServers that know the group of ours: their port for clients of RocketMQ (9876 there, "
    "remoting_listen of ours).",
)
@click.option("--broker", "broker_name", default="", help="Name of the group of ours, if there are several.")
@click.option(
    "--master",
    "master_address",
    default="",
    metavar="HOST:PORT",
    callback=_address,
    help="The master's port for clients (listenPort), if these NameServers do not know it.",
)
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds for a step, changes of our master included."
)
@click.option("--takeover", is_flag=True, help="Take over from the master as soon as all of it is here.")
@click.option(
    "--drain",
    default=30.0,
    show_default=True,
    help="With --takeover: seconds for which producers may be refused.",
)
@click.option(
    "--consume-within",
    default=60.0,
    show_default=True,
    help="With --takeover: seconds for groups to consume what the master has.",
)
@click.option(
    "--linger",
    default=35.0,
    show_default=True,
    help="With --takeover: seconds until all clients have asked for routes again.",
)
@click.option(
    "--leave-pending",
    is_flag=True,
    help="With --takeover: leave open transactions, and timers that are not due, behind.",
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
    """Follow a live master of RocketMQ as its slave, until Ctrl-C or SIGTERM, or take over from it.

    Every message gets its own queue offset in the group. Topics, groups and their offsets are copied every
    few seconds. The topics have no permissions in the group, so that clients stay at the master. Run it
    again after any interruption: it goes on where the group's log ends. docs/moving-in.md has more.

    With --takeover, once all is here: the master refuses producers, the rest is stored, and producers find
    the group at the NameServer. When groups have consumed what the master has, or time is over, consumers
    find the group, too, at the offsets that they had. Then stop the master.

    \b
    Examples:
      dledger broker mirror --from 10.0.0.5:10912 --namesrv 10.0.0.1:9876 --broker broker-1
      dledger broker mirror --from 10.0.0.5:10912 --master 10.0.0.5:10911 --namesrv 10.0.0.9:21112
      dledger broker mirror --from 10.0.0.5:10912 --namesrv 10.0.0.1:9876 --broker broker-1 --takeover

    \b
    Exit codes:
      0    it was told to end, or has taken over
      1    it cannot go on, or cannot take over; the message says why
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
                moving = Takeover(mirror, master, target, click.echo, settings)
                await _until_told(_take_over(mirror, moving))
            else:
                await _until_told(mirror.follow())
            _sum_up(mirror)

    asyncio.run(run())


async def _take_over(mirror: Mirror, takeover: Takeover) -> None:
    if await takeover.was_interrupted():
        click.echo("a takeover was interrupted; it goes on")
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


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Until it ends, or a signal comes."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    if not task.cancelled():
        task.result()


def _sum_up(mirror: Mirror) -> None:
    figures = mirror.figures
    for topic, count in sorted(figures.left.items()):
        click.echo(f"left: {count} messages of {topic}")
    click.echo(f"ended at offset {figures.position}; {figures.stored} messages were stored")
