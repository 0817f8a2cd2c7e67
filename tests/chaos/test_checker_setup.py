"""The demo installs the checker while its run goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli import demo_command
from chaos.cli.checker_setup import CheckerSetup
from chaos.cli.main import cli
from dledger.errors import ConfigError
from tests.chaos.test_demo import FakeRun

PIP = """
echo 'Collecting pyspark'
echo 'Requirement already satisfied: click'
echo 'Progress 0 of 4194304'
echo 'Progress 1048576 of 4194304'
echo 'Successfully installed pyspark' >&2
"""


def test_steps_are_reported_and_downloads_every_few_seconds() -> None:
    lines: list[str] = []
    with CheckerSetup(PIP, lines.append) as setup:
        setup.wait()
    assert lines == ["Collecting pyspark", "0 % of 4.0 MiB", "Successfully installed pyspark"]


def test_without_a_command_there_is_nothing_to_wait_for() -> None:
    with CheckerSetup(None, print) as setup:
        assert not setup.is_running
        setup.wait()


def test_a_failure_has_the_end_of_the_output() -> None:
    with (
        CheckerSetup("seq 30; echo no network; exit 7", lambda line: None) as setup,
        pytest.raises(ConfigError, match=r"exit code 7\)") as failed,
    ):
        setup.wait()
    assert failed.value.message.endswith("\n29\n30\nno network") and "\n5\n" not in failed.value.message


def test_the_command_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with (
        CheckerSetup(f"exec 3>{pipe}; sleep 1000 & echo started >&3; wait", print) as setup,
        pipe.open() as reader,
    ):
        assert reader.readline() == "started\n"
        assert setup.is_running
        setup.stop()
        assert not setup.is_running
        assert reader.read() == "", "all processes with the other end are gone"


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("echo no network; false", 255)])
def test_the_check_begins_when_its_installation_is_complete(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, mark = tmp_path / "run", tmp_path / "installed"
    checked: list[bool] = []

    def check(path: Path) -> int:
        checked.append(mark.exists())
        return 0

    (tmp_path / "input").write_text("one\ntwo\n")
    monkeypatch.setattr(demo_command, "Run", FakeRun)
    monkeypatch.setattr(demo_command, "_check", check)
    prepare = f"touch {mark}; {command}"
    arguments = ["demo", "--dir", str(root), "--input", str(tmp_path / "input"), "--prepare", prepare]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == code, shown.output
    assert checked == ([True] if code == 0 else [])
    if code:
        assert "install    no network" in shown.output
        assert "the run is not checked; its files are in" in shown.output
