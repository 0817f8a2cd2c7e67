"""The alarm is real: bugs planted in a copy of the product are found. All of them: `make chaos-planted`."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plans.scenario import load_scenario, plan
from tests.chaos.planted import copy_with, hunt
from tests.chaos.planted_bugs import BUGS, Bug

BY_NAME = {bug.name: bug for bug in BUGS}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_can_be_planted_and_has_a_scenario(tmp_path: Path, bug: Bug) -> None:
    product = copy_with(bug, tmp_path / "product")
    source = (product / bug.file).read_text()
    compile(source, bug.file, "exec")
    assert bug.new in source
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(bug.scenario())
    assert plan(load_scenario(scenario))


@pytest.mark.process
@pytest.mark.xdist_group("chaos-planted")
@pytest.mark.parametrize(
    "name", [pytest.param("acknowledge-before-quorum", marks=pytest.mark.long), "truncate-committed-suffix"]
)
def test_what_is_acknowledged_too_early_or_cut_is_found_to_be_lost(tmp_path: Path, name: str) -> None:
    found = hunt(BY_NAME[name], tmp_path, most=5)
    assert found.runs and "lost" in found.evidence, found
    print(f"{name}: {found}")
