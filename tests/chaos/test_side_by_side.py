"""Runs beside each other: all of them, so many at a time, and none is left behind by an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.cli.run_command import Job, JobResult, changed, run_side_by_side
from chaos.plans.scenario import Scenario

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_limit_of_the_rate_leaves_slower_loads_as_they_are() -> None:
    def rate(own: float, at_most: float | None, given: float | None = None) -> float:
        scenario = Scenario.model_validate({"name": "x", "title": "x", "load": {"rate": own}})
        return changed(scenario, at_most, {"rate": given, "nodes": None}).load.rate

    assert rate(0, 1000) == 1000, "as fast as it goes is more than that"
    assert rate(4, 1000) == 4 and rate(2000, 1000) == 1000 and rate(2000, None) == 2000
    assert rate(4, 1000, given=0) == 1000 and rate(4, None, given=7) == 7


@pytest.mark.slow
async def test_each_job_ends_with_its_code_and_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    ended: list[JobResult] = []
    jobs = [Job("wrong", ["run", "no-such-thing"]), Job("list", ["list"]), Job("nothing", ["run"])]
    await run_side_by_side(jobs, 2, ended.append)
    found = {one.job.name: one for one in ended}
    assert {name: one.exit_code for name, one in found.items()} == {"wrong": 2, "list": 0, "nothing": 2}
    assert "known: " in found["wrong"].output and "leader-kill" in found["list"].output


@pytest.mark.process
@pytest.mark.xdist_group("chaos-runs")
def test_an_interrupt_ends_runs_that_go_on_beside_each_other_and_all_their_processes(tmp_path: Path) -> None:
    text = 'name = "NAME"\ntitle = "x"\nseconds = 600\nnodes = 1\n'
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(text.replace("NAME", name))
    files = [str(tmp_path / f"{name}.toml") for name in ("one", "two")]
    command = [sys.executable, "-u", "-m", "chaos.cli", "run", *files, "--seed=1", "--jobs=2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    clusters = [tmp_path / f"{name}-1" / "cluster" for name in ("one", "two")]
    with subprocess.Popen(
        [*command, f"--dir={tmp_path}"], stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY
    ) as harness:
        pids = [_pid(harness, cluster / "n1" / "pid") for cluster in clusters]
        harness.send_signal(signal.SIGINT)
        assert harness.wait(60) == 130
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.process
@pytest.mark.xdist_group("chaos-runs")
def test_an_interrupt_of_the_terminal_ends_a_soak_and_leaves_no_process(tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to all of the group at once."""
    command = [sys.executable, "-u", "-m", "chaos.cli", "soak", "--hours=1", "--seed=5", f"--dir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY, start_new_session=True
    ) as harness:
        assert harness.stdout is not None and b"seed 5" in harness.stdout.readline()
        pid = _pid(harness, next(_nodes(harness, tmp_path)) / "pid")
        os.killpg(harness.pid, signal.SIGINT)
        assert harness.wait(60) == 130
        shown = harness.stdout.read()
    assert b"all processes of the run are gone" in shown and b"0 runs" in shown
    assert not Path(f"/proc/{pid}").exists()
    assert not _processes_about(tmp_path)


def _nodes(harness: subprocess.Popen[bytes], root: Path) -> Iterator[Path]:
    """Directories of nodes, as soon as there are any."""
    while not (found := sorted(root.glob("*/cluster/n[0-9]"))):
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"ended with {harness.wait(0.05)}")
    yield from found


def _processes_about(path: Path) -> list[str]:
    """Whose command line names it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(path) in line and process.name != str(os.getpid()):
                found.append(line)
    return found


def _pid(harness: subprocess.Popen[bytes], path: Path) -> int:
    """Of a node, when it has been started."""
    while not path.exists() or not path.read_text():
        try:
            harness.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"ended with {harness.returncode} before {path} was there")
    return int(path.read_text())
