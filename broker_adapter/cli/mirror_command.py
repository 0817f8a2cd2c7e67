"""`dledger broker mirror`: a group of ours follows a live master of RocketMQ."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import click

from broker_adapter.moving.master import Master
from broker_adapter.moving.mirror import Mirror, MirrorSettings
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
def mirror(
    ha_address: str, namesrv: list[str], broker_name: str, master_address: str, timeout: float
) -> None:
    """Follow a live master of RocketMQ as its slave, until Ctrl-C or SIGTERM.

    Every message gets its own queue offset in the group. Topics, groups and their offsets are copied every
    few seconds. The topics have no permissions in the group, so that clients stay at the master. Run it
    again after any interruption: it goes on where the group's log ends. docs/moving-in.md has more.

    \b
    Examples:
      dledger broker mirror --from 10.0.0.5:10912 --namesrv 10.0.0.1:9876 --broker broker-1
      dledger broker mirror --from 10.0.0.5:10912 --master 10.0.0.5:10911 --namesrv 10.0.0.9:21112

    \b
    Exit codes:
      0    it was told to end
      1    it cannot go on; the message says why
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
            await _until_told(mirror.follow())
            _sum_up(mirror)

    asyncio.run(run())


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
