"""`dledger append`: the lines of a file or of stdin, one entry each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import click

from dledger.cli.append_run import AppendRun, Tally
from dledger.cli.client_options import TIMEOUT, client_options
from dledger.cli.exits import Exit, exit_code_of, print_error
from dledger.cli.line_source import ByteSource, LineBatches
from dledger.cli.output import human_bytes
from dledger.cli.progress_line import ProgressLine
from dledger.client import AsyncClient, Limits, TlsFiles
from dledger.errors import InvalidRequest

# The servers' default limit of a batch leaves room for the headers in it.
_MAX_BATCH_BYTES = 4 << 20
_MAX_BATCH_ENTRIES = 4096
# A batch in a session also holds the entry that marks it.
_SESSION_ROOM = 512


@click.command()
@client_options
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    show_default=True,
    help="The file, - is stdin.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, _MAX_BATCH_BYTES),
    default=256 << 10,
    show_default=True,
    help="At most so much in one atomic batch.",
)
@click.option(
    "--in-flight", type=click.IntRange(1, 64), default=8, show_default=True, help="Batches under way at once."
)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(1),
    default=_MAX_BATCH_BYTES,
    show_default=True,
    help="A longer line is an error.",
)
@click.option("--no-session", is_flag=True, help="Without a session, a retry may store lines twice.")
@click.option(
    "--timeout", type=TIMEOUT, default=30.0, show_default=True, help="Seconds until a batch is given up."
)
@click.option("--quiet", is_flag=True, help="No progress, no summary; errors are still shown.")
def append(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    path: str,
    batch_bytes: int,
    in_flight: int,
    max_line_bytes: int,
    no_session: bool,
    timeout: float,
    quiet: bool,
) -> None:
    """Append lines, one entry each, and wait until a majority has stored them.

    Reads stdin as a stream, of any length. Lines may hold any bytes; the newline is not stored, an empty
    line is an empty entry, and the last line needs no newline. In a session (the default) every line is
    stored once, also when the leader dies on the way.

    After the first failure nothing more is read: how many lines were acknowledged, failed and are in doubt
    is printed, and the exit code is 1 (certainly not stored) or 3 (some may be stored).

    \b
    Examples:
      dledger append --servers 127.0.0.1:20911,127.0.0.1:20912 --file access.log
      tail -f access.log | dledger append
      echo hello | dledger append --quiet
    """
    size = 0 if path == "-" else Path(path).stat().st_size
    batches = LineBatches(
        open_source(path),
        batch_bytes=batch_bytes,
        batch_entries=_MAX_BATCH_ENTRIES,
        max_line_bytes=max_line_bytes,
    )
    with ProgressLine(size, lambda: batches.bytes_read, quiet) as progress:
        open_client = partial(
            AsyncClient,
            servers,
            group=group,
            session=not no_session,
            timeout=timeout,
            tls=tls,
            limits=Limits(max_batch_bytes=batch_bytes + _SESSION_ROOM, max_inflight_batches=in_flight),
        )
        tally = asyncio.run(_append(open_client, batches, in_flight, progress))
    _finish(tally, quiet)


def open_source(path: str) -> ByteSource:
    """Unbuffered, as LineBatches wants it. Left open: the program ends soon, and a thread may be reading."""
    if path != "-":
        return Path(path).open("rb", buffering=0)
    return cast("ByteSource", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))


async def _append(
    open_client: Callable[[], AsyncClient], batches: LineBatches, in_flight: int, progress: ProgressLine
) -> Tally:
    async with open_client() as client:
        run = AppendRun(
            client,
            batches,
            in_flight=in_flight,
            on_progress=lambda tally: progress.show(lambda: _describe(tally)),
        )
        try:
            return await run.run()
        except asyncio.CancelledError:
            _print_summary(run.tally)
            raise


def _describe(tally: Tally) -> str:
    rate = tally.acknowledged / tally.seconds
    return f"{tally.acknowledged} lines, {rate:.0f} lines/s, index {tally.last_index}"


def _finish(tally: Tally, quiet: bool) -> None:
    if not quiet or tally.error is not None:
        _print_summary(tally)
    if tally.error is None:
        return
    print_error(tally.error)
    if not isinstance(tally.error, InvalidRequest):
        click.echo(f"the first line concerned is line {tally.error_line}", err=True)
    # In doubt outweighs failed: a script that tries again must know.
    code = Exit.INDETERMINATE if tally.indeterminate else max(Exit.FAILED, exit_code_of(tally.error))
    raise click.exceptions.Exit(code)


def _print_summary(tally: Tally) -> None:
    seconds = tally.seconds
    parts = [f"{tally.acknowledged} lines acknowledged"]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.indeterminate:
        parts.append(f"{tally.indeterminate} in doubt")
    text = ", ".join(parts)
    if tally.acknowledged:
        text += (
            f", in {seconds:.2f} s ({tally.acknowledged / seconds:.0f} lines/s, "
            f"{human_bytes(tally.bytes / seconds)}/s), last index {tally.last_index}"
        )
    click.echo(text, err=True)
