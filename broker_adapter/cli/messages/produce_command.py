"""`dledger broker produce`: send each line of a file or of stdin as a message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import click

from broker_adapter.cli.connect.errors import error_line, exit_code_of
from broker_adapter.cli.connect.options import target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.line_sender import LineSender, MessageRule, StoredLines
from broker_adapter.client import Producer
from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status
from broker_adapter.wire.message import MAX_BODY_BYTES
from dledger.cli.append_command import open_source
from dledger.cli.exits import Exit
from dledger.cli.line_run import ErrorKinds, LineRun, LineTally
from dledger.cli.line_source import LineBatches
from dledger.cli.output import human_bytes
from dledger.cli.progress_line import ProgressLine

_READ_BYTES = 256 << 10
_READ_LINES = 4096


@click.command()
@target_options
@click.option(
    "--topic", required=True, help="Topic; created if it does not exist, unless automatic creation is off."
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    show_default=True,
    help="Input file; - is stdin.",
)
@click.option("--tag", help="Tag of all messages, for filters of consumers.")
@click.option("--key", "keys", multiple=True, help="Key of all messages, for queries. Repeatable.")
@click.option(
    "--key-field", type=click.IntRange(1), metavar="N", help="Use the N-th field of a line as its key."
)
@click.option("--separator", help="Field separator.  [default: white space]")
@click.option("--ordered", is_flag=True, help="Send messages with the same key to the same queue, in order.")
@click.option(
    "--queue", type=click.IntRange(0), help="Send all messages to this queue, in order.  [default: in turn]"
)
@click.option(
    "--batch",
    type=click.IntRange(1, 4096),
    default=1024,
    show_default=True,
    help="Maximum number of lines in one atomic batch, in one queue; 1: each line in a request of its own.",
)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(1),
    default=MAX_BODY_BYTES,
    show_default=True,
    help="Maximum length of a line; a longer one is an error.",
)
@click.option(
    "--send-again",
    is_flag=True,
    help="Resend lines whose outcome is unknown, for example after a master crash; they may be stored twice.",
)
@click.option("--quiet", is_flag=True, help="Print no progress and no summary, only errors.")
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
    """Send each line as a message, and wait until a majority has stored it.

    Reads stdin as a stream of any length. Lines may contain any bytes; the newline is not stored. Lines of
    one queue are stored in order: one request is in flight for each queue, and the lines that arrive
    meanwhile form the next one. The command waits during a change of the master. If the master crashes, it
    repeats the lines in flight, which are stored once. Lines without a response are then in doubt, which ends
    the run unless --send-again is given.

    After the first failure the command sends no further lines, and prints the numbers of lines that were
    acknowledged, that failed, and that are in doubt. The exit code is 1 (failed lines were not stored) or 3
    (some may be stored).

    \b
    Examples:
      dledger broker produce --topic access --file access.log --tag web
      tail -f access.log | dledger broker produce --topic access --send-again
      dledger broker produce --topic orders --file orders.csv --key-field 1 --separator , --ordered
      echo hello | dledger broker produce --topic orders --key A17 --quiet
    """
    if ordered and not keys and key_field is None:
        raise click.UsageError("--ordered requires --key or --key-field")
    if ordered and queue is not None:
        raise click.UsageError("--ordered and --queue are mutually exclusive")
    if separator == "":
        raise click.UsageError("--separator must not be empty")
    if blank := [key for key in keys if not key or " " in key]:
        raise click.UsageError(
            f"--key {blank[0]!r}: a key must not be empty or contain blanks; to pass several keys, "
            "repeat --key"
        )
    if tag is not None and (tag != tag.strip() or not tag or "||" in tag):
        raise click.UsageError(f"--tag {tag!r}: consumers cannot select this tag")
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
    max_lines: int,
    send_again: bool,
    progress: ProgressLine,
) -> ProduceTally:
    names = await target.name_servers()
    async with Producer("dledger-produce", names, options=target.options, tls=target.client_tls) as producer:
        sender = LineSender(producer, rule, target.timeout, max_lines=max_lines, again=send_again)
        run = ProduceRun(
            sender.send,
            batches,
            on_progress=lambda tally: progress.show(lambda: _describe(tally)),
        )
        try:
            return await run.run()
        except asyncio.CancelledError:
            _print_summary(run.tally, rule.topic)
            raise


def _describe(tally: ProduceTally) -> str:
    return f"{tally.acknowledged} messages, {tally.acknowledged / tally.seconds:.0f}/s"


def _finish(tally: ProduceTally, topic: str, quiet: bool) -> None:
    if not quiet or tally.error is not None:
        _print_summary(tally, topic)
    if tally.error is None:
        return
    click.echo(error_line(tally.error), err=True)
    click.echo(f"the first affected line is line {tally.error_line}", err=True)
    # Lines in doubt take precedence over failures, because they matter to a script that retries.
    code = Exit.INDETERMINATE if tally.indeterminate else exit_code_of(tally.error)
    raise click.exceptions.Exit(code)


def _print_summary(tally: ProduceTally, topic: str) -> None:
    parts = [f"{tally.acknowledged} {'line' if tally.acknowledged == 1 else 'lines'} acknowledged"]
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


#: Maximum number and total bytes of the lines in flight, and of those that wait for their queue.
MAX_LINES = 4096
MAX_BYTES = 32 << 20


@dataclass(slots=True)
class ProduceTally(LineTally[StoredLines, BrokerError]):
    """A tally that also records the highest acknowledged offset of each queue."""

    last_offsets: dict[int, int] = field(default_factory=dict)

    def place(self, stored: StoredLines) -> None:
        last = self.last_offsets.get(stored.queue_id, -1)
        self.last_offsets[stored.queue_id] = max(last, stored.last_offset)


_ERRORS: ErrorKinds[BrokerError] = ErrorKinds(
    caught=BrokerError,
    indeterminate=PutIndeterminate,
    interrupted=lambda: PutIndeterminate(Status.OUTCOME_UNKNOWN, "interrupted before the response arrived"),
    too_long=lambda text: IllegalMessage(Status.BODY_TOO_LARGE, text),
)


class ProduceRun(LineRun[ProduceTally, StoredLines, BrokerError]):
    """Sends each line of `batches` once. `send` is called in the order of the lines."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[StoredLines]],
        batches: LineBatches,
        *,
        on_progress: Callable[[ProduceTally], None] | None = None,
    ) -> None:
        super().__init__(
            lambda bodies: send(bodies[0]),
            batches,
            ProduceTally(),
            _ERRORS,
            max_sends=MAX_LINES,
            max_bytes=MAX_BYTES,
            lines_per_send=1,
            on_progress=on_progress,
        )
