"""A chaos scenario with released clients as the load, judged by the quick check and by the Spark job."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.cli.checking import check_runs
from chaos.plans.scenario import find_scenario
from chaos.run import Run
from chaos.verdict import RunVerdict
from tests.clients import installed

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-chaos")]


@pytest.mark.timeout(900)
async def test_a_master_that_dies_under_released_clients_breaks_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.require("python")
    monkeypatch.setenv("ROCKETMQ_CLIENTS", str(installed.FOLDER))
    scenario = find_scenario("clients-leader-kill")
    # A machine that stands still makes a run void, which is no broken promise, and no proof either.
    for seed in (1, 2, 3):
        folder = tmp_path / f"run-{seed}"
        result = await Run(scenario, folder, seed=seed).run()
        assert result.verdict is not RunVerdict.INVALID, result.reasons
        if result.verdict is RunVerdict.VALID:
            break
    assert result.verdict is RunVerdict.VALID, result.reasons
    report = result.report
    assert report.acknowledged > 500 and report.consumed > 500 and report.redelivered > 0
    [(verdict, sentence)] = check_runs([folder], tmp_path / "report").values()
    assert verdict is RunVerdict.VALID, sentence
