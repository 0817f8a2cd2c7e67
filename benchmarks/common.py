"""Shared parts of the benchmarks: closed load loops, statistics, folders, child processes, tables, JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

BODY_SIZE = 1024
#: Fixed, incompressible bytes, the same for every system and run.
BODY = random.Random(20).randbytes(BODY_SIZE)
RESULTS = Path("bench-results")
_PEERS = Path("build/peers")
WARM_UP_SECONDS = 1.0

console = Console(stderr=True)


def body_of(size: int) -> bytes:
    """Return a body of `size` bytes, made of BODY."""
    return (BODY * -(-size // BODY_SIZE))[:size]


Operation = Callable[[], Awaitable[int]]


class BenchError(Exception):
    """Raised when a benchmark cannot continue. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class Load:
    """Result of closed loops: entries, duration, and the latency of each operation."""

    entries: int
    seconds: float
    latencies: tuple[float, ...]  # in seconds, one per operation

    @property
    def rate(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0

    def latency_ms(self, quantile: float) -> float:
        return 1000 * percentile(self.latencies, quantile)

    @staticmethod
    def joined(loads: Sequence[Load]) -> Load:
        """Combine several rounds of the same load."""
        return Load(
            sum(load.entries for load in loads),
            sum(load.seconds for load in loads),
            tuple(latency for load in loads for latency in load.latencies),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. `ok` None: no verdict."""

    figure: str
    measured: str
    target: str = ""
    ok: bool | None = None
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)  # for JSON: plain numbers and lists


def percentile(values: Sequence[float], quantile: float) -> float:
    """Return the smallest value that is at least as large as a share `quantile` of all values; nan if there
    are
    none.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through points (x, y); 0 for fewer than two points."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / max(1, n)
    mean_y = sum(y for _, y in points) / max(1, n)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


# -- load


async def closed_loops(
    operation: Operation, concurrency: int, seconds: float, max_entries: float = math.inf
) -> Load:
    """Run `concurrency` loops of `operation`, which returns the number of stored entries, for `seconds`, or
    until `max_entries` are stored.

    Operations that end after that time do not count.
    """
    gc.collect()
    latencies: list[float] = []
    entries = 0
    started = time.perf_counter()
    ended = until = started + seconds

    async def loop() -> None:
        nonlocal entries, ended
        before = time.perf_counter()
        while before < until and entries < max_entries:
            done = await operation()
            after = time.perf_counter()
            if after <= until:
                entries += done
                latencies.append(after - before)
                ended = after
            before = after

    await asyncio.gather(*(loop() for _ in range(concurrency)))
    return Load(entries, seconds if entries < max_entries else ended - started, tuple(latencies))


async def warm(operation: Operation, concurrency: int, seconds: float = WARM_UP_SECONDS) -> None:
    await closed_loops(operation, concurrency, seconds)


class Meter(Protocol):
    """Takes an additional measurement during the rounds of one load."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


async def interleaved(
    operations: Mapping[str, tuple[Operation, int]],
    seconds: float,
    rounds: int,
    meters: Mapping[str, Meter] | None = None,
) -> dict[str, list[Load]]:
    """Measure several (operation, concurrency) in turns, `seconds` in total for each.

    Changes of the machine's speed then affect all operations alike. Each operation is warmed up first, and
    the
    order is reversed in every other round. `meters`: additional measurements, by operation name.
    """
    for operation, concurrency in operations.values():
        await warm(operation, concurrency)
    loads: dict[str, list[Load]] = {name: [] for name in operations}
    for number in range(rounds):
        names = list(operations) if number % 2 == 0 else list(operations)[::-1]
        for name in names:
            operation, concurrency = operations[name]
            meter = meters.get(name) if meters else None
            if meter is not None:
                meter.begin()
            loads[name].append(await closed_loops(operation, concurrency, seconds / rounds))
            if meter is not None:
                meter.end()
    return loads


def rounds_for(seconds: float) -> int:
    """Return the number of rounds for `seconds`: at least three, of about two seconds each."""
    return max(3, round(seconds / 2))


# -- folders and processes


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Create a folder on the measured disk; the context always removes it."""
    RESULTS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=RESULTS)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def child(command: Sequence[str], log: Path | None = None, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process in a session of its own, so that Ctrl-C reaches only this process. The
    context ends it.
    """
    with (log or Path(os.devnull)).open("a") as output:
        process: subprocess.Popen[str] = subprocess.Popen(
            command, stderr=output, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
            **{"stdout": output, **options},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are currently unused."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def peer_binary(name: str) -> str | None:
    """Return the path of another system's server, from PATH or built by `make bench-peers`."""
    return shutil.which(name) or shutil.which(name, path=str(_PEERS))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Measured(Protocol):
    """A running system whose servers use CPU time."""

    def node_cpu_seconds(self) -> dict[str, float]: ...


class Cpu:
    """Sums the CPU seconds of client and nodes over all rounds of one load."""

    def __init__(self, system: Measured, on_turn: Callable[[], None] = lambda: None) -> None:
        self._system = system
        self._on_turn = on_turn
        self.used: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def begin(self) -> None:
        self._on_turn()
        self._before = self._read()

    def end(self) -> None:
        for who, now in self._read().items():
            self.used[who] = self.used.get(who, 0.0) + now - self._before.get(who, now)

    def _read(self) -> dict[str, float]:
        return {**self._system.node_cpu_seconds(), "client": time.process_time()}


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP end the benchmark like Ctrl-C, including the cleanup."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


# -- output


def say(text: str) -> None:
    """Print progress to stderr."""
    console.print(f"[dim]{text}[/dim]", highlight=False)


def machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpus": os.cpu_count(),
        "model": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "load_average": list(os.getloadavg()),
    }


async def collect(measured: AsyncGenerator[Row], rows: list[Row]) -> None:
    """Append each row to `rows` and print it as soon as it is measured, so that an interrupt loses none."""
    async with aclosing(measured) as measuring:
        async for row in measuring:
            rows.append(row)
            print("; ".join(filter(None, (f"{row.figure}: {row.measured}", row.detail))), flush=True)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the table to stdout."""
    table = Table(title=title, title_justify="left")
    for heading in ("measurement", "result", "target", "", "detail"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        verdict = {None: "", True: "[green]ok[/green]", False: "[red]misses[/red]"}[row.ok]
        table.add_row(row.figure, row.measured, row.target, verdict, row.detail)
    # A fixed width if stdout is not a terminal.
    Console(width=None if os.isatty(1) else 150).print(table)


def write_json(path: Path, rows: Sequence[Row]) -> None:
    content = {
        "machine": machine(),
        "body_size": BODY_SIZE,
        "rows": [
            {
                "figure": row.figure,
                "measured": row.measured,
                "target": row.target,
                "ok": row.ok,
                "detail": row.detail,
                **row.values,
            }
            for row in rows
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
