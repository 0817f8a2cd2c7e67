"""The Spark checker over synthetic traces: time of all checks, with the start of Spark, memory, growth."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.common import BenchError, Row, say, scratch
from chaos.checker.synthetic import write_clean_trace

SIZES = (100_000,)
LONG_SIZES = (100_000, 1_000_000, 10_000_000)
#: By size: the most seconds that may pass, the start of Spark included.
MOST_SECONDS = {100_000: 20.0, 10_000_000: 90.0}
MOST_GIB = 3.0
LEAST_LINES_A_SECOND = 200_000
#: Ten times the events may take so many times as long.
MOST_RATIO = 12.0
_PRODUCERS = 8
_LINES_A_ROUND = 127
_SAMPLE_SECONDS = 0.2
_BYTES_READ = re.compile(rb"read \d+ bytes of lines in ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class Checked:
    """One run of the command. `seconds` in all, `reading` of them until lines stood in columns; `peak_bytes`
    of it and its children."""

    size: int
    events: int
    seconds: float
    reading: float
    peak_bytes: int
    checks: int


async def run(seconds: float, *, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """`seconds` does not matter: a trace is checked once."""
    del seconds
    found = []
    with scratch("checker") as folder:
        for size in sizes:
            found.append(await _check(folder / str(size), size))
            shutil.rmtree(folder / str(size))
    return [row for one in found for row in _rows(one)] + _growth(found)


async def _check(run_dir: Path, size: int) -> Checked:
    say(f"checker: making a trace of about {size:,} events")
    rounds = size // _LINES_A_ROUND
    events = write_clean_trace(run_dir, "bench", rounds=rounds, faults=6, producers=_PRODUCERS)
    say(f"checker: checking {events:,} events")
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.checker.main", str(run_dir), "--work", str(run_dir)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    watching = asyncio.create_task(_peak(process.pid))
    _, said = await process.communicate()
    took = time.perf_counter() - started
    if process.returncode != 0:
        watching.cancel()
        raise BenchError(f"dledger-check ended with {process.returncode}: {said.decode()[-500:]}")
    results = json.loads((run_dir / "report" / "results.json").read_text())
    read = _BYTES_READ.search(said)
    assert read is not None, said
    return Checked(size, events, took, float(read[1]), await watching, len(results["runs"][0]["checks"]))


async def _peak(pid: int) -> int:
    """The most bytes that a process and its children had in memory together, until it ends."""
    peak = 0
    while resident := sum(_resident(each) for each in _family(pid)):
        peak = max(peak, resident)
        await asyncio.sleep(_SAMPLE_SECONDS)
    return peak


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
    rate, gib = one.events / one.reading, one.peak_bytes / 2**30
    large = one.size == max(LONG_SIZES)
    return [
        Row(
            f"check of {one.events:,} events",
            f"{one.seconds:.1f} s",
            f"<= {most:.0f} s" if most else "",
            one.seconds <= most if most else None,
            f"all {one.checks} checks and the start of Spark",
            {"seconds": one.seconds, "events": one.events},
        ),
        Row(
            f"memory for {one.events:,} events",
            f"{gib:.2f} GiB",
            f"<= {MOST_GIB:.0f} GiB" if large else "",
            gib <= MOST_GIB if large else None,
            "at most, of all processes",
            {"bytes": one.peak_bytes, "events": one.events},
        ),
        Row(
            f"reading of {one.events:,} raw events",
            f"{rate:,.0f}/s",
            f">= {LEAST_LINES_A_SECOND:,}/s" if large else "",
            rate >= LEAST_LINES_A_SECOND if large else None,
            "JSONL into columns",
            {"events_per_second": rate},
        ),
    ]


def _growth(found: list[Checked]) -> list[Row]:
    """How many times as long ten times as many events take. Small traces tell of the start only."""
    larger = [one for one in found if one.size >= 1_000_000]
    rows = []
    for small, large in pairwise(larger):
        ratio = large.seconds / small.seconds * 10 / (large.events / small.events)
        rows.append(
            Row(
                f"{large.events:,} events beside {small.events:,}",
                f"{ratio:.1f} times as long",
                f"<= {MOST_RATIO:.0f}",
                ratio <= MOST_RATIO,
                "for ten times as many",
                {"ratio": ratio},
            )
        )
    return rows
