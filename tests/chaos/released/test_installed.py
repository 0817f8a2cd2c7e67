"""Where there is no released client, what needs it says so, and is not taken for proven."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli.left_out import runnable
from chaos.cli.main import cli
from chaos.run import Run
from chaos.scenario import all_scenarios, find_scenario
from chaos.workloads.released.installed import VARIABLE, client_python
from dledger.errors import ConfigError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "clients"))


def test_the_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    python = tmp_path / "python" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    assert client_python() == python
    assert runnable(all_scenarios()) == (all_scenarios(), "")


@pytest.mark.usefixtures("nowhere")
def test_a_run_that_needs_the_client_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make clients"):
        Run(find_scenario("clients-leader-kill"), tmp_path / "run", seed=1)


@pytest.mark.usefixtures("nowhere")
def test_of_all_scenarios_those_of_the_client_are_left_out_aloud() -> None:
    found, said = runnable(all_scenarios())
    assert len(found) > 40 and {scenario.workload for scenario in found} == {"log", "broker"}
    assert said.startswith("NOT RUN") and "clients-isolate" in said and "make clients" in said


@pytest.mark.usefixtures("nowhere")
def test_what_was_left_out_is_never_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [find_scenario("clients-leader-kill")]
    monkeypatch.setattr("chaos.cli.run_command.all_scenarios", lambda: some)
    ended = CliRunner().invoke(cli, ["run", "--all", "--dir", str(tmp_path / "runs")])
    assert ended.exit_code == 2 and "NOT RUN" in ended.output
