"""The matrix of generated changes: `python -m tests.chaos.checker.generated [RUN_DIR...]`.

Records a run of each scenario of `recording`, unless run directories are named, and tries changes of them: a
few of each run in turn, until so many are tried or the time is up. Tells on stderr how far it is. Prints how
many of each way and kind of line were caught, unknown, harmless and open, and by which reasons, and each that
was missed; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.checker.generated.changes import Source
from tests.chaos.checker.generated.judging import Outcome, Tried, draw, try_all
from tests.chaos.checker.generated.recording import SCENARIOS, record
from tests.chaos.checker.real_traces import load_trace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try generated changes of real traces.")
    parser.add_argument("runs", nargs="*", type=Path, help="Run directories; none: they are recorded.")
    parser.add_argument("--number", type=int, default=200, help="Changed traces of each run.")
    parser.add_argument("--at-once", type=int, default=1, help="Changes in each of them.")
    parser.add_argument("--pairs", action="store_true", help="As many again with two changes in each.")
    parser.add_argument("--minutes", type=float, default=40.0, help="Begin nothing after so many.")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    until = time.monotonic() + 60 * chosen.minutes
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="dledger-changes-") as folder:
        runs = chosen.runs or [_recorded(kind, Path(folder) / kind) for kind in SCENARIOS]
        sizes = (1, 2) if chosen.pairs else (chosen.at_once,)
        wanted = chosen.number * len(runs) * len(sizes)
        for batch in _in_turn(runs, sizes, chosen.number, chosen.seed, Path(folder) / "changed"):
            tried += batch
            for one in batch:
                if one.outcome is Outcome.MISSED:
                    print(one, flush=True)
            counts = Counter(one.outcome for one in tried)
            _tell(f"{len(tried)} of {wanted}: {', '.join(f'{n} {outcome}' for outcome, n in counts.items())}")
            if time.monotonic() > until:
                _tell("the time is up")
                break
    print(matrix(tried))
    unproved = sum(one.outcome is Outcome.UNKNOWN and bool(one.unproved) for one in tried)
    print(f"{unproved:6} unknown: a promise seems to be broken, and lines that are missing may be the reason")
    for (outcome, why), number in Counter((one.outcome, why) for one in tried for why in one.why).items():
        print(f"{number:6} {outcome}: {why}")
    return 1 if any(one.outcome is Outcome.MISSED for one in tried) else 0


def _recorded(kind: str, folder: Path) -> Path:
    _tell(f"recording {kind}")
    return asyncio.run(record(kind, folder))


def _in_turn(
    runs: Sequence[Path], sizes: Sequence[int], number: int, seed: int, folder: Path
) -> Iterator[list[Tried]]:
    """A batch of each run and size, and so on, until so many of each are tried."""
    drawn = {}
    for run in runs:
        source = Source(load_trace(run, "whole"))
        for at_once in sizes:
            drawn[run, at_once] = try_all(source, draw(source, seed, number, at_once), folder, seed)
    while drawn:
        for key in list(drawn):
            if batch := next(drawn[key], None):
                yield batch
            else:
                del drawn[key]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def matrix(tried: Sequence[Tried]) -> str:
    """Make a table of caught/unknown/harmless/open by way and kind of line; of a pair, the first counts."""
    counts = Counter(
        (one.changes[0].way.value, one.changes[0].kind.split("/")[0], one.outcome) for one in tried
    )
    ways = sorted({way for way, _, _ in counts})
    kinds = sorted({kind for _, kind, _ in counts})
    rows = [f"| | {' | '.join(kinds)} | all |", f"|---|{'---|' * (len(kinds) + 1)}"]
    for way in ways:
        cells = [_cell({o: counts[way, kind, o] for o in Outcome}) for kind in kinds]
        total = {o: sum(counts[way, kind, o] for kind in kinds) for o in Outcome}
        rows.append(f"| {way} | {' | '.join([*cells, _cell(total)])} |")
    everything = Counter(one.outcome for one in tried)
    return "\n".join([*rows, ", ".join(f"{outcome}: {everything[outcome]}" for outcome in Outcome)])


def _cell(counts: dict[Outcome, int]) -> str:
    if not any(counts.values()):
        return ""
    shown = "/".join(str(counts[o]) for o in Outcome if o is not Outcome.MISSED)
    return shown + (f" ({counts[Outcome.MISSED]} missed)" if counts[Outcome.MISSED] else "")


if __name__ == "__main__":
    sys.exit(main())
