"""`dledger demo`: through the broker, or with --log through the log alone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import click

from broker_adapter.cli.demo.broker_demo import QUEUES, TOPICS, BrokerDemo
from broker_adapter.cli.local_broker import BROKER_KIND
from dledger.cli.demo.demo_command import demo_options, play_log, run_demo, say
from dledger.cli.local.local_cluster import LocalCluster


@click.command()
@demo_options
@click.option("--log", "log_only", is_flag=True, help="Through the log alone, without a broker.")
def demo(
    path: Path | None, directory: Path | None, base_port: int, minutes: float | None, log_only: bool
) -> None:
    """Send a file's lines through the broker, kill the master twice, and prove that nothing is lost.

    Starts three nodes with brokers and a NameServer. A producer sends every line to the next queue of
    several topics; a group of two consumers gets them at the same time. The master is killed with SIGKILL at
    a third and at two thirds of the way, and started again. Then every broker's own queues are read, and
    compared with what was acknowledged and with what the group was given.

    Exits with 0 if every acknowledged line is at its offset on all nodes and came to the group in order, and
    no committed offset ever went back; with 1 if not. What was stored or delivered again is counted.

    With --log the lines are appended to the log itself, in a session: each of them exactly once.

    \b
    Examples:
      dledger demo
      dledger demo --input /var/log/syslog --dir /tmp/demo
      dledger demo --log
      dledger demo --minutes 30
    """
    play = play_log if log_only else play_broker
    run_demo(path, directory, minutes, partial(play, base_port=base_port))


def play_broker(root: Path, lines: list[bytes], *, base_port: int) -> str | None:
    """The demo of the broker."""
    additions = BROKER_KIND.prepare(base_port)
    with LocalCluster.create(
        root, nodes=3, base_port=base_port, settings=additions.settings, companions=additions.companions
    ) as cluster:
        story = BrokerDemo(cluster, lines, say)
        if not asyncio.run(story.run()):
            return None
    pauses = " and ".join(f"{failover.silence_ms:.0f} ms" for failover in story.failovers)
    return (
        f"{len(lines)} lines in {len(TOPICS) * QUEUES} queues on 3 nodes and at the group, none lost, in "
        f"order, through 2 killed masters (silent for {pauses}); {story.stored_again} stored again, "
        f"{story.delivered_again} delivered again"
    )
