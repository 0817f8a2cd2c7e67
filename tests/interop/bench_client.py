"""The Java programs beside this file that put load on a cluster, and the tables of what they measure."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import cpu_seconds
from benchmarks.profiles import flame_graph

from . import genuine

TOPIC = "bench"
CLUSTER = "DefaultCluster"
NOT_MEASURED = "not measured"
_FIGURE = re.compile(r"@ (.+): (\d+)(?: of (\d+) messages)?$")
MASTER, _CLIENT = "master", "client"


class Figure(NamedTuple):
    """`cpu_us`: µs of CPU time per message, by process; empty if it was not measured."""

    value: int
    cpu_us: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.value:,}"

    @property
    def cpu(self) -> str:
        return ", ".join(f"{who} {us:.0f}" for who, us in self.cpu_us.items())


class Side:
    """The figures of one of the systems that are compared. Prints each as soon as it is measured."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.figures: dict[str, Figure] = {}

    def add(self, name: str, figure: Figure) -> None:
        self.figures[name] = figure
        cpu = f"; CPU µs per message: {figure.cpu}" if figure.cpu else ""
        print(f"{self._title}: {name}: {figure}{cpu}", flush=True)


class Servers(NamedTuple):
    """A running system. `address`: of its NameServer, or its gRPC endpoint. `pids`: its processes by role."""

    address: str
    pids: Mapping[str, int]


class Table:
    """What was measured of RocketMQ and of ours."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.theirs = Side(f"RocketMQ, {title}")
        self.ours = Side(f"ours, {title}")

    def show(self) -> None:
        """Print both sides, with the ratio of each figure that both have. Nothing without figures."""
        theirs, ours = self.theirs.figures, self.ours.figures
        if not theirs | ours:
            return
        headings = ["figure", f"RocketMQ 5.5.0, {self._title}", "ours", "ours / theirs"]
        headings += ["CPU µs per message, RocketMQ", "ours"]
        print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
        for name in theirs | ours:
            sides = (theirs.get(name), ours.get(name))
            cells = [NOT_MEASURED if figure is None else str(figure) for figure in sides]
            cpu = ["" if figure is None else figure.cpu for figure in sides]
            print(f"| {' | '.join([name, *cells, _ratio(*sides), *cpu])} |")


def _ratio(theirs: Figure | None, ours: Figure | None) -> str:
    if theirs is None or ours is None or not theirs.value:
        return NOT_MEASURED
    return f"{ours.value / theirs.value:.2f}"


def make_topic(home: Path, servers: str) -> None:
    genuine.mqadmin(home, servers, *f"updateTopic -c {CLUSTER} -t {TOPIC} -r 8 -w 8".split())


def measure(home: Path, servers: Servers, seconds: int, side: Side, profile: Path | None = None) -> None:
    """Run Bench.java, and add its figures to a side. `profile`: see `run_profiled`."""
    make_topic(home, servers.address)
    run_profiled(home, genuine.LIB, "Bench", servers, seconds, side, profile)


def run_profiled(
    home: Path, lib: Path, program: str, servers: Servers, seconds: int, side: Side, profile: Path | None
) -> None:
    """Run a Java program beside this file, and add its figures to `side`.

    `profile`: run it once more, because profiling costs time, and write a flame graph of the master under
    each load to this folder.
    """
    run(home, lib, program, servers, str(seconds), on_figure=side.add)
    if profile is None:
        return
    master = servers.pids[MASTER]
    path = profile / f"{program}.svg"
    with ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(flame_graph(master, path, seconds))

        def end(name: str, figure: Figure) -> None:
            if not figure.cpu_us:
                return  # a number of failures
            stack.close()
            path.rename(profile / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.svg")

        run(home, lib, program, servers, str(seconds), on_begin=begin, on_figure=end)


def fill(home: Path, servers: str, messages: int) -> None:
    """Send batches of 1 KiB bodies until there are that many messages."""
    run(home, genuine.LIB, "Bench", Servers(servers, {}), "1", str(messages))


def run(
    home: Path,
    lib: Path,
    program: str,
    servers: Servers,
    *arguments: str,
    on_begin: Callable[[], None] = lambda: None,
    on_figure: Callable[[str, Figure], None] = lambda name, figure: None,
) -> None:
    """Run a Java program beside this file. `on_begin`: a load begins. `on_figure`: it has ended."""
    path = f"{home}:{lib}/*"
    source = Path(__file__).with_name(f"{program}.java")
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", home, source], check=True)
    command, environment = genuine.java(home, path, program, servers.address, TOPIC, *arguments)
    with subprocess.Popen(
        command,
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            pids = {**servers.pids, _CLIENT: process.pid}
            before: dict[str, float] = {}
            for line in process.stdout:
                if line == "@ begin\n":
                    before = _cpu(pids)
                    on_begin()
                elif found := _FIGURE.match(line):
                    name, value, messages = found[1], int(found[2]), int(found[3] or 0)
                    now = _cpu(pids) if messages else {}
                    cpu = {who: 1e6 * (used - before[who]) / messages for who, used in now.items()}
                    on_figure(name, Figure(value, cpu))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _cpu(pids: Mapping[str, int]) -> dict[str, float]:
    return {who: cpu_seconds(pid) for who, pid in pids.items()}
