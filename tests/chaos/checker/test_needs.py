"""Every check says what it needs, and says nothing of a trace that lacks it."""

from __future__ import annotations

import inspect
from pathlib import Path
from random import Random

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Part, Severity, hard, warning
from chaos.checker.completeness import CHECKS as COMPLETENESS
from chaos.checker.judge import RunResult, Verdict, judge
from chaos.checker.needs import EVIDENT, NEEDS, WHOLE, Need
from chaos.checker.synthetic import clean_trace
from chaos.checker.tables import make_tables
from chaos.trace.schema import Ev
from tests.chaos.checker.duck import DuckEngine

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "checker.md"
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


JUDGING = [check for check in CHECKS if check.severity is not Severity.VOID]
#: Something that is not there is part of what they find.
ABSENCES = [check.id for check in JUDGING if set(WHOLE) <= set(check.needs)]


def told(ids: list[str]) -> str:
    if len(ids) == len(JUDGING):
        return "all"
    rest = ids
    if set(ABSENCES) <= set(ids):
        rest = ["*absences*", *(id_ for id_ in ids if id_ not in ABSENCES)]
    return ", ".join(rest) or "-"


def rows() -> list[str]:
    """The table of the documentation, a line each."""
    found = []
    for need, spec in NEEDS.items():
        guilt = told([check.id for check in JUDGING if need in check.needs])
        clear = told([check.id for check in JUDGING if need in check.clear_needs])
        about = f"| {need} | {spec.by} | {spec.evidence} | {spec.writer} "
        found.append(f"{about}| {guilt} | {'the same' if clear == guilt else clear} |")
    return [*found, "", f"*absences*: {', '.join(ABSENCES)}."]


def test_the_documentation_shows_the_table() -> None:
    """Run this file as a module to write it anew."""
    page = DOCUMENTATION.read_text()
    missing = [row for row in rows() if row not in page.splitlines()]
    assert not missing, "\n".join(missing)


def write_table() -> None:
    """Put the table into the documentation."""
    head = (
        "| need | decided by | evidence | written by | no guilt without it of | no innocence without it of |"
    )
    page = DOCUMENTATION.read_text()
    begin = page.index("| need | decided by |")
    end = page.index("\n\n**Final reads.**", begin)
    DOCUMENTATION.write_text(
        page[:begin] + "\n".join([head, "|---|---|---|---|---|---|", *rows()]) + page[end:]
    )


def test_nobody_is_innocent_for_want_of_lines() -> None:
    for check in CHECKS:
        if check.severity is Severity.HARD:
            assert set(WHOLE) <= set(check.clear_needs), check.id
            assert set(check.needs) <= set(check.clear_needs), check.id


def result_of(folder: Path, *, doubled: bool = False, change: str = "") -> RunResult:
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
    assert result.verdict is Verdict.UNKNOWN, result.reasons
    # Messages that nobody is known to have sent.
    assert found["L4"].violations and found["L4"].verdict is Verdict.UNKNOWN
    assert found["L4"].unmet == (Need.WRITERS,)
    assert not found["L1"].violations and found["L1"].verdict is Verdict.UNKNOWN
    assert any("client:p2" in reason and "L1" in reason for reason in result.reasons), result.reasons


def test_lines_that_may_stand_twice_prove_no_guilt_and_no_innocence(tmp_path: Path) -> None:
    result = result_of(tmp_path, doubled=True)
    told = {f.verdict for f in result.findings if f.check.severity is Severity.HARD}
    assert told == {Verdict.UNKNOWN, Verdict.ABSENT}
    assert all(set(EVIDENT) <= set(c.needs) for c in CHECKS if c.severity is not Severity.VOID)


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
    assert verdicts == {trace.name: Verdict.UNKNOWN for trace in dirs}


def test_a_copy_of_a_file_that_is_not_byte_equal_proves_no_guilt(tmp_path: Path) -> None:
    trace = clean_trace("r", seed=3, rounds=6)
    for key in (("client:c1", 0), ("node:n2", 0), ("client:p1", 0)):
        trace.files[key] += [dict(line, wall=int(line["wall"]) + 1) for line in trace.files[key]]
    trace.write(tmp_path / "r")
    engine = DuckEngine()
    engine.load([tmp_path / "r"])
    make_tables(engine)
    (result,) = judge(engine, CHECKS)
    assert {f.check.id for f in result.findings if f.verdict is Verdict.INVALID} == set()
    assert sum(f.violations > 0 for f in result.findings if f.check.severity is Severity.HARD) > 1
    assert result.verdict is Verdict.UNKNOWN


if __name__ == "__main__":
    write_table()
