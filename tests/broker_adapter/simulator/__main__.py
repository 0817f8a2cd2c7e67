"""`python -m tests.broker_adapter.simulator`: simulated clusters with brokers under faults, one per seed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from dledger.testing.profile import BAD_DAYS
from dledger.testing.profile import FAULTS as LOG_FAULTS
from tests.broker_adapter.simulator.run import FAULTS, RunResult, run_seed

MS_PER_HOUR = 3_600_000
FAILURES_SHOWN = 3


def main(arguments: list[str] | None = None) -> int:
    """0 if every seed kept every promise and every fault has occurred, 1 otherwise."""
    options = _parser().parse_args(arguments)
    if options.trace is not None:
        return _trace_one(options.first, options.trace)
    begin = time.monotonic()
    totals: Counter[str] = Counter()
    failures: list[RunResult] = []
    good: list[RunResult] = []
    for done, result in enumerate(_results(options), start=1):
        totals.update(result.counts)
        totals["virtual ms"] += result.virtual_ms
        (good if result.failure is None else failures).append(result)
        if result.failure is not None and len(failures) <= FAILURES_SHOWN:
            print(result.failure, flush=True)
        if done % max(1, options.seeds // 20) == 0:
            elapsed = time.monotonic() - begin
            print(f"{done}/{options.seeds} seeds, {len(failures)} failed, {elapsed:.0f} s", flush=True)
    _summary(totals, good, failures, time.monotonic() - begin)
    never = [name for name in (*LOG_FAULTS, *BAD_DAYS, *FAULTS) if not totals[f"faults: {name}"]]
    # In a handful of seeds a fault may well not come up; in hundreds, its absence is the simulator's fault.
    if never and options.seeds >= 100:
        print(f"faults that never occurred: {', '.join(never)}")
        return 1
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.broker_adapter.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run seeds (2)")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="run the first seed only, and write its trace"
    )
    return parser


def _results(options: argparse.Namespace) -> Iterator[RunResult]:
    seeds = range(options.first, options.first + options.seeds)
    if options.jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=4)


def _trace_one(seed: int, path: Path) -> int:
    with path.open("w", encoding="utf-8") as sink:
        result = run_seed(seed, sink=sink)
    print(result.failure or f"seed {seed}: every promise kept in {result.virtual_ms} virtual ms")
    print(f"trace: {path}")
    return 1 if result.failure else 0


def _summary(totals: Counter[str], good: list[RunResult], failures: list[RunResult], elapsed: float) -> None:
    hours = totals.pop("virtual ms") / MS_PER_HOUR
    print(f"\n{len(good) + len(failures)} runs, {hours:.2f} simulated hours, {elapsed:.0f} s")
    for name in sorted(totals):
        print(f"  {name:<44} {totals[name]:>10}")
    _times("healing to a writable master", [result.writable_ms for result in good])
    _times("healing to equal logs, all consumed", [result.heal_ms for result in good])
    if failures:
        by_rule = Counter(result.rule for result in failures).most_common()
        print(f"{len(failures)} seeds FAILED: {', '.join(f'{rule} x{n}' for rule, n in by_rule)}")
        print(f"failed seeds: {', '.join(str(result.seed) for result in failures[:50])}")
    else:
        print("every promise kept")


def _times(what: str, times_ms: list[int]) -> None:
    if times_ms:
        ordered = sorted(times_ms)
        p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        print(f"  {what}, ms: median {ordered[len(ordered) // 2]}, p99 {p99}, max {ordered[-1]}")


if __name__ == "__main__":
    sys.exit(main())
