"""The alarm is tested: every planted defect makes exactly the checks fire that are about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Severity
from chaos.checker.judge import CheckVerdict, RunJudgment, judge
from chaos.checker.tables import make_tables
from chaos.plans.scenario import TAKING
from chaos.trace.schema import Ev
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.mutations.base import MUTATIONS, Mutation, lines
from tests.chaos.checker.runs import for_spark
from tests.chaos.checker.synthetic import clean_trace
from tests.conftest import is_long

pytestmark = pytest.mark.xdist_group("spark")


def fired(result: RunJudgment) -> set[str]:
    return {finding.check.id for finding in result.findings if finding.violations}


@pytest.fixture(scope="module")
def judged(mutated: dict[str, tuple[Path, RunJudgment]]) -> dict[str, RunJudgment]:
    return {name: result for name, (_, result) in mutated.items()}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_exactly_the_expected_checks_fire(mutation: Mutation, judged: dict[str, RunJudgment]) -> None:
    result = judged[mutation.name]
    # The lines that a defect adds need not say all that their like say; that alone makes nobody guilty.
    assert fired(result) - {"W14"} == mutation.expected - {"W14"}, result.reasons
    assert "W14" not in mutation.expected or "W14" in fired(result)
    severities = {check.severity for check in CHECKS if check.id in mutation.expected}
    assert (result.verdict is CheckVerdict.VALID) == (severities <= {Severity.WARNING})


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(TAKING) - {"stop", "add"}))
def test_a_writer_that_a_fault_took_away_need_not_end_in_peace(kind: str, tmp_path: Path) -> None:
    trace = clean_trace("taken", seed=3)
    kills = lines(trace, Ev.FAULT, f="kill")
    for line in kills:
        line["f"] = kind
    assert kills
    trace.write(tmp_path / "taken")
    engine = DuckEngine()
    engine.load([tmp_path / "taken"])
    make_tables(engine)
    [result] = judge(engine, CHECKS)
    assert result.verdict is CheckVerdict.VALID, result.reasons


def test_damage_that_is_told_of_is_no_loss_but_hides_none(judged: dict[str, RunJudgment]) -> None:
    assert judged["damage_is_told_of"].verdict is CheckVerdict.UNKNOWN
    assert judged["damage_is_told_of_below_a_broker"].verdict is CheckVerdict.UNKNOWN
    assert judged["more_is_gone_than_is_damaged"].verdict is CheckVerdict.INVALID


@pytest.mark.parametrize("broker", [True, False])
def test_clean_traces_are_valid(broker: bool, judged: dict[str, RunJudgment]) -> None:
    result = judged[f"clean_{broker}"]
    assert (result.verdict, result.reasons, fired(result)) == (CheckVerdict.VALID, [], set())


@pytest.mark.parametrize("by", ["size", "age"])
def test_what_is_removed_as_the_run_lets_is_no_fault(by: str, judged: dict[str, RunJudgment]) -> None:
    result = judged[f"clean_removed_by_{by}"]
    assert (result.verdict, fired(result)) == (CheckVerdict.VALID, set()), result.reasons
    population = {finding.check.id: finding.population for finding in result.findings}
    assert population["P10"] == 3


def test_what_is_received_again_for_a_reason_is_no_fault(judged: dict[str, RunJudgment]) -> None:
    result = judged["clean_receives"]
    assert (result.verdict, result.reasons, fired(result)) == (CheckVerdict.VALID, [], set())
    [c11] = [finding for finding in result.findings if finding.check.id == "C11"]
    assert c11.population == 3
    again = judged["clean_again"]
    assert (again.verdict, again.reasons, fired(again)) == (CheckVerdict.VALID, [], set())
    [c12] = [finding for finding in again.findings if finding.check.id == "C12"]
    assert c12.population == 1
    for name in ("clean_late", "clean_one_by_one"):
        late = judged[name]
        assert (late.verdict, late.reasons, fired(late)) == (CheckVerdict.VALID, [], set())


def test_what_is_stored_later_than_it_was_acknowledged_is_no_fault(judged: dict[str, RunJudgment]) -> None:
    result = judged["clean_kinds"]
    assert (result.verdict, result.reasons, fired(result)) == (CheckVerdict.VALID, [], set())
    populations = {finding.check.id: finding.population for finding in result.findings}
    assert (populations["B4"], populations["B5"]) == (2, 1)  # a half message and its end; a delayed one


def test_what_hostile_clients_do_not_bring_about_is_no_fault(judged: dict[str, RunJudgment]) -> None:
    for name in ("clean_hostiles", "clean_kill_beside_hostiles"):
        result = judged[name]
        assert (result.verdict, result.reasons, fired(result)) == (CheckVerdict.VALID, [], set())
        assert {f.check.id: f.population for f in result.findings}["A7"] == 1
    without = {finding.check.id: finding.verdict for finding in judged["clean_True"].findings}
    assert {without[name] for name in ("A7", "A8", "A9", "A10", "A11")} == {CheckVerdict.ABSENT}


# Every part of every check, and the witnesses of each.
@pytest.mark.slow
@WAITS_FOR_SPARK
def test_spark_finds_what_the_second_engine_finds(
    judged: dict[str, RunJudgment], by_spark: dict[str, RunJudgment], pytestconfig: pytest.Config
) -> None:
    names = for_spark(judged, everything=is_long(pytestconfig))
    assert len(names) > 20
    for run in names:
        result = judged[run]
        ours = [(f.check.id, f.verdict, f.population, f.violations) for f in by_spark[run].findings]
        theirs = [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings]
        assert ours == theirs, run
        assert by_spark[run].verdict is result.verdict
