"""Where there is no released client, what needs it says so, and is not taken for proven."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli.left_out import runnable
from chaos.cli.main import cli
from chaos.plans.scenario import all_scenarios, find_scenario
from chaos.run import Run
from chaos.workloads.released.installed import VARIABLE, client_kinds, client_python
from dledger.errors import ConfigError


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the Python client in it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    python = tmp_path / "python" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    return tmp_path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "clients"))


def test_the_variable_names_the_folder(somewhere: Path) -> None:
    assert client_python() == somewhere / "python" / "bin" / "python"
    assert runnable(all_scenarios()) == (all_scenarios(), "")


def test_clients_in_node_take_part_where_they_can_run(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(somewhere / "programs"))
    modules = somewhere / "node" / "node_modules"
    (modules / "rocketmq-client-nodejs").mkdir(parents=True)
    assert [kind.name for kind in client_kinds()] == ["python"], "there is no program to run it"
    program = somewhere / "programs" / "node"
    program.parent.mkdir()
    program.touch(mode=0o755)
    _, node = client_kinds()
    assert node.command[0] == str(program) and node.environment == {"NODE_PATH": str(modules)}
    assert node.takes_one_address and Path(node.command[1]).exists()


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
