"""`dledger broker produce`: the lines of a file or of stdin, one message each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from broker_adapter.cli.connect.errors import error_line, exit_code_of
from broker_adapter.cli.connect.options import target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.produce_run import ProduceRun, Stored, Tally
from broker_adapter.client import (
    Message,
    Producer,
    QueueNumber,
    Selector,
    SendResult,
    select_by_hash,
)
from broker_adapter.errors import BrokerError, PutIndeterminate, PutRefused, Status, TopicRefused
from broker_adapter.format.java_hash import java_hash
from broker_adapter.format.message import MAX_BODY_BYTES
from dledger.cli.append_command import open_source
from dledger.cli.line_source import LineBatches
from dledger.cli.output import human_bytes
from dledger.cli.progress_line import ProgressLine
from dledger.platform import Exit

_READ_BYTES = 256 << 10
_READ_LINES = 4096
_PAUSE_SECONDS = 0.1
#: So many queues, or keys, whose lines go beside each other.
_PLACES = 1024


@dataclass(frozen=True, slots=True)
class MessageRule:
    """How a line becomes a message."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    key_field: int | None = None  # counted from 1
    separator: str | None = None  # None: white space
    ordered: bool = False
    queue: int | None = None

    def keys_of(self, line: bytes) -> tuple[str, ...]:
        if self.key_field is None:
            return self.keys
        fields = line.decode(errors="replace").split(self.separator)
        found = fields[self.key_field - 1].split() if self.key_field <= len(fields) else []
        return (*self.keys, *found)

    def messages(self, lines: Sequence[bytes]) -> list[Message]:
        keys = self.keys_of(lines[0])
        return [Message(self.topic, line, tags=self.tag or "", keys=keys) for line in lines]


class LineSender:
    """Sends lines, and again what was refused for certain, until `timeout` seconds are over. Those of one
    queue go one after the other."""

    def __init__(self, producer: Producer, rule: MessageRule, timeout: float, *, again: bool) -> None:
        """`again`: send again what is in doubt, too."""
        self._producer = producer
        self._rule = rule
        self._timeout = timeout
        self._again = again
        self._places = [asyncio.Lock() for _ in range(_PLACES)]
        self._turn = -1

    async def send(self, lines: Sequence[bytes]) -> Stored:
        messages = self._rule.messages(lines)
        key = " ".join(messages[0].keys) if self._rule.ordered else ""
        number = self._rule.queue
        if number is None and not key:
            number = await self._next_queue()
        place = java_hash(key) if key else number or 0
        async with self._places[place % _PLACES]:
            return await self._until_sent(messages, key, number)

    async def _next_queue(self) -> int | None:
        """In turn; None: the first message creates the topic, or is refused."""
        self._turn += 1
        turn = self._turn
        try:
            numbers = sorted({queue.queue_id for queue in await self._producer.queues(self._rule.topic)})
        except BrokerError:
            return None  # the send says why, if it fails too
        return numbers[turn % len(numbers)] if numbers else None

    async def _until_sent(self, messages: list[Message], key: str, number: int | None) -> Stored:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            try:
                result = await self._once(messages, key, number)
                return Stored(result.queue.queue_id, result.queue_offset + len(messages) - 1)
            except BrokerError as error:
                if not self._is_repeated(error) or loop.time() + _PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    def _is_repeated(self, error: BrokerError) -> bool:
        if isinstance(error, TopicRefused):
            return error.status is Status.QUEUE_UNKNOWN  # no master is known yet
        return isinstance(error, PutRefused) or (self._again and isinstance(error, PutIndeterminate))

    async def _once(self, messages: list[Message], key: str, number: int | None) -> SendResult:
        selector: Selector | None = None
        if number is not None:
            selector = QueueNumber(number)
        elif key:
            selector = select_by_hash
        if len(messages) > 1:
            return await self._producer.send_batch(messages, selector=selector, arg=key)
        return await self._producer.send(messages[0], selector=selector, arg=key)


@click.command()
@target_options
@click.option("--topic", required=True, help="It is created if it does not exist, unless that is off.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    show_default=True,
    help="The file, - is stdin.",
)
@click.option("--tag", help="Tag of all messages, by which consumers choose.")
@click.option("--key", "keys", multiple=True, help="A key of all messages, by which they are found.")
@click.option("--key-field", type=click.IntRange(1), metavar="N", help="The N-th field of a line is its key.")
@click.option("--separator", help="Between fields.  [default: white space]")
@click.option("--ordered", is_flag=True, help="Messages with the same key go to the same queue.")
@click.option("--queue", type=click.IntRange(0), help="All to this queue, in order.  [default: in turn]")
@click.option(
    "--batch",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="So many lines at most in one atomic batch, in one queue.",
)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(1),
    default=MAX_BODY_BYTES,
    show_default=True,
    help="A longer line is an error.",
)
@click.option(
    "--send-again",
    is_flag=True,
    help="Send again what is in doubt, as when the master dies: lines may then be stored twice.",
)
@click.option("--quiet", is_flag=True, help="No progress, no summary; errors are still shown.")
def produce(
    target: Target,
    topic: str,
    path: str,
    tag: str | None,
    keys: tuple[str, ...],
    key_field: int | None,
    separator: str | None,
    ordered: bool,
    queue: int | None,
    batch: int,
    max_line_bytes: int,
    send_again: bool,
    quiet: bool,
) -> None:
    """Send lines, one message each, and wait until a majority has stored them.

    Reads stdin as a stream, of any length. Lines may hold any bytes; the newline is not stored. Lines of one
    queue stay in order, one after the other: --batch is faster. A change of the master is waited for; what
    was under way when its node died is in doubt, and ends the run, unless --send-again is given.

    After the first failure nothing more is read: how many lines were acknowledged, failed and are in doubt
    is printed, and the exit code is 1 (certainly not stored) or 3 (some may be stored).

    \b
    Examples:
      dledger broker produce --topic access --file access.log --tag web
      tail -f access.log | dledger broker produce --topic access --send-again
      dledger broker produce --topic orders --file orders.csv --key-field 1 --separator , --ordered
      echo hello | dledger broker produce --topic orders --key A17 --quiet
    """
    if batch > 1 and key_field is not None:
        raise click.UsageError("the messages of a --batch share their keys: leave out --key-field")
    if ordered and not keys and key_field is None:
        raise click.UsageError("--ordered needs --key or --key-field")
    if ordered and queue is not None:
        raise click.UsageError("--ordered and --queue exclude each other")
    if separator == "":
        raise click.UsageError("--separator is empty")
    rule = MessageRule(topic, tag, keys, key_field, separator, ordered, queue)
    size = 0 if path == "-" else Path(path).stat().st_size
    batches = LineBatches(
        open_source(path), batch_bytes=_READ_BYTES, batch_entries=_READ_LINES, max_line_bytes=max_line_bytes
    )
    with ProgressLine(size, lambda: batches.bytes_read, quiet) as progress:
        tally = asyncio.run(_produce(target, rule, batches, batch, send_again, progress))
    _finish(tally, topic, quiet)


async def _produce(
    target: Target,
    rule: MessageRule,
    batches: LineBatches,
    lines_per_send: int,
    send_again: bool,
    progress: ProgressLine,
) -> Tally:
    names = await target.name_servers()
    async with Producer("dledger-produce", names, options=target.options, tls=target.client_tls) as producer:
        sender = LineSender(producer, rule, target.timeout, again=send_again)
        run = ProduceRun(
            sender.send,
            batches,
            lines_per_send=lines_per_send,
            on_progress=lambda tally: progress.show(lambda: _describe(tally)),
        )
        try:
            return await run.run()
        except asyncio.CancelledError:
            _print_summary(run.tally, rule.topic)
            raise


def _describe(tally: Tally) -> str:
    return f"{tally.acknowledged} messages, {tally.acknowledged / tally.seconds:.0f}/s"


def _finish(tally: Tally, topic: str, quiet: bool) -> None:
    if not quiet or tally.error is not None:
        _print_summary(tally, topic)
    if tally.error is None:
        return
    click.echo(error_line(tally.error), err=True)
    click.echo(f"the first line concerned is line {tally.error_line}", err=True)
    # In doubt outweighs failed: a script that tries again must know.
    code = Exit.INDETERMINATE if tally.indeterminate else exit_code_of(tally.error)
    raise click.exceptions.Exit(code)


def _print_summary(tally: Tally, topic: str) -> None:
    parts = [f"{tally.acknowledged} lines acknowledged"]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.indeterminate:
        parts.append(f"{tally.indeterminate} in doubt")
    text = ", ".join(parts)
    if tally.acknowledged:
        seconds = tally.seconds
        text += (
            f", in {seconds:.2f} s ({tally.acknowledged / seconds:.0f} lines/s, "
            f"{human_bytes(tally.bytes / seconds)}/s)"
        )
        ends = ", ".join(f"{queue}: {offset}" for queue, offset in sorted(tally.last_offsets.items()))
        text += f"; last offsets in {topic}: {ends}"
    click.echo(text, err=True)
