"""The Java programs beside this file that put load on a cluster, and what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import genuine

TOPIC = "bench"
CLUSTER = "DefaultCluster"


def make_topic(home: Path, servers: str) -> None:
    genuine.mqadmin(home, servers, *f"updateTopic -c {CLUSTER} -t {TOPIC} -r 8 -w 8".split())


def measured(home: Path, servers: str, seconds: int) -> dict[str, int]:
    """What Bench.java says, by figure."""
    make_topic(home, servers)
    return said(home, genuine.LIB, "Bench", servers, str(seconds))


def fill(home: Path, servers: str, messages: int) -> None:
    """Batches of 1 KiB bodies, until there are so many."""
    said(home, genuine.LIB, "Bench", servers, "1", str(messages))


def said(home: Path, lib: Path, program: str, at: str, *arguments: str) -> dict[str, int]:
    """The figures that a program beside this file says of the topic."""
    path = f"{home}:{lib}/*"
    source = Path(__file__).with_name(f"{program}.java")
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", home, source], check=True)
    command, environment = genuine.java(home, path, program, at, TOPIC, *arguments)
    printed = subprocess.run(
        command,
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    ).stdout
    figures = [line[2:].rsplit(": ", 1) for line in printed.splitlines() if line.startswith("@ ")]
    return {name: int(figure) for name, figure in figures}


NOT_MEASURED = "not measured"


def show(title: str, theirs: dict[str, int], mine: dict[str, int]) -> None:
    """Print both as a table, with the ratio of what was measured on both sides."""
    print(f"| figure | RocketMQ 5.5.0, {title} | ours | ours / theirs |\n|---|---|---|---|")
    for name in theirs | mine:
        print(
            f"| {name} | {_cell(theirs.get(name))} | {_cell(mine.get(name))} | {_ratio(name, theirs, mine)} |"
        )


def _cell(figure: int | None) -> str:
    return NOT_MEASURED if figure is None else f"{figure:,}"


def _ratio(name: str, theirs: dict[str, int], mine: dict[str, int]) -> str:
    if not theirs.get(name) or name not in mine:
        return NOT_MEASURED
    return f"{mine[name] / theirs[name]:.2f}"
