"""Measure the Spark checker on synthetic traces, raw and converted.

Reports the time of all checks including the start of Spark, CPU time, memory, growth with the trace size, the
time of plain SQL on the same trace, and the rate of conversion.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.common import BenchError, Row, say, scratch
from chaos.trace.parquet import convert
from tests.chaos.checker.synthetic import write_clean_trace

SIZES = (100_000,)
LONG_SIZES = (100_000, 1_000_000, 10_000_000)
#: Maximum seconds by trace size, including the start of Spark.
MOST_SECONDS = {100_000: 20.0, 10_000_000: 90.0}
#: The same limits as multiples of the yardstick, by trace size. On the machine for which the limits were
#: chosen,
#: nine plain checks took 10 s and 24 to 30 s.
SET_RATIO = {100_000: 2.0, 10_000_000: 3.3}
#: Minimum trace size for which the converted trace is checked, too.
CONVERTED_SIZE = 1_000_000
MOST_GIB = 3.0
LEAST_LINES_A_SECOND = 200_000
#: Maximum growth of the time for ten times as many events.
MOST_RATIO = 12.0
_PRODUCERS = 8
_LINES_A_ROUND = 127
_EARLY_ROUNDS = 60
_SAMPLE_SECONDS = 0.2
_BYTES_READ = re.compile(rb"read \d+ bytes of lines in ([\d.]+) s")


@dataclass(slots=True)
class Usage:
    """Resources used by a process and its children, from samples: peak of their total memory in bytes, and
    CPU
    seconds by process.
    """

    peak_bytes: int = 0
    cpu: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a process. `seconds`: time until it and its children had exited."""

    seconds: float
    usage: Usage
    said: bytes

    @property
    def cpu(self) -> float:
        return sum(self.usage.cpu.values())


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one checker run. `kind`: raw or converted. `reading`: seconds of the total `seconds` that
    parsing
    lines into columns took.
    """

    size: int
    events: int
    kind: str
    seconds: float
    reading: float
    usage: Usage
    checks: int


async def run(seconds: float, *, sizes: tuple[int, ...] = SIZES) -> AsyncGenerator[Row]:
    """Run the benchmark. `seconds` is ignored, because each trace is checked once."""
    del seconds
    found: list[Checked] = []
    with scratch("checker") as folder:
        for _ in range(2):
            await _early_run(folder / "early")
        for size in sizes:
            run_dir = folder / str(size)
            say(f"checker: making a trace of about {size:,} events")
            rounds = size // _LINES_A_ROUND
            events = write_clean_trace(run_dir, "bench", rounds=rounds, faults=6, producers=_PRODUCERS)
            found.append(await _check(run_dir, size, events, "raw"))
            for row in _rows(found[-1]):
                yield row
            yield await _convert(run_dir, size, events)
            if size >= CONVERTED_SIZE:
                found.append(await _check(run_dir, size, events, "converted"))
                for row in _rows(found[-1]):
                    yield row
            if size in SET_RATIO:
                for row in await _beside_plain(run_dir, found[-1]):
                    yield row
            shutil.rmtree(run_dir)
    for row in _growth(found):
        yield row


async def _early_run(run_dir: Path) -> None:
    """Run the checker once without measuring.

    The second run on a machine writes the class data archive that later runs use.
    """
    say("checker: an early run, which is not measured")
    write_clean_trace(run_dir, "early", rounds=_EARLY_ROUNDS, faults=6, producers=_PRODUCERS)
    await _measured("chaos.checker.main", str(run_dir), "--work", str(run_dir))
    shutil.rmtree(run_dir)


async def _convert(run_dir: Path, size: int, events: int) -> Row:
    say(f"checker: converting {events:,} events")
    started = time.perf_counter()
    await asyncio.to_thread(convert, run_dir, remove_raw=True)
    rate = events / (time.perf_counter() - started)
    judged = size == max(LONG_SIZES)
    return Row(
        f"conversion of {events:,} raw events",
        f"{rate:,.0f}/s",
        f">= {LEAST_LINES_A_SECOND:,}/s" if judged else "",
        rate >= LEAST_LINES_A_SECOND if judged else None,
        "JSONL into Parquet",
        {"events_per_second": rate},
    )


async def _check(run_dir: Path, size: int, events: int, kind: str) -> Checked:
    say(f"checker: checking {events:,} {kind} events")
    ended = await _measured("chaos.checker.main", str(run_dir), "--work", str(run_dir))
    results = json.loads((run_dir / "report" / "results.json").read_text())
    read = _BYTES_READ.search(ended.said)
    assert read is not None, ended.said
    checks = len(results["runs"][0]["checks"])
    return Checked(size, events, kind, ended.seconds, float(read[1]), ended.usage, checks)


async def _beside_plain(run_dir: Path, checked: Checked) -> list[Row]:
    """Run the plain SQL yardstick on a trace that was just checked."""
    say(f"checker: nine plain checks of {checked.events:,} events")
    plain = await _measured("benchmarks.plain_checks", str(run_dir))
    ratio, cpu_ratio = checked.seconds / plain.seconds, sum(checked.usage.cpu.values()) / plain.cpu
    return [
        Row(
            f"nine plain checks of {checked.events:,} converted events",
            f"{plain.seconds:.1f} s",
            detail=f"plain SQL with the start of Spark; {plain.cpu:.0f} s of CPU",
            values={"seconds": plain.seconds, "events": checked.events, "cpu_seconds": plain.cpu},
        ),
        Row(
            f"check of {checked.events:,} {checked.kind} events relative to them",
            f"{ratio:.1f} times as long",
            detail=f"{cpu_ratio:.1f} times the CPU; the limit is {SET_RATIO[checked.size]} times as long",
            values={"ratio": ratio, "cpu_ratio": cpu_ratio},
        ),
    ]


async def _measured(module: str, *arguments: str) -> Ended:
    """Run a module in a separate process.

    Raises:
        BenchError: The module failed.
    """
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    usage = Usage()
    watching = asyncio.create_task(_watch(process.pid, usage))
    _, said = await process.communicate()
    took = time.perf_counter() - started
    watching.cancel()
    if process.returncode != 0:
        raise BenchError(f"{module} exited with {process.returncode}: {said.decode()[-500:]}")
    return Ended(took, usage, said)


async def _watch(pid: int, usage: Usage) -> None:
    while True:
        family = _family(pid)
        usage.peak_bytes = max(usage.peak_bytes, sum(_resident(each) for each in family))
        usage.cpu |= {each: seconds for each in family if (seconds := _cpu_seconds(each))}
        await asyncio.sleep(_SAMPLE_SECONDS)


def _cpu_seconds(pid: int) -> float:
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _family(int(child)))]


def _resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _rows(one: Checked) -> list[Row]:
    most = MOST_SECONDS.get(one.size)
    cpu, gib = sum(one.usage.cpu.values()), one.usage.peak_bytes / 2**30
    large = one.size == max(LONG_SIZES)
    what = f"{one.events:,} {one.kind} events"
    rows = [
        Row(
            f"check of {what}",
            f"{one.seconds:.1f} s",
            f"<= {most:.0f} s" if most else "",
            one.seconds <= most if most else None,
            f"all {one.checks} checks and the start of Spark; {cpu:.0f} s of CPU",
            {"seconds": one.seconds, "events": one.events, "cpu_seconds": cpu},
        ),
        Row(
            f"memory for {what}",
            f"{gib:.2f} GiB",
            f"<= {MOST_GIB:.0f} GiB" if large else "",
            gib <= MOST_GIB if large else None,
            "at most, of all processes",
            {"bytes": one.usage.peak_bytes, "events": one.events},
        ),
    ]
    if one.kind == "raw":
        rate = one.events / one.reading
        rows.append(
            Row(f"reading of {what}", f"{rate:,.0f}/s", detail="by Spark", values={"events_per_second": rate})
        )
    return rows


def _growth(found: list[Checked]) -> list[Row]:
    """Compare the times of successive trace sizes. Small traces are excluded: the start of
    Spark dominates.
    """
    rows = []
    for kind in ("raw", "converted"):
        larger = [one for one in found if one.size >= CONVERTED_SIZE and one.kind == kind]
        for small, large in pairwise(larger):
            ratio = large.seconds / small.seconds * 10 / (large.events / small.events)
            rows.append(
                Row(
                    f"{large.events:,} {kind} events relative to {small.events:,}",
                    f"{ratio:.1f} times as long",
                    f"<= {MOST_RATIO:.0f}",
                    ratio <= MOST_RATIO,
                    "for ten times as many",
                    {"ratio": ratio},
                )
            )
    return rows
