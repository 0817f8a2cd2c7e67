"""`dledger broker consume`: messages as lines or as JSON."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from broker_adapter.cli.connect.options import parse_moment, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.consume_run import GroupRun, Start, Stop, read_queues
from broker_adapter.cli.messages.message_output import give_up_stdout, write_json, write_line
from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PushConsumer,
)
from dledger.platform import Exit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WHERE: dict[str | int, ConsumeFromWhere] = {
    "earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


@click.command()
@target_options
@click.option("--topic", "topics", multiple=True, required=True, help="May be given several times.")
@click.option("--group", help="Consume as a member of this group, and commit what was printed.")
@click.option("--queue", type=click.IntRange(0), help="Without a group: only this queue.")
@click.option("--offset", type=click.IntRange(0), help="Without a group: where to begin, with --queue.")
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    help="Where to begin: earliest, latest, 2025-01-31T12:00, 10m (ago), ms since 1970. With a group: in "
    "queues of which it has committed nothing.",
)
@click.option("--tag", "tags", default="*", show_default=True, help='Only messages with it: "a || b".')
@click.option("--count", type=click.IntRange(1), help="At most so many.  [default: up to the end]")
@click.option("--follow", is_flag=True, help="Stay and print what comes, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One object a line: topic, queue, offset, body, ...")
@click.option("--quiet", is_flag=True, help="No summary.")
def consume(
    target: Target,
    topics: tuple[str, ...],
    group: str | None,
    queue: int | None,
    offset: int | None,
    begin: str,
    tags: str,
    count: int | None,
    follow: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print messages, each body with a newline after it.

    With --group the queues are shared with the other members, and what was printed is committed: the next
    one goes on behind it, whatever happens to the master. At least once: what was printed by a member that
    was killed before it committed is printed again. Without a group every queue is read, and nothing is
    committed. It ends at the present end of the queues, with --follow at Ctrl-C; then it commits and leaves.

    \b
    Examples:
      dledger broker consume --topic orders --group billing
      dledger broker consume --topic orders --topic returns --group audit --follow --json
      dledger broker consume --topic orders --queue 2 --offset 1500 --count 10
      dledger broker consume --topic orders --from 10m --tag "paid || refunded"
    """
    if group is not None and (queue is not None or offset is not None):
        raise click.UsageError("a group has its own queues and offsets: leave out --queue and --offset")
    if offset is not None and queue is None:
        raise click.UsageError("--offset is one of a queue: give --queue too")
    if queue is not None and len(topics) > 1:
        raise click.UsageError("--queue is a queue of one topic: give one --topic")
    start = begin if begin in ("earliest", "latest") else parse_moment(begin)
    write = write_json if as_json else write_line
    out = sys.stdout.buffer

    def deliver(message: MessageExt) -> None:
        write(out, message)
        # What is committed must have been seen by whoever reads.
        out.flush()

    async def run() -> Stop:
        stop = Stop(count)
        names = await target.name_servers()
        with _signals_to(stop.interrupt):
            if group is not None:
                await _as_member(target, names, group, topics, tags, start, follow, deliver, stop)
            else:
                await _alone(target, names, topics, queue, offset, tags, start, follow, deliver, stop)
        return stop

    try:
        stop = asyncio.run(run())
    except BrokenPipeError:
        give_up_stdout()
        return
    if not quiet:
        committed = f", committed for {group}" if group is not None else ""
        click.echo(f"{stop.delivered} messages{committed}", err=True)
    if stop.is_interrupted:
        raise click.exceptions.Exit(Exit.INTERRUPTED)


@contextmanager
def _signals_to(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _as_member(
    target: Target,
    names: Sequence[str],
    group: str,
    topics: Sequence[str],
    tags: str,
    start: str | int,
    follow: bool,
    deliver: Callable[[MessageExt], None],
    stop: Stop,
) -> None:
    ends: dict[MessageQueue, int] | None = None
    if not follow:
        async with Admin(names, options=target.options, tls=target.client_tls) as admin:
            ends = {
                queue: stats.max_offset
                for topic in topics
                for queue, stats in (await admin.topic_stats(topic)).items()
            }
    run = GroupRun(deliver, stop, ends)
    consumer = PushConsumer(
        group,
        names,
        run.listener,
        consume_from=_WHERE.get(start, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
        consume_timestamp_ms=start if isinstance(start, int) else 0,
        options=target.options,
        tls=target.client_tls,
    )
    for topic in topics:
        consumer.subscribe(topic, tags)
    await run.run(consumer)


async def _alone(
    target: Target,
    names: Sequence[str],
    topics: Sequence[str],
    queue: int | None,
    offset: int | None,
    tags: str,
    start: str | int,
    follow: bool,
    deliver: Callable[[MessageExt], None],
    stop: Stop,
) -> None:
    async with PullConsumer(
        "dledger-consume", names, options=target.options, tls=target.client_tls
    ) as consumer:
        starts = []
        for topic in topics:
            found = [one for one in await consumer.queues(topic) if queue is None or one.queue_id == queue]
            if not found:
                raise click.UsageError(f"{topic} has no queue {queue}")
            for one in found:
                at = offset if offset is not None else await _first_offset(consumer, one, start)
                starts.append(Start(one, at))
        await read_queues(consumer, starts, deliver, stop, tags=tags, follow=follow)


async def _first_offset(consumer: PullConsumer, queue: MessageQueue, start: str | int) -> int:
    if isinstance(start, int):
        return await consumer.search_offset(queue, start)
    return await (consumer.max_offset(queue) if start == "latest" else consumer.min_offset(queue))
