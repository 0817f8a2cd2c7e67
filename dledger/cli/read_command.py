"""`dledger read`: entries as lines or as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import BinaryIO

import click

from dledger.cli.client_options import GREATEST, TIMEOUT, client_options
from dledger.client import AsyncClient, Entry, TlsFiles
from dledger.client.reader import ReadMode


@click.command()
@client_options
@click.option(
    "--from",
    "from_index",
    type=click.IntRange(0, GREATEST),
    help="First index.  [default: where the log begins]",
)
@click.option(
    "--count", type=click.IntRange(1, GREATEST), help="At most so many entries.  [default: up to the end]"
)
@click.option("--follow", is_flag=True, help="Stay and print what is appended, until Ctrl-C.")
@click.option("--local", is_flag=True, help="What the asked node knows to be committed; may be stale.")
@click.option("--json", "as_json", is_flag=True, help="One object per line: index, term, pos, body.")
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

    The body of each entry is printed byte for byte, with a newline after it: what `dledger append` took from
    a file comes out as that file. With --json, a body that is UTF-8 is in "body", any other in
    "body_base64".

    Reads are linearizable: they see everything that was acknowledged before they began, from any node.

    \b
    Examples:
      dledger read --servers 127.0.0.1:20911 > copy.txt
      dledger read --from 1000 --count 10 --json
      dledger read --follow | grep ERROR
    """
    write = _write_json if as_json else _write_line
    out = sys.stdout.buffer

    async def run() -> None:
        mode: ReadMode = "local" if local else "linearizable"
        start = -1 if from_index is None else from_index
        async with AsyncClient(servers, group=group, session=False, timeout=timeout, tls=tls) as client:
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
        # Whoever read has seen enough, as `head` does. Python would complain once more when it flushes at
        # exit, so stdout is pointed to where nothing complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
