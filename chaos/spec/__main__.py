"""`python -m chaos.spec RUN_DIR...`: is the trace of a run one that the specification of the log explains?

Exit codes: 0 accepted, 1 refused, 2 unknown, 254 bad arguments. Of several runs the worst counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from chaos.spec.reading import read_trace
from chaos.spec.walk import Outcome, Verdict, walk

_EXIT = {Verdict.ACCEPTED: 0, Verdict.REFUSED: 1, Verdict.UNKNOWN: 2}
_WORST = (Verdict.REFUSED, Verdict.UNKNOWN, Verdict.ACCEPTED)
_BAD_ARGUMENTS = 254


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_BAD_ARGUMENTS, f"{self.prog}: {message}\n")


def describe(outcome: Outcome) -> str:
    """For people, several lines."""
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return f"accepted: each of {outcome.lines} lines has a step"
        case Verdict.UNKNOWN:
            return f"unknown: {outcome.why}"
    return (
        f"refused: {outcome.explained} of {outcome.lines} lines have a step, and then this has none:\n"
        f"  {outcome.line}\n  because: {outcome.why}\n  before it:\n    "
        + outcome.state.replace("\n", "\n    ")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="python -m chaos.spec", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    verdicts = []
    for run_dir in parser.parse_args(arguments).runs:
        try:
            outcome = walk(read_trace(run_dir))
        except OSError as error:
            print(f"{run_dir}: {error}: give the directory of a run, which has raw/", file=sys.stderr)
            return _BAD_ARGUMENTS
        verdicts.append(outcome.verdict)
        print(f"{run_dir}: {describe(outcome)}")
    return _EXIT[next(one for one in _WORST if one in verdicts)]


if __name__ == "__main__":
    sys.exit(main())
