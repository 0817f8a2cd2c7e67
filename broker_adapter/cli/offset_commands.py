"""`dledger broker offsets`: show and reset consumer offsets."""

from __future__ import annotations

from typing import NamedTuple

import click

from broker_adapter.api import QueueStats
from broker_adapter.cli.connect.options import call_broker, json_option, moment, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.queue_choice import choose_queues
from broker_adapter.client import Admin, MessageQueue
from broker_adapter.errors import Status, error_for
from dledger.cli.output import print_json, print_table
from dledger.cli.suggesting_group import SuggestingGroup


class _Progress(NamedTuple):
    """The progress of a group in one queue. `offset` is 0 if the group has no committed offset."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        return self.max_offset - max(self.offset, self.min_offset)


@click.group(cls=SuggestingGroup)
def offsets() -> None:
    """Show and reset the offsets of consumer groups.

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
    """Show the offsets of GROUP and its lag, the number of messages not yet committed as consumed.

    Offsets are stored in the log. The offsets shown are committed and survive failovers.

    \b
    Example:
      dledger broker offsets show billing
    """

    found = call_broker(target, lambda admin: _progress(admin, group))
    if as_json:
        queues = [{**one._asdict(), "lag": one.lag} for one in found]
        print_json({"group": group, "queues": queues})
        return
    if not found:
        click.echo(f"{group} has no committed offsets, so that its lag is unknown")
        return
    columns = ("topic", "queue", "committed", "begin", "end", "lag")
    print_table(columns, [(*one, one.lag) for one in found])
    click.echo(f"lag {sum(one.lag for one in found)}")


async def _progress(admin: Admin, group: str) -> list[_Progress]:
    """Return the group's progress in all queues of each topic in which it has an offset."""
    committed = await admin.group_offsets(group)
    return [
        _Progress(topic, queue.queue_id, committed.get(queue, 0), stats.min_offset, stats.max_offset)
        for topic in sorted({queue.topic for queue in committed})
        for queue, stats in (await admin.topic_stats(topic)).items()
    ]


@offsets.command()
@click.argument("group")
@target_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic. Repeatable.  [default: all topics of the group]",
)
@click.option("--queue", type=click.IntRange(0), help="Only this queue; requires exactly one --topic.")
@click.option("--to-earliest", is_flag=True, help="Reset to the oldest available message.")
@click.option("--to-latest", is_flag=True, help="Reset to the end: existing messages are skipped.")
@click.option(
    "--to-time",
    callback=moment,
    metavar="TIME",
    help="Reset to the first message since: 2025-01-31T12:00, 10m (ago), ms since 1970.",
)
@click.option("--to", "to_offset", type=click.IntRange(0), metavar="OFFSET", help="Reset to this offset.")
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
    """Set the offsets of GROUP, forward or backward.

    Running consumers continue at these offsets with their next pull.

    \b
    Examples:
      dledger broker offsets reset billing --to-earliest
      dledger broker offsets reset billing --topic orders --to-time 2025-01-31T12:00
      dledger broker offsets reset billing --topic orders --queue 2 --to 1500
    """
    if sum((to_earliest, to_latest, to_time is not None, to_offset is not None)) != 1:
        raise click.UsageError("exactly one of --to-earliest, --to-latest, --to-time and --to is required")
    if queue is not None and len(topics) != 1:
        raise click.UsageError("--queue requires exactly one --topic")

    async def goal(admin: Admin, queue_name: MessageQueue, stats: QueueStats) -> int:
        if to_time is not None:
            return await admin.search_offset(queue_name, to_time)
        if to_offset is not None:
            return to_offset
        return stats.min_offset if to_earliest else stats.max_offset

    async def reset_offsets(admin: Admin) -> list[tuple[str, int, int]]:
        named = topics or sorted({one.topic for one in await admin.group_offsets(group)})
        if not named:
            raise click.UsageError(f"group {group} has no committed offsets: pass its topics with --topic")
        found = [one for topic in named for one in (await admin.topic_stats(topic)).items()]
        if queue is not None:
            chosen = choose_queues(named[0], [name for name, _ in found], queue)
            found = [one for one in found if one[0] in chosen]
        goals = [(name, await goal(admin, name, stats), stats.max_offset) for name, stats in found]
        for name, offset, end in goals:  # check all before changing one
            if offset > end:
                queue_name = f"{name.topic}-{name.queue_id}"
                text = f"{offset} is beyond the end {end} of {queue_name}; nothing was reset"
                raise error_for(Status.OFFSET_OUT_OF_RANGE, text)
        for name, offset, _ in goals:
            await admin.reset_offset(group, name, offset)
        return [(name.topic, name.queue_id, offset) for name, offset, _ in goals]

    goals = call_broker(target, reset_offsets)
    print_table(("topic", "queue", "offset"), goals)
    click.echo(f"{group} continues at these offsets")
