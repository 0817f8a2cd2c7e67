"""`dledger broker offsets`: how far a group is, and setting it elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import click

from broker_adapter.api import QueueStats
from broker_adapter.cli.connect.options import ask_broker, json_option, moment, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.client import Admin, MessageQueue
from dledger.platform import print_json, print_table


class _Progress(NamedTuple):
    """Of a group in one queue. `offset`: 0 if nothing is committed."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        return self.max_offset - max(self.offset, self.min_offset)


@click.group()
def offsets() -> None:
    """Show and reset how far a group has consumed.

    \b
    Examples:
      dledger broker offsets show billing
      dledger broker offsets reset billing --to-earliest
      dledger broker offsets reset billing --topic orders --to-time 10m
    """


@offsets.command()
@click.argument("group")
@target_options
@json_option
def show(group: str, target: Target, as_json: bool) -> None:
    """Show the offsets of GROUP, and the lag: messages that it has not committed as consumed yet.

    Offsets are in the log; what is shown here was committed, and survives every failover.

    \b
    Example:
      dledger broker offsets show billing
    """

    found = ask_broker(target, lambda admin: _progress(admin, group))
    if as_json:
        queues = [{**one._asdict(), "lag": one.lag} for one in found]
        print_json({"group": group, "queues": queues})
        return
    columns = ("topic", "queue", "committed", "begin", "end", "lag")
    print_table(columns, [(*one, one.lag) for one in found])
    click.echo(f"lag {sum(one.lag for one in found)}")


async def _progress(admin: Admin, group: str) -> list[_Progress]:
    """Every queue of the topics in which the group has committed something."""
    committed = await admin.group_offsets(group)
    return [
        _Progress(topic, queue.queue_id, committed.get(queue, 0), stats.min_offset, stats.max_offset)
        for topic in sorted({queue.topic for queue in committed})
        for queue, stats in (await admin.topic_stats(topic)).items()
    ]


@offsets.command()
@click.argument("group")
@target_options
@click.option("--topic", "topics", multiple=True, help="Only this topic.  [default: all that it consumes]")
@click.option("--queue", type=click.IntRange(0), help="Only this queue, of one --topic.")
@click.option("--to-earliest", is_flag=True, help="To the oldest message that is there.")
@click.option("--to-latest", is_flag=True, help="Behind the newest: what is there now is skipped.")
@click.option(
    "--to-time",
    callback=moment,
    metavar="TIME",
    help="To the first message since: 2025-01-31T12:00, 10m (ago), ms since 1970.",
)
@click.option("--to", "to_offset", type=click.IntRange(0), metavar="OFFSET", help="To this offset.")
def reset(
    group: str,
    target: Target,
    topics: tuple[str, ...],
    queue: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    to_offset: int | None,
) -> None:
    """Set the offsets of GROUP, backwards too.

    Its running consumers are told, and go on from there.

    \b
    Examples:
      dledger broker offsets reset billing --to-earliest
      dledger broker offsets reset billing --topic orders --to-time 2025-01-31T12:00
      dledger broker offsets reset billing --topic orders --queue 2 --to 1500
    """
    if sum((to_earliest, to_latest, to_time is not None, to_offset is not None)) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-time and --to")
    if queue is not None and len(topics) != 1:
        raise click.UsageError("--queue is a queue of one topic: give one --topic")

    async def goal(admin: Admin, queue_name: MessageQueue, stats: QueueStats) -> int:
        if to_time is not None:
            return await admin.search_offset(queue_name, to_time)
        if to_offset is not None:
            return to_offset
        return stats.min_offset if to_earliest else stats.max_offset

    async def ask(admin: Admin) -> list[tuple[str, int, int]]:
        named = topics or sorted({one.topic for one in await admin.group_offsets(group)})
        if not named:
            raise click.UsageError(f"{group} has committed nothing yet: name its topics with --topic")
        found = [one for topic in named for one in (await admin.topic_stats(topic)).items()]
        wanted = [one for one in found if queue is None or one[0].queue_id == queue]
        if not wanted:
            raise click.UsageError(f"{named[0]} has no queue {queue}: it has {len(found)}")
        goals = []
        for name, stats in wanted:
            goals.append((name.topic, name.queue_id, await goal(admin, name, stats)))
            await admin.reset_offset(group, name, goals[-1][2])
        return goals

    goals = ask_broker(target, ask)
    print_table(("topic", "queue", "offset"), goals)
    click.echo(f"{group} goes on from there")
