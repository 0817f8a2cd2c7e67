"""Scenarios that are drawn, and a soak that nothing stops."""

from __future__ import annotations

import tomllib
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from chaos.cli import soak_command
from chaos.cli.soak_command import Soak
from chaos.plans.scenario import Scenario, all_scenarios, load_scenario, plan
from chaos.plans.soak import DESTRUCTIVE, draw, to_file
from chaos.quick.trace import QuickReport
from chaos.run import ScenarioResult
from chaos.verdict import RunVerdict


def drawn(seed: int, count: int) -> list[Scenario]:
    rng, scenarios = Random(seed), all_scenarios()
    return [draw(rng, scenarios) for _ in range(count)]


def test_equal_seeds_draw_equal_scenarios_and_others_draw_others() -> None:
    assert drawn(1, 20) == drawn(1, 20) != drawn(2, 20)


def test_every_drawn_scenario_can_be_run_and_destroys_copies_in_one_way_at_most() -> None:
    found = drawn(7, 300)
    for scenario in found:
        plan(scenario)
        assert len({step.kind for step in scenario.fault} & set(DESTRUCTIVE)) <= 1
    assert {scenario.workload for scenario in found} == {"log", "broker", "clients"}
    assert {scenario.nodes for scenario in found} >= {3, 5}
    on_top = [scenario for scenario in found if "-and-" in scenario.name]
    assert len(on_top) > 50
    assert all(scenario.fault[-1] in {one.step for one in plan(scenario)} for scenario in on_top)


def test_nothing_is_drawn_on_top_of_what_hits_all_nodes() -> None:
    on_top = [scenario for scenario in drawn(11, 300) if "-and-" in scenario.name]
    assert not [scenario.name for scenario in on_top for step in scenario.fault if step.target == "all"]


def test_a_scenario_as_a_file_is_the_same_scenario(tmp_path: Path) -> None:
    for number, scenario in enumerate(drawn(3, 30)):
        path = tmp_path / f"{number}.toml"
        path.write_text(to_file(scenario))
        tomllib.loads(path.read_text())
        assert load_scenario(path) == scenario


class Runs:
    """Stands for `Run`: each run ends as the next of `outcomes` says."""

    def __init__(self, *outcomes: RunVerdict | BaseException) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, scenario: Scenario, folder: Path, *, seed: int, command: str) -> Runs:
        self.scenario, self.folder, self.seed = scenario, folder, seed
        return self

    async def run(self) -> ScenarioResult:
        self.folder.mkdir(parents=True)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        report = QuickReport(acknowledged=1000)
        reasons = [] if outcome is RunVerdict.VALID else ["why"]
        name = self.scenario.name
        return ScenarioResult(name, self.seed, outcome, reasons, report, 1.0, 9.0, 9.0, 0, 1, 5, ["x"])


def soaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *outcomes: RunVerdict | BaseException
) -> tuple[Soak, list[str]]:
    monkeypatch.setattr(soak_command, "Run", Runs(*outcomes))
    # Nothing really runs: it does not matter whether the released client is installed here.
    monkeypatch.setattr(soak_command, "runnable", lambda scenarios: (list(scenarios), ""))
    out = StringIO()
    soak = Soak(Console(file=out), tmp_path, 5, with_checker=False)
    for _ in outcomes:
        soak.next()
    soak.print_summary()
    return soak, out.getvalue().splitlines()


def test_a_soak_goes_on_after_failures_keeps_them_and_removes_what_was_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = (RunVerdict.VALID, RunVerdict.INVALID, ValueError("boom"), RunVerdict.VOID, RunVerdict.VALID)
    soak, lines = soaked(tmp_path, monkeypatch, *outcomes)
    assert len(lines) == 6
    verdicts = [line.split()[1] for line in lines[:5]]
    assert verdicts == ["VALID", "INVALID", "BROKEN", "VOID", "VALID"]
    assert "boom" in lines[2] and lines[1].endswith("why")
    assert "5 runs: 2 valid, 1 invalid, 1 void, 1 broken; 4,000 acknowledged" in lines[5]
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["0002", "0003", "0004"]
    assert soak.exit_code == 1


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((RunVerdict.VALID, RunVerdict.VOID), 0),
        ((RunVerdict.VOID,), 2),
        ((RunVerdict.VALID, OSError("x")), 3),
        ((OSError("x"), RunVerdict.INVALID), 1),
    ],
)
def test_the_exit_code_of_a_soak_is_its_worst(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: tuple[RunVerdict | BaseException, ...],
    code: int,
) -> None:
    assert soaked(tmp_path, monkeypatch, *outcomes)[0].exit_code == code


def test_a_soak_ends_with_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        soaked(tmp_path, monkeypatch, KeyboardInterrupt())
