"""`dledger broker offsets`: how far a group is, and setting it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from broker_adapter.api import QueueOffset, QueueStats
from broker_adapter.cli.broker_options import ask_broker, json_option, moment, target_options
from broker_adapter.cli.broker_target import Target
from broker_adapter.client import Admin
from dledger.platform import print_json, print_table


class _Progress(NamedTuple):
    """Of a group in one queue. `offset` None: nothing is committed, all messages are ahead."""

    topic: str
    queue_id: int
    offset: int | None
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        at = self.min_offset if self.offset is None else max(self.offset, self.min_offset)
        return self.max_offset - at


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

    async def ask(admin: Admin) -> tuple[int, list[_Progress]]:
        generation, committed = await admin.offsets(group)
        return generation, await _progress(admin, committed)

    generation, found = ask_broker(target, ask)
    if as_json:
        queues = [{**one._asdict(), "lag": one.lag} for one in found]
        print_json({"group": group, "generation": generation, "queues": queues})
        return
    columns = ("topic", "queue", "committed", "begin", "end", "lag")
    print_table(columns, [(*one, one.lag) for one in found])
    click.echo(f"generation {generation}, lag {sum(one.lag for one in found)}")


async def _progress(admin: Admin, committed: Sequence[QueueOffset]) -> list[_Progress]:
    """Every queue of the topics in which the group has committed something."""
    known = {(one.topic, one.queue_id): one.offset for one in committed}
    return [
        _Progress(
            topic, queue.queue_id, known.get((topic, queue.queue_id)), queue.min_offset, queue.max_offset
        )
        for topic in sorted({one.topic for one in committed})
        for queue in await admin.topic_stats(topic)
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

    Begins a new generation of the group: its running consumers go on from there, and what they would still
    commit from before is refused.

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

    async def goal(admin: Admin, stats: QueueStats) -> int:
        if to_time is not None:
            return await admin.offset_by_time(stats.topic, stats.queue_id, to_time)
        if to_offset is not None:
            return to_offset
        return stats.min_offset if to_earliest else stats.max_offset

    async def ask(admin: Admin) -> tuple[int, list[QueueOffset]]:
        named = topics or sorted({one.topic for one in (await admin.offsets(group))[1]})
        if not named:
            raise click.UsageError(f"{group} has committed nothing yet: name its topics with --topic")
        found = [stats for topic in named for stats in await admin.topic_stats(topic)]
        wanted = [stats for stats in found if queue is None or stats.queue_id == queue]
        if not wanted:
            raise click.UsageError(f"{named[0]} has no queue {queue}: it has {len(found)}")
        goals = [QueueOffset(one.topic, one.queue_id, await goal(admin, one)) for one in wanted]
        return await admin.reset_offsets(group, goals), goals

    generation, goals = ask_broker(target, ask)
    print_table(("topic", "queue", "offset"), goals)
    click.echo(f"{group} goes on from there, in generation {generation}")
