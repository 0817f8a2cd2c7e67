"""`dledger append`: the lines of a file or of stdin, one entry each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import click

from dledger.cli.client_options import TIMEOUT, client_options
from dledger.cli.exits import Exit, exit_code_of, print_error
from dledger.cli.line_run import ErrorKinds, LineRun, LineTally
from dledger.cli.line_source import ByteSource, LineBatches
from dledger.cli.output import human_bytes
from dledger.cli.progress_line import ProgressLine
from dledger.cli.search_notice import reporting_search
from dledger.client import AsyncClient, Limits, TlsFiles
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest

# The servers' default limit of a batch includes the headers.
_MAX_BATCH_BYTES = 4 << 20
_MAX_BATCH_ENTRIES = 4096
# A batch in a session also contains the session entry.
_SESSION_ROOM = 512


@click.command()
@client_options
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    show_default=True,
    help="The input file; - is stdin.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, _MAX_BATCH_BYTES),
    default=256 << 10,
    show_default=True,
    help="Maximum size of an atomic batch.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Maximum number of batches in flight.",
)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(1),
    default=_MAX_BATCH_BYTES,
    show_default=True,
    help="Maximum length of a line; a longer one is an error.",
)
@click.option("--no-session", is_flag=True, help="Append without a session: a retry may store lines twice.")
@click.option(
    "--timeout", type=TIMEOUT, default=30.0, show_default=True, help="Time limit of a batch, in seconds."
)
@click.option("--quiet", is_flag=True, help="Show errors only, no progress or summary.")
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

    Reads stdin as a stream of any length. Lines may contain any bytes. The newline is not stored, an empty
    line is an empty entry, and the last line needs no newline. In a session (the default) every line is
    stored exactly once, even if the leader fails in the meantime.

    The first failure stops the input. The command prints how many lines were acknowledged, failed and are in
    doubt, and exits with 1 (certainly not stored) or 3 (some may be stored).

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
    """Open the input unbuffered, as LineBatches requires. The caller must not close it, because a thread may
    be reading from it until the process exits."""
    if path != "-":
        return Path(path).open("rb", buffering=0)
    return cast("ByteSource", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))


async def _append(
    open_client: Callable[[], AsyncClient], batches: LineBatches, in_flight: int, progress: ProgressLine
) -> AppendTally:
    async with open_client() as client, reporting_search(client):
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


def _describe(tally: AppendTally) -> str:
    rate = tally.acknowledged / tally.seconds
    return f"{tally.acknowledged} lines, {rate:.0f} lines/s, index {tally.last_index}"


def _finish(tally: AppendTally, quiet: bool) -> None:
    if not quiet or tally.error is not None:
        _print_summary(tally)
    if tally.error is None:
        return
    print_error(tally.error)
    if not isinstance(tally.error, InvalidRequest):
        click.echo(f"the first affected line is line {tally.error_line}", err=True)
    # In doubt takes precedence over failed, because a script that retries must know.
    code = Exit.INDETERMINATE if tally.indeterminate else max(Exit.FAILED, exit_code_of(tally.error))
    raise click.exceptions.Exit(code)


def _print_summary(tally: AppendTally) -> None:
    seconds = tally.seconds
    parts = [f"{tally.acknowledged} {'line' if tally.acknowledged == 1 else 'lines'} acknowledged"]
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


class ManyAppender(Protocol):
    """The part of a client that an append run uses."""

    async def append_many(self, bodies: Sequence[bytes], /) -> list[AppendResult]: ...


@dataclass(slots=True)
class AppendTally(LineTally[list[AppendResult], DLedgerError]):
    """The tally of an append, including the range of indexes at which lines were stored."""

    first_index: int = -1
    last_index: int = -1

    def place(self, stored: list[AppendResult]) -> None:
        # -1: stored, but the cluster no longer knows the position.
        indexes = [result.index for result in stored if result.index >= 0]
        if indexes:
            self.last_index = max(self.last_index, indexes[-1])
            self.first_index = indexes[0] if self.first_index < 0 else min(self.first_index, indexes[0])


_ERRORS: ErrorKinds[DLedgerError] = ErrorKinds(
    caught=DLedgerError,
    indeterminate=Indeterminate,
    interrupted=lambda: Indeterminate("interrupted before the answer arrived", code=Code.TIMEOUT),
    too_long=lambda text: InvalidRequest(
        f"{text} (limit of this command: --max-line-bytes; servers have their own)", code=Code.BODY_TOO_LARGE
    ),
)


class AppendRun(LineRun[AppendTally, list[AppendResult], DLedgerError]):
    """Appends `batches` once, in order. Their sizes limit the bytes in flight."""

    def __init__(
        self,
        appender: ManyAppender,
        batches: LineBatches,
        *,
        in_flight: int,
        on_progress: Callable[[AppendTally], None] | None = None,
    ) -> None:
        super().__init__(
            appender.append_many,
            batches,
            AppendTally(),
            _ERRORS,
            max_sends=in_flight,
            on_progress=on_progress,
        )
