"""Short runs of the harness in the process of a test, on a machine that may be busy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from chaos.plans.scenario import Scenario
from chaos.run import Run, ScenarioResult
from chaos.verdict import RunVerdict


class ValidRun(NamedTuple):
    result: ScenarioResult
    folder: Path
    seed: int


async def valid_run(scenario: Scenario, folder: Path) -> ValidRun:
    """The first of some runs that is a proof. A machine that stands still makes a run void, which is no
    broken promise, and no proof either; a broken promise fails the test at once."""
    for seed in (1, 2, 3, 4):
        run = folder / f"run-{seed}"
        run.parent.mkdir(parents=True, exist_ok=True)
        result = await Run(scenario, run, seed=seed).run()
        assert result.verdict is not RunVerdict.INVALID, result.reasons
        if result.verdict is RunVerdict.VALID:
            return ValidRun(result, run, seed)
    raise AssertionError(f"all runs are void: {result.reasons}")
