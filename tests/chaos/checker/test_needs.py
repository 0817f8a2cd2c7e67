"""Every check says what it needs, and says nothing of a trace that lacks it."""

from __future__ import annotations

import inspect
from pathlib import Path
from random import Random

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Part, Severity, hard, warning
from chaos.checker.completeness import CHECKS as COMPLETENESS
from chaos.checker.judge import CheckVerdict, RunJudgment, judge
from chaos.checker.needs import EVIDENT, NEEDS, WHOLE, Need
from chaos.checker.tables import make_tables
from chaos.trace.schema import Ev
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.mutations.raft import lose_log_in_the_middle
from tests.chaos.checker.mutations.receive import receive_again_with_reason
from tests.chaos.checker.runs import short_trace
from tests.chaos.checker.synthetic import clean_trace

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "checks" / "README.md"
BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.parametrize("register", [hard, warning])
def test_a_check_without_declared_needs_cannot_be_registered(register: object) -> None:
    with pytest.raises(TypeError, match="needs"):
        register("Z1", "title", "lines", "sentence", Part("writers", "true", "src"))  # type: ignore[operator]
    with pytest.raises(ValueError, match="Z1"):
        register("Z1", "title", "lines", "sentence", needs=())  # type: ignore[operator]
    for name, parameter in inspect.signature(Check).parameters.items():
        assert parameter.default is inspect.Parameter.empty, name


def test_every_need_is_decided_by_one_check_of_the_trace_and_asked_for_by_some() -> None:
    assert set(NEEDS) == set(Need)
    deciding = [spec.by for spec in NEEDS.values()]
    assert len(deciding) == len(set(deciding))
    assert all(BY_ID[id_].severity is Severity.VOID for id_ in deciding)
    assert {check.id for check in COMPLETENESS} == set(deciding) - {"H0"}
    asked = {need for check in CHECKS for need in check.clear_needs}
    assert asked == set(Need)


def test_the_documentation_lists_all_needs() -> None:
    page = DOCUMENTATION.read_text()
    rows = [f"| {need} | {spec.by} | {spec.evidence} | {spec.writer} |" for need, spec in NEEDS.items()]
    assert [row for row in rows if row not in page] == []


def test_nobody_is_innocent_for_want_of_lines() -> None:
    for check in CHECKS:
        if check.severity is Severity.HARD:
            assert set(WHOLE) <= set(check.clear_needs), check.id
            assert set(check.needs) <= set(check.clear_needs), check.id


def result_of(folder: Path, *, doubled: bool = False, change: str = "") -> RunJudgment:
    trace = clean_trace("r", seed=3, rounds=6)
    if change == "writer":
        del trace.files["client:p2", 0]
    trace.write(folder / "r")
    engine = DuckEngine()
    engine.load([folder / "r"])
    make_tables(engine)
    (result,) = judge(engine, CHECKS, doubled={"r"} if doubled else set())
    return result


def test_what_a_check_does_not_find_in_a_hole_is_unknown(tmp_path: Path) -> None:
    result = result_of(tmp_path, change="writer")
    found = {finding.check.id: finding for finding in result.findings}
    assert result.verdict is CheckVerdict.UNKNOWN, result.reasons
    # Messages that nobody is known to have sent.
    assert found["L4"].violations and found["L4"].verdict is CheckVerdict.UNKNOWN
    assert found["L4"].unmet == (Need.WRITERS,)
    assert not found["L1"].violations and found["L1"].verdict is CheckVerdict.UNKNOWN
    assert any("client:p2" in reason and "L1" in reason for reason in result.reasons), result.reasons


def test_lines_that_may_stand_twice_prove_no_guilt_and_no_innocence(tmp_path: Path) -> None:
    result = result_of(tmp_path, doubled=True)
    told = {f.verdict for f in result.findings if f.check.severity is Severity.HARD}
    assert told == {CheckVerdict.UNKNOWN, CheckVerdict.ABSENT}
    assert all(set(EVIDENT) <= set(c.needs) for c in CHECKS if c.severity is not Severity.VOID)


@pytest.mark.slow
def test_a_line_that_is_not_understood_proves_no_guilt(tmp_path: Path) -> None:
    """Whichever it is: its number is there, and what it says is not."""
    rng, dirs = Random(3), []
    for number in range(60):
        trace = clean_trace(f"r{number}", broker=number % 3 > 0, seed=3, rounds=6)
        rng.choice([line for line in trace.all_lines() if line["ev"] != Ev.META])["ev"] = "gossip"
        trace.write(tmp_path / trace.run)
        dirs.append(tmp_path / trace.run)
    engine = DuckEngine()
    engine.load(dirs)
    make_tables(engine)
    verdicts = {result.run: result.verdict for result in judge(engine, CHECKS)}
    assert verdicts == {trace.name: CheckVerdict.UNKNOWN for trace in dirs}


@pytest.mark.slow
def test_scrambled_lines_prove_no_guilt(tmp_path: Path) -> None:
    """The lines of one writer are in another order than it wrote them, and the clock shows it."""
    dirs = []
    for change in (None, receive_again_with_reason, lose_log_in_the_middle):
        for number, key in enumerate(short_trace("r", broker=change is not lose_log_in_the_middle).files):
            name = f"{change.__name__ if change else 'clean'}-{number}"
            trace = short_trace(name, broker=change is not lose_log_in_the_middle)
            if change is not None:
                change(trace)
            first, *between, last = trace.files[key]
            Random(number).shuffle(between)
            trace.files[key] = [first, *between, last]
            trace.renumber()
            # Without enough lines the order stays, or all of them are of one moment.
            if len(between) > 8:
                trace.write(tmp_path / name)
                dirs.append(tmp_path / name)
    engine = DuckEngine()
    engine.load(dirs)
    make_tables(engine)
    verdicts = {result.run: result.verdict for result in judge(engine, CHECKS)}
    assert verdicts == {path.name: CheckVerdict.UNKNOWN for path in dirs}
    assert len(dirs) > 20


def test_a_copy_of_a_file_that_is_not_byte_equal_proves_no_guilt(tmp_path: Path) -> None:
    trace = clean_trace("r", seed=3, rounds=6)
    for key in (("client:c1", 0), ("node:n2", 0), ("client:p1", 0)):
        trace.files[key] += [dict(line, wall=int(line["wall"]) + 1) for line in trace.files[key]]
    trace.write(tmp_path / "r")
    engine = DuckEngine()
    engine.load([tmp_path / "r"])
    make_tables(engine)
    (result,) = judge(engine, CHECKS)
    assert {f.check.id for f in result.findings if f.verdict is CheckVerdict.INVALID} == set()
    assert sum(f.violations > 0 for f in result.findings if f.check.severity is Severity.HARD) > 1
    assert result.verdict is CheckVerdict.UNKNOWN
