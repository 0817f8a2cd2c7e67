"""Changed traces judged by the second engine, many at a time, and what became of each."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from chaos.checker.checks import CHECKS
from chaos.checker.judge import CheckVerdict, RunJudgment, judge
from chaos.checker.tables import make_tables
from chaos.trace.schema import RAW_DIR, file_name
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.generated.changes import Change, Source, Target
from tests.chaos.checker.generated.harmless import open_reason, reason
from tests.chaos.checker.synthetic import Trace

#: Changed traces that are judged together: planning a hundred queries takes longer than running them.
_TOGETHER = 40


class Outcome(StrEnum):
    CAUGHT = "caught"
    UNKNOWN = "unknown"
    HARMLESS = "harmless"
    #: Judged valid, and on the list of what the checker is known not to see.
    OPEN = "open"
    #: Judged valid, and on no list: a defect of the checker.
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Tried:
    """One changed trace. `fired`: the checks that found something; `unproved`: those of them to which it is
    no proof."""

    outcome: Outcome
    changes: list[Change]
    fired: frozenset[str]
    unproved: frozenset[str]

    @property
    def why(self) -> list[str]:
        """Of what was judged valid: the classes in which its changes are."""
        if self.outcome in (Outcome.CAUGHT, Outcome.UNKNOWN):
            return []
        return [reason(one) or open_reason(one) for one in self.changes]

    def __str__(self) -> str:
        return f"{self.outcome} {sorted(self.fired)}: " + "; ".join(map(str, self.changes))


def draw(source: Source, seed: int, number: int, at_once: int = 1) -> list[list[Target]]:
    """So many times `at_once` targets. Every target comes before any comes again."""
    random, drawn = Random(seed), list[Target]()
    while len(drawn) < number * at_once:
        targets = source.targets()
        random.shuffle(targets)
        drawn += targets
    return [drawn[k * at_once : (k + 1) * at_once] for k in range(number)]


def try_all(
    source: Source, drawn: Sequence[Sequence[Target]], folder: Path, seed: int
) -> Iterator[list[Tried]]:
    """Make each of the drawn changes and judge it; some at a time. `folder` is emptied on the way.

    Most files of a changed trace are as they were recorded: those are written and read once.
    """
    for first in range(0, len(drawn), _TOGETHER):
        source.trace.write(folder / source.trace.run)
        changes: dict[str, list[Change]] = {}
        files: dict[str, list[Path]] = {}
        for number, targets in enumerate(drawn[first : first + _TOGETHER], first):
            # A line that is given another `run` is a run of its own, which is judged with this one.
            run = f"{number}."
            trace, changes[run] = source.changed(targets, Random(f"{seed} {number}"))
            files[run] = _write(trace, source.trace, folder, run)
        tried = list(_judge(source.trace.run, files, changes))
        shutil.rmtree(folder)
        yield tried


def _write(trace: Trace, recorded: Trace, folder: Path, run: str) -> list[Path]:
    """Write the files that are not as they were recorded; where each file of the trace is."""
    others = {key: lines for key, lines in trace.files.items() if lines != recorded.files[key]}
    Trace(run, others).write(folder / run)
    return [
        folder / (run if key in others else recorded.run) / RAW_DIR / file_name(*key)
        for key, lines in trace.files.items()
        if lines
    ]


def _judge(recorded: str, files: dict[str, list[Path]], changes: dict[str, list[Change]]) -> Iterator[Tried]:
    engine = DuckEngine()
    engine.load_shared(recorded, files)
    make_tables(engine)
    found: dict[str, list[RunJudgment]] = defaultdict(list)
    for result in judge(engine, CHECKS):
        found[result.run.partition(".")[0] + "."].append(result)
    for run, made in changes.items():
        verdicts = {result.verdict for result in found[run]}
        findings = [f for result in found[run] for f in result.findings if f.violations]
        yield Tried(
            _outcome(verdicts, made),
            made,
            frozenset(f.check.id for f in findings),
            frozenset(f.check.id for f in findings if f.unmet),
        )


def _outcome(verdicts: set[CheckVerdict], changes: list[Change]) -> Outcome:
    if CheckVerdict.INVALID in verdicts:
        return Outcome.CAUGHT
    if verdicts != {CheckVerdict.VALID}:
        return Outcome.UNKNOWN
    if all(map(reason, changes)):
        return Outcome.HARMLESS
    return Outcome.OPEN if all(reason(one) or open_reason(one) for one in changes) else Outcome.MISSED
