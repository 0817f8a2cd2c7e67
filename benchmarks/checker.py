"""The Spark checker over synthetic traces: time of all checks, start of Spark included."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.common import BenchError, Row, say, scratch
from chaos.checker.synthetic import clean_trace

MOST_SECONDS = 20.0
_PRODUCERS = 8
_LINES_A_ROUND = 127
SIZES = (100_000,)
LONG_SIZES = (100_000, 1_000_000)


async def run(seconds: float, *, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """`seconds` does not matter: a trace is checked once. The target is for 100,000 events."""
    del seconds
    with scratch("checker") as folder:
        return [await _check(folder / str(size), size) for size in sizes]


async def _check(run_dir: Path, size: int) -> Row:
    say(f"checker: making a trace of about {size:,} events")
    trace = clean_trace("bench", rounds=size // _LINES_A_ROUND, faults=6, producers=_PRODUCERS)
    events = sum(len(lines) for lines in trace.files.values())
    trace.write(run_dir)
    del trace
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.checker.main", str(run_dir)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    took = time.perf_counter() - started
    if process.returncode != 0:
        raise BenchError(f"dledger-check ended with {process.returncode}: {said.decode()[-500:]}")
    results = json.loads((run_dir / "report" / "results.json").read_text())
    small = size == SIZES[0]
    return Row(
        f"check of {events:,} events",
        f"{took:.1f} s",
        f"<= {MOST_SECONDS:.0f} s" if small else "",
        took <= MOST_SECONDS if small else None,
        f"all {len(results['runs'][0]['checks'])} checks and the start of Spark",
        {"seconds": took, "events": events},
    )
