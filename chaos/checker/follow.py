"""Watches a run that goes on: checks what is written so far again and again, until something is broken or
all is written.

Of a file that still grows, its whole lines count: they are never changed again. What one writer has written
is a beginning of what it will write, but the files of different writers do not end at the same moment. So
only those checks are looked at that can only get worse: what they find is made of lines that are there, and
no further line takes it away. A check that misses something would cry wolf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.checker.checks import CHECKS
from chaos.checker.judge import RunResult, Verdict
from chaos.checker.needs import NEEDS, Need
from chaos.trace.schema import RAW_DIR, SUFFIX

#: Checks that can only get worse. Not: L2 (the completion may still tell of a retry), R12 (a truncation may
#: still be told of), C3 and S9 (another consumer's lines explain it), A5 (the answer may still come).
MONOTONE = (
    *("L1", "L5", "L7", "L8", "L9", "L10", "L11", "P3"),
    *("R1", "R2", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R13", "R19", "R20"),
    *("S1", "S3", "S4", "S11", "S12", "A6", "C11", "C13"),
)
#: Holds as soon as every expected writer has ended, or was killed.
_ALL_WRITTEN = "W7"
#: While a run goes on, the files of all lives of nodes are taken to be there: only its end says which there
#: were. What else those of `MONOTONE` need can be said of a beginning, too.
ASSUMED = frozenset({Need.LIVES})
_NEEDED = {spec.by for spec in NEEDS.values() if spec.from_prefix}
WATCHED = tuple(check for check in CHECKS if check.id in {*MONOTONE, _ALL_WRITTEN, *_NEEDED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why the watch ended. `broken`: what was found by then; None: all was written, or nothing more came."""

    broken: list[RunResult] | None
    looks: int


def follow(
    run_dirs: Sequence[Path],
    look: Callable[[], list[RunResult]],
    pause: Callable[[], None],
    *,
    patience: int,
) -> Outcome:
    """Look, and look again after each pause in which something was written.

    `look` judges `WATCHED` by what is there. After `patience` pauses in which nothing was written the run
    is taken to be over.
    """
    looks, quiet, seen = 0, 0, -1
    while quiet < patience:
        written = bytes_of(run_dirs)
        if written == seen or not written:
            quiet += 1
        else:
            quiet, seen, looks = 0, written, looks + 1
            results = look()
            if any(result.verdict is Verdict.INVALID for result in results):
                return Outcome(results, looks)
            if results and all(_is_written(result) for result in results):
                return Outcome(None, looks)
        pause()
    return Outcome(None, looks)


def bytes_of(run_dirs: Sequence[Path]) -> int:
    """How much is written in all runs."""
    files = (path for run_dir in run_dirs for path in (run_dir / RAW_DIR).glob(f"*{SUFFIX}"))
    return sum(path.stat().st_size for path in files)


def _is_written(result: RunResult) -> bool:
    return not any(f.violations for f in result.findings if f.check.id == _ALL_WRITTEN)
