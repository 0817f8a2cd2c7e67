"""Short runs of three scenarios, whole: real processes, real faults, and no promise is broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.plans.scenario import FaultStep, Load, Scenario
from chaos.run import Run
from chaos.trace.schema import Ev, problems
from dledger.errors import ConfigError
from tests.chaos.valid_runs import valid_run
from tests.node.local import PATIENT

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chaos-runs")]

REPOSITORY = Path(__file__).resolve().parents[2]
LOAD = Load(clients=2, at_once=2, rate=400)


def scenario(kind: Any, workload: Any = "log") -> Scenario:
    """Once, within a few seconds."""
    # A leader that is only cut off is missed after four seconds at most.
    lasts = 2 if kind == "kill" else 6
    step = FaultStep(kind=kind, target="leader", at=0.5, lasts=lasts)
    about = {"name": f"short-{kind}", "title": "x", "workload": workload, "seconds": lasts + 1}
    return Scenario(**about, settings={"timing": PATIENT}, load=LOAD, fault=(step,))


def events_of(folder: Path) -> list[dict[str, Any]]:
    files = (folder / "raw").iterdir()
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def check_nodes(events: list[dict[str, Any]]) -> None:
    """A few rules that hold for the traces of all nodes: one leader per term, elected by a majority; what was
    answered had been committed there, and was flushed by a majority."""
    rows = sorted((e for e in events if e["ev"] in (Ev.RAFT, Ev.STORE)), key=lambda e: e["mono"])
    leaders = {(row["term"], row["node"]) for row in rows if row["e"] == "leader"}
    assert len(leaders) == len({term for term, _ in leaders}) >= 2
    for term, node in leaders:
        voters = {r["node"] for r in rows if r["e"] == "vote" and (r["term"], r["candidate"]) == (term, node)}
        assert len(voters) >= 2
    for vote in (row for row in rows if row["e"] == "vote"):
        ends = [(vote[f"{of}last_term"], vote[f"{of}last_index"]) for of in ("cand_", "")]
        assert ends[0] >= ends[1], "nobody votes for a log behind his own"
    flushed: dict[str, int] = {}
    committed: dict[str, int] = {}
    acks = 0
    for row in rows:
        if row["e"] == "flush":
            flushed[row["node"]] = max(row["lidx"], flushed.get(row["node"], -1))
        elif row["e"] == "recover":
            committed[row["node"]] = row["committed"]
        elif row["e"] == "commit":
            committed[row["node"]] = row["lidx"]
        elif row["e"] == "ack":
            acks += 1
            assert committed[row["node"]] >= row["lidx"]
            assert sum(index >= row["lidx"] for index in flushed.values()) >= 2
    assert acks > 20


@pytest.mark.parametrize(
    ("kind", "workload"),
    [
        ("kill", "broker"),
        *(pytest.param(kind, "log", marks=pytest.mark.long) for kind in ("kill", "isolate")),
    ],
)
async def test_a_short_run_keeps_all_promises(tmp_path: Path, kind: str, workload: str) -> None:
    result, folder, seed = await valid_run(scenario(kind, workload), tmp_path)
    assert result.leader_changes >= 1 and result.report.acknowledged > 100
    assert result.report.read >= result.report.acknowledged
    events = events_of(folder)
    assert not [found for event in events for found in problems(event)]
    faults = [event for event in events if event["ev"] == Ev.FAULT]
    assert [(fault["e"], fault["effective"]) for fault in faults] == [("begin", True), ("end", True)]
    expected = {event["member"] for event in events if event.get("e") == "expect"}
    assert expected == {event["src"] for event in events} and {"node:n1", "node:n2", "node:n3"} < expected
    check_nodes(events)
    assert json.loads((folder / "result.json").read_text())["verdict"] == "valid"
    assert json.loads((folder / "run.json").read_text())["seed"] == seed


def test_a_run_needs_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="not empty"):
        Run(scenario("kill"), tmp_path, seed=1)


def test_the_commands_say_what_there_is_and_what_is_wrong() -> None:
    def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "chaos.cli", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert "leader-kill" in chaos("list").stdout
    unknown = chaos("run", "no-such-thing")
    assert unknown.returncode == 2 and "known: " in unknown.stderr
    assert "name a scenario" in chaos("run").stderr


def test_ctrl_c_ends_a_run_and_all_its_processes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-u",
        "-m",
        "chaos.cli",
        "run",
        "calm",
        "--seconds",
        "600",
        "--dir",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY) as harness:
        assert harness.stdout is not None
        shown = iter(harness.stdout.readline, b"")
        assert any(line.split()[-1:] == [b"faults"] for line in shown)
        pids = [int((folder / "pid").read_text()) for folder in (tmp_path / "cluster").glob("n*")]
        assert len(pids) == 3
        harness.send_signal(signal.SIGINT)
        assert harness.wait(30) == 130
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
