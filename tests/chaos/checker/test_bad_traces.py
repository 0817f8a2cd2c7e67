"""A trace that is not whole is never called valid, and what is wrong with it is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.intake import IntakeError, take_in
from chaos.checker.judge import RunResult, Verdict, sentence
from chaos.checker.registry import Severity
from chaos.checker.synthetic import clean_trace
from tests.chaos.checker.bad_traces import BAD, write_bad_traces
from tests.chaos.checker.conftest import FEW, CheckRuns

pytestmark = pytest.mark.xdist_group("spark")


def told(result: RunResult) -> list[str]:
    """The reasons, and what the checks of the trace itself say."""
    witnesses = [
        sentence(finding.check, row)
        for finding in result.findings
        if finding.check.severity is Severity.VOID
        for row in finding.witnesses
    ]
    return [*result.reasons, *witnesses]


#: Who has every line twice seems to have been made master twice.
TWICE_IS_TOO_OFTEN = tuple(check for check in CHECKS if check.id == "S6")


def test_bad_traces_are_never_valid(check_runs: CheckRuns, tmp_path: Path) -> None:
    found = check_runs(*write_bad_traces(tmp_path), checks=FEW + TWICE_IS_TOO_OFTEN)
    fired = [f for f in found["twice"].findings if f.check in TWICE_IS_TOO_OFTEN and f.violations]
    assert fired and found["twice"].verdict is Verdict.UNKNOWN, "a copy of a run breaks no promise"
    assert any("is also in" in reason for reason in found["twice"].reasons)
    for spoil, said in BAD:
        result = found[spoil.__name__]
        assert result.verdict is Verdict.UNKNOWN, (spoil.__name__, result.reasons)
        assert any(re.fullmatch(said, text) for text in told(result)), (spoil.__name__, told(result))
    for run, said in (
        ("only_unknown", r"\d+ of \d+ sends have no known outcome"),
        ("no_faults", "faults planned: 0, that took effect: 0"),
        ("nothing", "L1 had nothing to check, and without it a run proves nothing"),
    ):
        assert found[run].verdict is Verdict.UNKNOWN, found[run].reasons
        assert any(re.fullmatch(said, text) for text in told(found[run])), (run, told(found[run]))
    # Half a line is what a kill may leave.
    assert found["tear_the_killed"].verdict is Verdict.VALID, found["tear_the_killed"].reasons


def test_directories_without_a_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match="no directory"):
        take_in([tmp_path / "nowhere"])
    with pytest.raises(IntakeError, match="holds no trace"):
        take_in([tmp_path])
    clean_trace("r", rounds=2).write(tmp_path / "r")
    with pytest.raises(IntakeError, match="named twice"):
        take_in([tmp_path / "r", tmp_path / "r" / "." / ""])
