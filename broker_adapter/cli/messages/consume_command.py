"""`dledger broker consume`: print messages as lines or as JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import click

from broker_adapter.cli.connect.options import parse_moment, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.message_output import write_json, write_line
from broker_adapter.cli.messages.queue_choice import choose_queues
from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PullStatus,
    PushConsumer,
)
from broker_adapter.errors import BrokerError, ReadFailed, Status
from broker_adapter.wire.topic_names import check_group_name
from dledger.cli.closed_pipe import ending_with_reader, give_up_stdout
from dledger.cli.exits import Exit
from dledger.infra.loops.signals import calling_at_stop

_WHERE: dict[str | int, ConsumeFromWhere] = {
    "earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


@click.command()
@target_options
@click.option("--topic", "topics", multiple=True, required=True, help="Topic. Repeatable.")
@click.option("--group", help="Consume as a member of this group, and commit printed messages.")
@click.option("--queue", type=click.IntRange(0), help="Without a group: read only this queue.")
@click.option("--offset", type=click.IntRange(0), help="Without a group: start offset, with --queue.")
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    help="Start: earliest, latest, 2025-01-31T12:00, 10m (ago), ms since 1970. With a group: only in queues "
    "without a committed offset.",
)
@click.option(
    "--tag", "tags", default="*", show_default=True, help='Only messages with one of these tags: "a || b".'
)
@click.option("--count", type=click.IntRange(1), help="Maximum number of messages.  [default: up to the end]")
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per line: topic, queue, offset, body, ..."
)
@click.option("--quiet", is_flag=True, help="Print no summary.")
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
    """Print messages, one body per line.

    With --group, the members of the group share the queues and commit printed messages. The next member
    continues after them, even after a change of the master. Delivery is at least once: messages of a member
    that was killed before it committed are printed again. Without a group, all queues are read and nothing is
    committed. The command stops at the current end of the queues, or with --follow at Ctrl-C. It then commits
    and leaves the group.

    \b
    Examples:
      dledger broker consume --topic orders --group billing
      dledger broker consume --topic orders --topic returns --group audit --follow --json
      dledger broker consume --topic orders --queue 2 --offset 1500 --count 10
      dledger broker consume --topic orders --from 10m --tag "paid || refunded"
    """
    if group is not None and (queue is not None or offset is not None):
        raise click.UsageError(
            "a consumer group determines its own queues and offsets: omit --queue and --offset"
        )
    if offset is not None and queue is None:
        raise click.UsageError("--offset requires --queue")
    if queue is not None and len(topics) > 1:
        raise click.UsageError("--queue requires exactly one --topic")
    start = begin if begin in ("earliest", "latest") else parse_moment(begin)
    write = write_json if as_json else write_line
    out = sys.stdout.buffer

    def deliver(message: MessageExt) -> None:
        write(out, message)
        # Flush first: committed messages must have reached the reader.
        out.flush()

    stop = StopCondition(count)
    resets = 0

    async def run() -> None:
        nonlocal resets
        names = await target.name_servers()
        with calling_at_stop(stop.interrupt), ending_with_reader():
            if group is not None:
                resets = await _as_member(target, names, group, topics, tags, start, follow, deliver, stop)
            else:
                await _alone(target, names, topics, queue, offset, tags, start, follow, deliver, stop)

    try:
        asyncio.run(run())
    except BrokenPipeError:
        give_up_stdout()
        return
    except BrokerError:
        if group is not None and stop.delivered:
            # The next member of the group receives some messages again, which is reported even with --quiet.
            click.echo(f"{stop.delivered} messages, not all committed for {group}", err=True)
        raise
    if not quiet:
        committed = f", committed for {group}" if group is not None else ""
        if resets:
            committed = f"; the offsets of {group} were reset meanwhile, and the reset prevails"
        click.echo(f"{stop.delivered} messages{committed}", err=True)
    if stop.is_interrupted:
        raise click.exceptions.Exit(Exit.INTERRUPTED)


async def _as_member(
    target: Target,
    names: Sequence[str],
    group: str,
    topics: Sequence[str],
    tags: str,
    start: str | int,
    follow: bool,
    deliver: Callable[[MessageExt], None],
    stop: StopCondition,
) -> int:
    """Consume as a member of a group. Return how many times offsets of this member's queues were reset."""
    ends: dict[MessageQueue, int] | None = None
    check_group_name(group)
    async with Admin(names, options=target.options, tls=target.client_tls) as admin:
        for topic in topics:
            choose_queues(topic, (await admin.route(topic)).subscribe_queues(topic), None)
        if not follow:
            ends = {
                queue: stats.max_offset
                for topic in topics
                for queue, stats in (await admin.topic_stats(topic)).items()
            }
    if start != "earliest":
        await _commit_starts(target, names, group, topics, start)
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
    return consumer.reset_count


async def _commit_starts(
    target: Target, names: Sequence[str], group: str, topics: Sequence[str], start: str | int
) -> None:
    """Commit a start offset for each queue that has none.

    Otherwise the group would skip messages in queues that are added during this run, and messages that arrive
    between two runs.
    """
    async with PullConsumer(group, names, options=target.options, tls=target.client_tls) as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                if await consumer.committed(queue) is None:
                    await consumer.commit(queue, await _first_offset(consumer, queue, start))


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
    stop: StopCondition,
) -> None:
    async with PullConsumer(
        "dledger-consume", names, options=target.options, tls=target.client_tls
    ) as consumer:
        starts = []
        for topic in topics:
            for one in choose_queues(topic, await consumer.queues(topic), queue):
                at = offset if offset is not None else await _first_offset(consumer, one, start)
                starts.append(Start(one, at))
        await read_queues(consumer, starts, deliver, stop, tags=tags, follow=follow)


async def _first_offset(consumer: PullConsumer, queue: MessageQueue, start: str | int) -> int:
    if isinstance(start, int):
        return await consumer.search_offset(queue, start)
    return await (consumer.max_offset(queue) if start == "latest" else consumer.min_offset(queue))


#: Interval at which an idle member checks whether its queues are at their ends (seconds).
_POLL_SECONDS = 0.05
#: Maximum wait of the broker for a message (seconds).
_WAIT_SECONDS = 15.0


class StopCondition:
    """Ends a run after a number of messages or after an interruption.

    A signal handler may call `interrupt`.
    """

    def __init__(self, count: int | None) -> None:
        self.delivered = 0
        self.is_interrupted = False
        self._count = count
        self.event = asyncio.Event()

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.event.set()

    def delivered_one(self) -> None:
        self.delivered += 1
        if self._count is not None and self.delivered >= self._count:
            self.event.set()


class GroupRun:
    """A run as a member of a group. At the end, the member commits exactly the delivered messages."""

    def __init__(
        self,
        deliver: Callable[[MessageExt], None],
        stop: StopCondition,
        ends: Mapping[MessageQueue, int] | None,
    ) -> None:
        """`ends`: the offset at which to stop, by queue; None: no limit.

        The run does not wait for queues that other members consume.
        """
        self._deliver = deliver
        self._stop = stop
        self._ends = ends
        self._error: Exception | None = None

    async def listener(self, messages: Sequence[MessageExt]) -> None:
        """Deliver a message.

        A message that arrives after the end of the run waits until the member leaves the group, and is not
        committed.
        """
        if not self._stop.event.is_set():
            try:
                self._deliver(messages[0])
            # stop, because the reader is gone and the message would only be redelivered
            except Exception as error:
                self._error = error
                self._stop.event.set()
            else:
                self._stop.delivered_one()
                return
        await asyncio.Event().wait()

    async def run(self, consumer: PushConsumer) -> None:
        """Consume until the run ends.

        Raises the exception that `deliver` raised, or the BrokerError of a failed commit.
        """
        await consumer.start()
        try:
            while not self._stop.event.is_set() and not self._is_at_end(consumer):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._stop.event.wait()
        finally:
            try:
                await consumer.close(timeout=0.0)
            finally:
                if self._error is not None:
                    raise self._error

    def _is_at_end(self, consumer: PushConsumer) -> bool:
        if self._ends is None or not consumer.is_balanced:
            return False
        return all(position >= self._ends.get(queue, 0) for queue, position in consumer.positions.items())


class Start(NamedTuple):
    """The start offset of a queue."""

    queue: MessageQueue
    offset: int


async def read_queues(
    consumer: PullConsumer,
    starts: Sequence[Start],
    deliver: Callable[[MessageExt], None],
    stop: StopCondition,
    *,
    tags: str,
    follow: bool,
) -> None:
    """Read queues without a group.

    Reads them one after the other up to their current ends. With `follow`, reads them all concurrently.
    """

    async def read(start: Start) -> None:
        at = start.offset
        end = None if follow else await consumer.max_offset(start.queue)
        while end is None or at < end or at > end:
            wait_s = _WAIT_SECONDS if follow else 0.0
            result = await consumer.pull(start.queue, at, expression=tags, timeout=wait_s)
            if result.status is PullStatus.OFFSET_ILLEGAL:
                above = at > result.max_offset
                status = Status.OFFSET_ABOVE_MAXIMUM if above else Status.OFFSET_BELOW_MINIMUM
                text = f"offset {at} is outside of {result.min_offset} to {result.max_offset - 1}"
                raise ReadFailed(status, text)
            for message in result.messages:
                if stop.event.is_set():
                    return
                deliver(message)
                stop.delivered_one()
            at = result.next_offset

    async def read_all() -> None:
        if not follow:
            for start in starts:
                await read(start)
            return
        async with asyncio.TaskGroup() as readers:
            for start in starts:
                readers.create_task(read(start))

    reading = asyncio.create_task(read_all())
    stopping = asyncio.create_task(stop.event.wait())
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not reading.done():
            reading.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)
    if not reading.cancelled() and (error := reading.exception()) is not None:
        raise error
