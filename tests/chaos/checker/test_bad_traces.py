"""A trace that is not whole is never called valid, and what is wrong with it is said."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Severity
from chaos.checker.intake import IntakeError, inspect_runs
from chaos.checker.judge import CheckVerdict, RunJudgment, sentence
from chaos.checker.main import check_loaded
from chaos.trace.parquet import convert
from tests.chaos.checker.bad_traces import BAD, write_empty_handed, write_twice
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.synthetic import clean_trace

pytestmark = pytest.mark.xdist_group("spark")

FEW = tuple(c for c in CHECKS if c.severity is Severity.VOID or c.id in {"L1", "L2", "L4", "L5", "L6b", "L7"})


def told(result: RunJudgment) -> list[str]:
    """The reasons, and what the checks of the trace itself say."""
    witnesses = [
        sentence(finding.check, row)
        for finding in result.findings
        if finding.check.severity is Severity.VOID
        for row in finding.witnesses
    ]
    return [*result.reasons, *witnesses]


@pytest.mark.slow
@WAITS_FOR_SPARK
def test_bad_traces_are_never_valid(by_spark: dict[str, RunJudgment]) -> None:
    for mutate, said in BAD:
        result = by_spark[mutate.__name__]
        assert result.verdict is CheckVerdict.UNKNOWN, (mutate.__name__, result.reasons)
        assert any(re.fullmatch(said, text) for text in told(result)), (mutate.__name__, told(result))
    # Half a line is what a kill may leave.
    assert by_spark["tear_the_killed"].verdict is CheckVerdict.VALID, by_spark["tear_the_killed"].reasons


def by_duck(dirs: list[Path], checks: tuple[Check, ...] = CHECKS) -> dict[str, RunJudgment]:
    engine = DuckEngine()
    engine.load(dirs)
    results, _ = check_loaded(engine, inspect_runs(dirs), checks)
    return {result.run: result for result in results}


def test_traces_that_show_nothing_are_never_valid(tmp_path: Path) -> None:
    results = by_duck(write_empty_handed(tmp_path), FEW)
    for run, said in (
        ("only_unknown", r"\d+ of \d+ sends have no known outcome"),
        ("no_faults", "faults planned: 0, effective: 0"),
        ("nothing", "L1 had no data to check, so the run is inconclusive"),
    ):
        assert results[run].verdict is CheckVerdict.UNKNOWN, results[run].reasons
        assert any(re.fullmatch(said, text) for text in told(results[run])), (run, told(results[run]))


def assert_is_a_copy(result: RunJudgment) -> None:
    # Who has every line twice seems to have been made master twice.
    fired = {finding.check.id for finding in result.findings if finding.violations}
    assert "S6" in fired and result.verdict is CheckVerdict.UNKNOWN, "a copy of a run breaks no promise"
    assert any("is also in" in reason for reason in result.reasons)


@pytest.mark.slow
def test_a_run_in_two_directories_is_no_proof(tmp_path: Path) -> None:
    assert_is_a_copy(by_duck(write_twice(tmp_path))["twice"])


@pytest.mark.slow
@pytest.mark.long
@WAITS_FOR_SPARK
def test_a_converted_run_in_two_directories_is_no_proof(by_spark: dict[str, RunJudgment]) -> None:
    assert_is_a_copy(by_spark["converted_twice"])


def test_a_converted_file_that_was_copied_is_a_trouble_of_both_directories(tmp_path: Path) -> None:
    clean_trace("r", rounds=2).write(tmp_path / "r")
    clean_trace("other", rounds=3).write(tmp_path / "other")
    for run in ("r", "other"):
        convert(tmp_path / run, remove_raw=True)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    dirs = [tmp_path / name for name in ("r", "other", "copy")]
    intake = inspect_runs(dirs)
    assert intake.copied == {dirs[0], dirs[2]} == set(intake.troubles)
    shutil.copy(dirs[1] / "parquet" / "events.parquet", dirs[1] / "parquet" / "again.parquet")
    assert dirs[1] in inspect_runs(dirs[:2]).copied


def test_directories_without_a_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match="not a directory"):
        inspect_runs([tmp_path / "nowhere"])
    with pytest.raises(IntakeError, match="contains no trace"):
        inspect_runs([tmp_path])
    clean_trace("r", rounds=2).write(tmp_path / "r")
    with pytest.raises(IntakeError, match="named twice"):
        inspect_runs([tmp_path / "r", tmp_path / "r" / "." / ""])
