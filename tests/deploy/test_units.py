"""The systemd units of examples/deploy/systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.node.server import EXIT_FATAL
from dledger.node.setup.config import TimingConfig
from tests.conftest import DID_NOT_RUN
from tests.docs.command_lines import fault_of
from tests.docs.pages import ROOT, commands_of

FOLDER = ROOT / "examples/deploy/systemd"
UNITS = [FOLDER / "dledger.service", FOLDER / "dledger-namesrv.service"]
_SANDBOX = re.compile(r"^\w+=.*$", re.MULTILINE)
#: Of 100. systemd calls up to 20 "OK" and describes the rest as exposed.
_EXPOSURE_AT_MOST = "20"


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip(f"{DID_NOT_RUN}: the systemd units: apt-get install systemd")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def _settings(unit: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in _SANDBOX.findall(unit.read_text()))


def test_no_unit_is_left_out() -> None:
    assert set(UNITS) == set(FOLDER.iterdir())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    here = unit.read_text().replace("/opt/dledger/bin", str(Path(sys.executable).parent))
    (tmp_path / unit.name).write_text(here)
    done = _analyze("verify", "--man=no", str(tmp_path / unit.name))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    (tmp_path / unit.name).write_text(here + "\nNoSuchKey=1\n")
    assert "NoSuchKey" in _analyze("verify", "--man=no", str(tmp_path / unit.name)).stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_may_do_little(unit: Path) -> None:
    done = _analyze("security", "--offline=true", f"--threshold={_EXPOSURE_AT_MOST}", str(unit))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists_and_notifies(unit: Path) -> None:
    settings = _settings(unit)
    (command,) = commands_of(f"    {settings['ExecStart']}")
    assert fault_of(command) is None
    assert settings["Type"] == "notify"
    assert int(settings["WatchdogSec"]) * 1000 > TimingConfig().loop_stall_ms, "the process ends itself first"
    assert settings["Restart"] == "on-failure"


def test_a_failed_disk_ends_a_node_for_good() -> None:
    codes = _settings(UNITS[0])["RestartPreventExitStatus"].split()
    assert codes == ["2", str(EXIT_FATAL)]
