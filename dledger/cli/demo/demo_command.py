"""`dledger demo`: the demo's options, its story on the terminal, its verdict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from dledger.cli.client_options import Seconds
from dledger.cli.demo.demo import Demo
from dledger.cli.demo.demo_input import default_input, read_lines
from dledger.cli.demo.demo_load import MIN_LINES
from dledger.cli.exits import Exit
from dledger.cli.local.local_cluster import LocalCluster
from dledger.cli.output import human_bytes

_COLOURS = {"SIGKILL": "red", "failover": "yellow", "PROBLEM": "red", "OK": "green", "FAILED": "red"}


#: Plays the demo once in an empty directory. What to say of a good end; None: something was wrong.
Play = Callable[[Path, list[bytes]], str | None]


def demo_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--input, --dir, --base-port and --minutes, as what `run_demo` takes, and `base_port`."""
    options = (
        click.option(
            "--input",
            "path",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The file whose lines are stored.  [default: a long text of Python's library]",
        ),
        click.option(
            "--dir",
            "directory",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where to put the cluster, empty or absent; it is kept.  [default: a temporary directory]",
        ),
        click.option(
            "--base-port", type=int, default=0, show_default=True, help="First port; 0 takes free ones."
        ),
        click.option(
            "--minutes",
            type=Seconds(0, min_open=True),
            help="Do it again and again, each time with a new cluster, for so long or until it fails.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@demo_options
def demo(path: Path | None, directory: Path | None, base_port: int, minutes: float | None) -> None:
    """Replicate a file over three nodes, kill the leader twice, and prove that nothing is lost.

    Starts three server processes, appends every line of the file through the client, kills the leader with
    SIGKILL at a third and at two thirds of the way (and starts it again), then reads the log back from every
    node's own disk and compares it with what was acknowledged, line by line and index by index.

    Exits with 0 if every line is there once and in order on all nodes, with 1 if not.

    \b
    Examples:
      dledger demo
      dledger demo --input /var/log/syslog --dir /tmp/demo
      dledger demo --minutes 30
    """
    run_demo(path, directory, minutes, partial(play_log, base_port=base_port))


def play_log(root: Path, lines: list[bytes], *, base_port: int) -> str | None:
    """The demo of the log."""
    with LocalCluster.create(root, nodes=3, base_port=base_port) as cluster:
        story = Demo(cluster, lines, say)
        if not asyncio.run(story.run()):
            return None
    pauses = " and ".join(f"{failover.silence_ms:.0f} ms" for failover in story.failovers)
    return (
        f"{len(lines)} lines on 3 nodes, each once and in order, through 2 killed leaders "
        f"(silent for {pauses})"
    )


def run_demo(path: Path | None, directory: Path | None, minutes: float | None, play: Play) -> None:
    """Once, or for so many minutes. Exits with 1 when something was wrong."""
    if minutes is not None and directory is not None:
        raise click.UsageError(
            "--minutes makes many clusters, each in a directory of its own: leave out --dir"
        )
    inputs = [path] if path is not None else default_input()
    lines = [line for file in inputs for line in read_lines(file)]
    if len(lines) < MIN_LINES:
        raise click.UsageError(f"the input has {len(lines)} lines; the demo needs {MIN_LINES} or more")
    size = human_bytes(sum(map(len, lines)))
    say("input", f"{', '.join(map(str, inputs))}: {len(lines)} lines, {size}")
    end = time.monotonic() + 60 * (minutes or 0)
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        rounds += 1
        if minutes is not None:
            say("round", str(rounds))
        if not _run_once(lines, directory, play):
            raise click.exceptions.Exit(Exit.FAILED)
    if minutes is not None:
        say("OK", f"{rounds} rounds, {2 * rounds} killed leaders, nothing lost")


def _run_once(lines: list[bytes], directory: Path | None, play: Play) -> bool:
    began = time.monotonic()
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    end: str | None = None
    try:
        end = play(root, lines)
    finally:
        if end is not None and directory is None:
            shutil.rmtree(root)
        else:
            say("kept", f"data and logs of the nodes are in {root}")
    seconds = time.monotonic() - began
    if end is None:
        say("FAILED", f"see above; {seconds:.1f} s")
        return False
    say("OK", f"{end}; {seconds:.1f} s")
    return True


def say(what: str, text: str) -> None:
    """One line of the story. Colours only on a terminal."""
    click.echo(f"{click.style(f'{what:<10}', fg=_COLOURS.get(what), bold=True)} {text}")
