"""The main job: what happens in it, and that its exit code is that of the checker's verdict."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chaos.cli import demo_command
from chaos.cli.demo_command import default_input, read_lines
from chaos.cli.main import cli
from chaos.plans.scenario import Scenario, find_scenario, plan
from chaos.quick.check import QuickReport
from chaos.run import ScenarioResult, Watch
from chaos.verdict import RunVerdict


class FakeRun:
    """Tells what a run tells, and leaves an empty directory."""

    def __init__(
        self, scenario: Scenario, root: Path, *, seed: int, lines: Sequence[bytes], watch: Watch
    ) -> None:
        self._root, self._watch, self._seed = root, watch, seed
        assert lines == [b"one", b"two"]

    async def run(self) -> ScenarioResult:
        self._root.mkdir()
        for phase in ("warming up", "faults"):
            self._watch.enter(phase)
        for text in ("kill leader (n2) started", "kill leader (n2) ended"):
            self._watch.note(text)
        self._watch.enter("a phase that nobody has heard of")
        self._watch.note("stop leader (n1) DID NOT START")
        report = QuickReport(acknowledged=12_000, in_doubt=3, in_doubt_stored=2)
        figures: dict[str, Any] = {"acknowledged_per_second": 400.0, "leader_changes": 3}
        figures |= {"repeated": 40, "recognized": 7}
        figures |= {"faults": ["kill leader (n2)", "stop leader (n1)"], "pauses_ms": [310, 1_500]}
        fields = dict.fromkeys(ScenarioResult.__dataclass_fields__, 0)
        known = {"scenario": "main-job", "seed": self._seed, "verdict": RunVerdict.VALID, "reasons": []}
        return ScenarioResult(**{**fields, **known, "report": report, "longest_silence_ms": 1_500, **figures})


@pytest.mark.parametrize(
    ("checked", "code", "said"),
    [
        (0, 0, "OK"),
        (1, 1, "FAILED     a guarantee was violated"),
        (2, 2, "UNKNOWN    this run is inconclusive"),
        (255, 255, "FAILED     the checker failed; see check.log"),
    ],
)
def test_the_exit_code_is_that_of_the_verdict(
    checked: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def check(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "chaos.checker.main", str(root), "--out", str(root / "report")]
        options["stderr"].write(b"noise\nno Java here\n")
        options["stdout"].write("Run r is so.\nreport: /r/index.html\n")
        return subprocess.CompletedProcess(command, checked)

    root = tmp_path / "run"
    (tmp_path / "input").write_text("one\ntwo\n")
    monkeypatch.setattr(demo_command, "Run", FakeRun)
    monkeypatch.setattr(demo_command.subprocess, "run", check)
    shown = CliRunner().invoke(cli, ["demo", "--dir", str(root), "--input", str(tmp_path / "input")])
    assert shown.exit_code == code, shown.output
    assert said in shown.output
    assert "n2, the master, is killed (SIGKILL)" in shown.output
    assert "n2 is back" in shown.output
    assert "PROBLEM    stop leader (n1) DID NOT START" in shown.output
    assert "nobody has heard of" not in shown.output
    assert "12,000 messages acknowledged, 0 refused, 3 in doubt (2 stored, 1 not stored)" in shown.output
    assert "40 sends were repeated; brokers recognized 7 whose earlier attempt was stored" in shown.output
    assert "longest time without an acknowledgment: kill 310 ms, stop 1,500 ms" in shown.output
    assert "report     /r/index.html" in shown.output
    assert ("PROBLEM    no Java here" in shown.output) == (code == 255)


def test_the_master_is_killed_then_paused_then_isolated() -> None:
    scenario = find_scenario(demo_command.SCENARIO)
    faults = plan(scenario)
    assert [one.step.kind for one in faults] == ["kill", "stop", "isolate"]
    assert all(one.step.unseats_leader for one in faults)
    ends = [one.at + one.step.lasts for one in faults]
    assert all(end < following.at for end, following in zip(ends, faults[1:], strict=False))


def test_the_default_input_is_long_enough() -> None:
    assert sum(len(read_lines(path)) for path in default_input()) >= 10_000


def test_lines_are_split_as_append_splits_them(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n\nb\r\nlast")
    assert read_lines(tmp_path / "text") == [b"a", b"", b"b\r", b"last"]
