"""`dledger read`: entries as lines or as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import BinaryIO

import click

from dledger.cli.client_options import MAX_INT64, TIMEOUT, client_options
from dledger.cli.closed_pipe import ending_with_reader, give_up_stdout
from dledger.cli.search_notice import reporting_search
from dledger.client import AsyncClient, Entry, TlsFiles
from dledger.client.reader import ReadMode


@click.command()
@client_options
@click.option(
    "--from-index",
    type=click.IntRange(0, MAX_INT64),
    help="First index.  [default: the start of the log]",
)
@click.option(
    "--count", type=click.IntRange(1, MAX_INT64), help="Maximum number of entries.  [default: up to the end]"
)
@click.option("--follow", is_flag=True, help="Keep printing new entries until Ctrl-C.")
@click.option("--local", is_flag=True, help="Read the committed entries known to one node; may be stale.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line: index, term, pos, body."
)
@click.option(
    "--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Seconds to find a node that answers."
)
def read(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    from_index: int | None,
    count: int | None,
    follow: bool,
    local: bool,
    as_json: bool,
    timeout: float,
) -> None:
    """Print committed entries, oldest first.

    Each body is printed unchanged, followed by a newline: a file stored with `dledger append` is printed as
    it was. With --json, a UTF-8 body is in "body", any other in "body_base64".

    Reads are linearizable, on any node: they include all entries acknowledged before the read.

    \b
    Examples:
      dledger read --servers 127.0.0.1:20911 > copy.txt
      dledger read --from-index 1000 --count 10 --json
      dledger read --follow | grep ERROR
    """
    write = _write_json if as_json else _write_line
    out = sys.stdout.buffer

    async def run() -> None:
        mode: ReadMode = "local" if local else "linearizable"
        start = -1 if from_index is None else from_index
        client = AsyncClient(servers, group=group, session=False, timeout=timeout, tls=tls)
        with ending_with_reader():
            async with client, reporting_search(client):
                chunks = client.read_chunks(start, count, follow=follow, mode=mode)
                async for entries in chunks:
                    for entry in entries:
                        write(out, entry)
                    if follow:
                        out.flush()

    try:
        asyncio.run(run())
        out.flush()
    except BrokenPipeError:
        give_up_stdout()


def _write_line(out: BinaryIO, entry: Entry) -> None:
    out.write(entry.body + b"\n")


def _write_json(out: BinaryIO, entry: Entry) -> None:
    out.write(json.dumps(entry_to_json(entry), ensure_ascii=False).encode() + b"\n")


def entry_to_json(entry: Entry) -> dict[str, object]:
    shown: dict[str, object] = {"index": entry.index, "term": entry.term, "pos": entry.pos}
    try:
        shown["body"] = entry.body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(entry.body).decode()
    return shown
