"""Runs the checks over the tables, and says for each check and each run: valid, invalid, unknown, or not in
this trace."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chaos.checker.census import take_census
from chaos.checker.checks.registry import Check, Severity
from chaos.checker.engine import Engine, Row
from chaos.checker.find import Found, find, population_of
from chaos.checker.histories.models import ESSENTIAL_OF, model_of
from chaos.checker.needs import NEEDS, Need, needs_by_check, words
from chaos.checker.witness_lines import AT, add_lines
from chaos.checker.witness_times import add_times

#: Without these a run shows nothing about loss, whatever else is in its trace: one of each.
ESSENTIAL = (("L1",), ("L2",), ("L4",), ("L5",), ("L7",), ("L6b", "L6c"))


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    #: The trace has nothing that the check is about. Says nothing, in either direction.
    ABSENT = "not in this trace"


@dataclass(slots=True)
class Finding:
    """What one check found in one run. `violations` counts all, `witnesses` are the first of them. `unmet`:
    needs of the check that the trace does not meet, which is why the verdict is unknown."""

    check: Check
    verdict: Verdict
    population: int
    violations: int
    witnesses: list[Row]
    seconds: float
    unmet: tuple[Need, ...] = ()

    @property
    def warnings(self) -> int:
        return self.violations if self.check.severity is Severity.WARNING else 0


@dataclass(slots=True)
class RunResult:
    run: str
    verdict: Verdict = Verdict.UNKNOWN
    findings: list[Finding] = field(default_factory=list)
    census: dict[str, int] = field(default_factory=dict)
    #: Why the verdict is not "valid", one sentence each.
    reasons: list[str] = field(default_factory=list)


def judge(
    engine: Engine,
    checks: Sequence[Check],
    *,
    troubles: Mapping[str, Sequence[str]] | None = None,
    doubled: Container[str] = (),
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[RunResult]:
    """Run the checks. `troubles`: what is wrong with the files of a run; it is then not valid. `doubled`:
    runs that may have lines twice; they are not invalid either, whatever is found. `on_progress` is told how
    many checks are done, and how many there are."""
    census = take_census(engine)
    results = {run: RunResult(run, census=counts) for run, counts in sorted(census.items())}
    found = find(engine, checks, census, on_progress)
    for run, result in results.items():
        unmet = _unmet(found, checks, run, census[run])
        # A file that could not be read may hold what seems to be missing.
        unmet |= {Need.UNDERSTOOD} if (troubles or {}).get(run) else set()
        unmet |= {Need.ONCE} if run in doubled else set()
        # What the others need comes first.
        for check in sorted(checks, key=lambda c: c.severity is not Severity.VOID):
            population = population_of(check, census[run])
            violations = found.counts.get((check.id, run), 0) if population else 0
            verdict, without = _verdict(check, population, violations, unmet)
            result.findings.append(
                Finding(
                    check,
                    verdict,
                    population,
                    violations,
                    found.witnesses.get((check.id, run), []) if population else [],
                    found.seconds.get(check.id, 0.0),
                    without,
                )
            )
    findings = [finding for result in results.values() for finding in result.findings]
    if witnesses := [row for finding in findings for row in finding.witnesses]:
        add_lines(engine, witnesses)
    for result in results.values():
        _conclude(result, (troubles or {}).get(result.run, ()))
    add_times(
        engine, [row for one in results.values() for finding in broken(one) for row in finding.witnesses]
    )
    return list(results.values())


def broken(result: RunResult) -> list[Finding]:
    """What broke promises in a run."""
    return [finding for finding in result.findings if finding.verdict is Verdict.INVALID]


def _unmet(found: Found, checks: Sequence[Check], run: str, counts: Mapping[str, int]) -> set[Need]:
    """The needs that a run does not meet, as far as the checks that decide them were run."""
    deciding = needs_by_check()
    return {
        deciding[check.id]
        for check in checks
        if check.id in deciding and population_of(check, counts) and found.counts.get((check.id, run))
    }


def _verdict(
    check: Check, population: int, violations: int, unmet: set[Need]
) -> tuple[Verdict, tuple[Need, ...]]:
    """What a check says of a run, and for want of what it says no more."""
    if not population:
        return Verdict.ABSENT, ()
    if check.severity is Severity.VOID:
        return (Verdict.UNKNOWN if violations else Verdict.VALID), ()
    without = tuple(need for need in (check.needs if violations else check.clear_needs) if need in unmet)
    if without:
        return Verdict.UNKNOWN, without
    if violations and check.severity is Severity.HARD:
        return Verdict.INVALID, ()
    return Verdict.VALID, ()


def _conclude(result: RunResult, troubles: Sequence[str]) -> None:
    """Invalid beats unknown beats valid; and valid needs the essential checks to have had something to
    check."""
    by_id = {finding.check.id: finding for finding in result.findings}
    result.reasons = list(troubles)
    model = model_of(result.census)
    for names in ESSENTIAL if model is None else ESSENTIAL_OF[model]:
        if all(name not in by_id or by_id[name].verdict is Verdict.ABSENT for name in names):
            result.reasons.append(
                f"{' and '.join(names)} had nothing to check, and without it a run proves nothing"
            )
    verdict = Verdict.UNKNOWN if result.reasons else Verdict.VALID
    for finding in result.findings:
        if finding.verdict in (Verdict.INVALID, Verdict.UNKNOWN) and finding.violations:
            said = f"{finding.check.id}: {finding.violations} times not so: {finding.check.title}"
            without = f"; no proof, for want of {words(finding.unmet)}" if finding.unmet else ""
            result.reasons.append(said + without)
    result.reasons += _untold(result)
    verdicts = {finding.verdict for finding in result.findings}
    if Verdict.INVALID in verdicts:
        verdict = Verdict.INVALID
    elif Verdict.UNKNOWN in verdicts:
        verdict = Verdict.UNKNOWN
    result.verdict = verdict


def _untold(result: RunResult) -> list[str]:
    """For want of what which checks that found nothing say nothing."""
    silent: dict[Need, list[str]] = {}
    for finding in result.findings:
        for need in finding.unmet if not finding.violations else ():
            silent.setdefault(need, []).append(finding.check.id)
    return [
        f"for want of {words([need])}{_first_word(result, need)} nothing is said by {', '.join(ids)}"
        for need, ids in silent.items()
    ]


def _first_word(result: RunResult, need: Need) -> str:
    """What the check that decides a need has found first."""
    for finding in result.findings:
        if finding.check.id == NEEDS[need].by and finding.witnesses:
            return f" ({sentence(finding.check, finding.witnesses[0])})"
    return ""


def sentence(check: Check, witness: Row) -> str:
    """A witness in words."""
    return check.sentence.format_map(witness)


def line_of(witness: Row) -> str | None:
    """Where the lines stand that a witness tells of (`chaos.checker.witness_lines`); None: nowhere."""
    at = witness.get(AT)
    return at if isinstance(at, str) else None
