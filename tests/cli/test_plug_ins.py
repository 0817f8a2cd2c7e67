"""`dledger` is a command without the broker, and has the broker's commands where that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Runs the command as its script does; what is named first cannot be imported.
RUN = """
import sys
names = sys.argv.pop(1).split(",")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
from dledger.cli.main import command
command()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the entry points of pyproject.toml, whatever this environment was installed from."""
    info = tmp_path / "site" / "dledger_commands-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dledger-commands\nVersion: 1\n")
    points = PROJECT["entry-points"]["dledger.commands"]
    lines = ["[dledger.commands]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return info.parent


def run(installed: Path, missing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-P", "-c", RUN, missing, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_is_the_logs_own() -> None:
    assert PROJECT["scripts"]["dledger"] == "dledger.cli.start:command"
    assert PROJECT["entry-points"]["dledger.commands"] == {"broker": "broker_adapter.cli.main:extended"}


@pytest.mark.slow
def test_dledger_alone_helps_and_works(installed: Path, tmp_path: Path) -> None:
    alone = "broker_adapter,chaos"
    shown = run(installed, alone, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "\n  append " in shown.stdout and "\n  broker " not in shown.stdout
    assert run(installed, alone, "cluster", "up", "--help").returncode == 0
    unknown = run(installed, alone, "broker", "--help")
    assert unknown.returncode == 2 and "there is no command 'broker'" in unknown.stderr
    store = str(tmp_path / "store")
    for arguments in (
        ("init", "--directory", store, "--node-id", "x", "--cluster-id", "y"),
        ("inspect", store),
    ):
        done = run(installed, alone, *arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_broker_adds_its_commands_where_it_is(installed: Path) -> None:
    shown = run(installed, "chaos", "broker", "--help")
    assert shown.returncode == 0 and "topic" in shown.stdout, shown.stderr
    assert "\n  broker " in run(installed, "chaos", "--help").stdout
    assert "--broker" in run(installed, "chaos", "cluster", "up", "--help").stdout


def test_a_plug_in_that_is_broken_inside_is_not_passed_over(installed: Path) -> None:
    (installed / "broken_commands.py").write_text("import nowhere")
    points = installed / "dledger_commands-1.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "broken = broken_commands:extended\n")
    found = run(installed, "chaos", "--help")
    assert found.returncode != 0 and "No module named 'nowhere'" in found.stderr
