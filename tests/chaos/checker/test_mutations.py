"""The alarm is tested: every planted defect makes exactly the checks fire that are about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.judge import RunResult, Verdict, judge
from chaos.checker.registry import Severity
from chaos.checker.synthetic import clean_trace
from chaos.checker.tables import make_tables
from chaos.scenario import TAKING
from chaos.trace.schema import Ev
from tests.chaos.checker import kind_mutations, more_mutations, receive_mutations
from tests.chaos.checker.conftest import CheckRuns
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.mutations import MUTATIONS, Mutation, lines

assert kind_mutations and more_mutations and receive_mutations

pytestmark = pytest.mark.xdist_group("spark")


def write_all(folder: Path) -> list[Path]:
    """A run directory for each mutation, named after it, and one clean one of each kind."""
    found = []
    for mutation in MUTATIONS:
        trace = clean_trace(mutation.name, broker=mutation.broker, seed=3)
        mutation.change(trace)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    for broker in (True, False):
        trace = clean_trace(f"clean_{broker}", broker=broker, seed=3)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    for name, change in (
        ("clean_receives", receive_mutations.receive_well),
        ("clean_again", receive_mutations.receive_again_with_reason),
        ("clean_kinds", kind_mutations.all_kinds_well),
    ):
        trace = clean_trace(name, seed=3)
        change(trace)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    return found


def fired(result: RunResult) -> set[str]:
    return {finding.check.id for finding in result.findings if finding.violations}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    engine = DuckEngine()
    engine.load(write_all(tmp_path_factory.mktemp("mutations")))
    make_tables(engine)
    return {result.run: result for result in judge(engine, CHECKS)}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_exactly_the_expected_checks_fire(mutation: Mutation, judged: dict[str, RunResult]) -> None:
    result = judged[mutation.name]
    assert fired(result) == mutation.expected, result.reasons
    severities = {check.severity for check in CHECKS if check.id in mutation.expected}
    assert (result.verdict is Verdict.VALID) == (severities <= {Severity.WARNING})


@pytest.mark.parametrize("kind", sorted(set(TAKING) - {"stop"}))
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
    assert result.verdict is Verdict.VALID, result.reasons


def test_damage_that_is_told_of_is_no_loss_but_hides_none(judged: dict[str, RunResult]) -> None:
    assert judged["damage_is_told_of"].verdict is Verdict.UNKNOWN
    assert judged["damage_is_told_of_below_a_broker"].verdict is Verdict.UNKNOWN
    assert judged["more_is_gone_than_is_damaged"].verdict is Verdict.INVALID


@pytest.mark.parametrize("broker", [True, False])
def test_clean_traces_are_valid(broker: bool, judged: dict[str, RunResult]) -> None:
    result = judged[f"clean_{broker}"]
    assert (result.verdict, result.reasons, fired(result)) == (Verdict.VALID, [], set())


def test_what_is_received_again_for_a_reason_is_no_fault(judged: dict[str, RunResult]) -> None:
    result = judged["clean_receives"]
    assert (result.verdict, result.reasons, fired(result)) == (Verdict.VALID, [], set())
    [c11] = [finding for finding in result.findings if finding.check.id == "C11"]
    assert c11.population == 3
    again = judged["clean_again"]
    assert (again.verdict, again.reasons, fired(again)) == (Verdict.VALID, [], set())
    [c12] = [finding for finding in again.findings if finding.check.id == "C12"]
    assert c12.population == 1


def test_what_is_stored_later_than_it_was_acknowledged_is_no_fault(judged: dict[str, RunResult]) -> None:
    result = judged["clean_kinds"]
    assert (result.verdict, result.reasons, fired(result)) == (Verdict.VALID, [], set())
    populations = {finding.check.id: finding.population for finding in result.findings}
    assert (populations["B4"], populations["B5"]) == (1, 1)


# Every part of every check, and the witnesses of each: minutes where other tests have the cores.
@pytest.mark.timeout(1800)
def test_spark_finds_what_the_second_engine_finds(
    judged: dict[str, RunResult], check_runs: CheckRuns, tmp_path: Path
) -> None:
    by_spark = check_runs(*write_all(tmp_path), checks=CHECKS)
    assert set(by_spark) == set(judged)
    for run, result in by_spark.items():
        ours = [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings]
        theirs = [(f.check.id, f.verdict, f.population, f.violations) for f in judged[run].findings]
        assert ours == theirs, run
        assert result.verdict is judged[run].verdict
