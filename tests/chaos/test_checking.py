"""Having the Spark checker judge runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from chaos.checker.engines.java import JavaNotFound
from chaos.cli import checking
from chaos.trace.writer import TraceWriter
from chaos.verdict import RunVerdict
from dledger.errors import ConfigError


def test_a_missing_java_or_spark_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(folder: Path) -> None:
        raise JavaNotFound("install one")

    monkeypatch.setattr(checking, "java_home", no_java)
    with pytest.raises(ConfigError, match="install one"):
        checking.require_checker()
    monkeypatch.setattr(checking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dledger\[checker\]'"):
        checking.require_checker()


def results(verdicts: dict[str, str]) -> str:
    runs = [{"run": run, "verdict": v, "sentence": f"{run} is {v}"} for run, v in verdicts.items()]
    worst = next((v for v in ("invalid", "unknown") if v in verdicts.values()), "valid")
    return json.dumps({"verdict": worst, "runs": runs})


class Checker:
    """Stands for `dledger-check`: says these verdicts, or nothing, and ends with this code."""

    def __init__(self, verdicts: dict[str, str], code: int) -> None:
        self.verdicts, self.code = verdicts, code

    def __call__(
        self, command: list[str], *, stdout: IO[str], stderr: IO[str], **_: Any
    ) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "chaos.checker.main"] and "--json" in command
        if self.verdicts:
            stdout.write(results(self.verdicts))
        stderr.write("no memory left")
        return subprocess.CompletedProcess(command, self.code)


def folders(root: Path, *names: str) -> list[Path]:
    for name in names:
        TraceWriter(root / name, f"{name}-7", "nemesis").close()
    return [root / name for name in names]


def test_verdicts_are_those_of_the_runs_whatever_their_directories_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = {"a-7": "valid", "b-7": "invalid", "c-7": "unknown"}
    monkeypatch.setattr(subprocess, "run", Checker(verdicts, 1))
    a, b, c = folders(tmp_path, "a", "b", "c")
    found = checking.check_runs([c, a, b], tmp_path / "report")
    assert found == {
        a: (RunVerdict.VALID, "a-7 is valid"),
        b: (RunVerdict.INVALID, "b-7 is invalid"),
        c: (RunVerdict.VOID, "c-7 is unknown"),
    }


def test_a_checker_that_fails_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Checker({}, 255))
    with pytest.raises(ConfigError, match="no memory left"):
        checking.check_runs(folders(tmp_path, "a"), tmp_path / "report")


def test_the_result_of_another_run_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "results.json").write_text(results({"a-7": "valid"}))
    (a,) = folders(tmp_path, "a")
    monkeypatch.setattr(subprocess, "run", Checker({}, 255))
    with pytest.raises(ConfigError, match="no memory left"):
        checking.check_runs([a], tmp_path / "report")
    monkeypatch.setattr(subprocess, "run", Checker({"a-7": "invalid"}, 1))
    assert checking.check_runs([a], tmp_path / "report") == {a: (RunVerdict.INVALID, "a-7 is invalid")}


@pytest.mark.parametrize(
    ("verdicts", "code"), [({"a-7": "valid"}, 1), ({"a-7": "valid"}, 255), ({"b-7": "valid"}, 0)]
)
def test_a_verdict_that_contradicts_the_exit_code_or_is_of_other_runs_is_none(
    verdicts: dict[str, str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", Checker(verdicts, code))
    with pytest.raises(ConfigError, match=rf"failed \({code}\)"):
        checking.check_runs(folders(tmp_path, "a"), tmp_path / "report")
