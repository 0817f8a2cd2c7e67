"""The matrix of generated changes: `python -m tests.chaos.checker.generated [RUN_DIR...]`.

Records a run of each scenario of `recording`, unless run directories are named, and tries changes of them.
Prints how many of each way and kind of line were caught, unknown, harmless and open, and by which reasons,
and each that was missed; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tests.chaos.checker.generated.changes import Source
from tests.chaos.checker.generated.judging import Outcome, Tried, draw, try_all
from tests.chaos.checker.generated.recording import SCENARIOS, record
from tests.chaos.checker.real_traces import load_trace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try generated changes of real traces.")
    parser.add_argument("runs", nargs="*", type=Path, help="Run directories; none: they are recorded.")
    parser.add_argument("--number", type=int, default=2000, help="Changed traces of each run.")
    parser.add_argument("--at-once", type=int, default=1, help="Changes in each of them.")
    parser.add_argument("--pairs", action="store_true", help="As many again with two changes in each.")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="dledger-changes-") as folder:
        runs = chosen.runs or [asyncio.run(record(kind, Path(folder) / kind)) for kind in SCENARIOS]
        for run, at_once in product(runs, (1, 2) if chosen.pairs else (chosen.at_once,)):
            source = Source(load_trace(run, "whole"))
            drawn = draw(source, chosen.seed, chosen.number, at_once)
            for one in try_all(source, drawn, Path(folder) / "changed", chosen.seed):
                tried.append(one)
                if one.outcome is Outcome.MISSED:
                    print(one, flush=True)
    print(matrix(tried))
    for (outcome, why), number in Counter((one.outcome, why) for one in tried for why in one.why).items():
        print(f"{number:6} {outcome}: {why}")
    return 1 if any(one.outcome is Outcome.MISSED for one in tried) else 0


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
