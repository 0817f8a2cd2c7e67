"""Bugs planted in a copy of the product, and the hunt for them: `python -m tests.chaos.planted`.

The alarm is tested so: each bug is of a kind that real systems have had, and a scenario has to find it: by
the verdict of the run or, for what clients cannot see, by the Spark job's checks on the nodes' traces.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.workloads.released.installed import VARIABLE, client_python
from dledger.errors import ConfigError
from tests.chaos.planted_bugs import BUGS, Bug

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("dledger", "broker_adapter", "chaos")


def copy_with(bug: Bug, folder: Path) -> Path:
    """A copy of the product with the bug in it."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / bug.file
    source = file.read_text()
    assert source.count(bug.old) == 1, f"{bug.name}: {bug.file} has changed, {bug.old!r} is no longer there"
    file.write_text(source.replace(bug.old, bug.new))
    return folder


@dataclass(frozen=True, slots=True)
class Hunt:
    """`runs`: it took so many, the last of which found it; 0: none of them did."""

    runs: int
    evidence: str
    seconds: float


def hunt(bug: Bug, folder: Path, most: int, *, seed: int = 1) -> Hunt:
    """Run the bug's scenario with one seed after the other until something notices."""
    began = time.monotonic()
    product = copy_with(bug, folder / "product")
    scenario = folder / "scenario.toml"
    scenario.write_text(bug.scenario())
    for number in range(1, most + 1):
        run = folder / f"run-{number}"
        _python(product, "chaos.cli", "run", str(scenario), "--seed", f"{seed + number}", "--dir", str(run))
        evidence = _spark_evidence(bug, run) if bug.checks else _quick_evidence(run)
        if evidence:
            return Hunt(number, evidence, time.monotonic() - began)
    return Hunt(0, "", time.monotonic() - began)


def _quick_evidence(run: Path) -> str:
    result = run / "result.json"
    if not result.exists():
        return ""  # the run broke off: an alarm, too, but not the one that is tested
    found = json.loads(result.read_text())
    return "; ".join(found["reasons"]) if found["verdict"] == "invalid" else ""


def _spark_evidence(bug: Bug, run: Path) -> str:
    """By the checker of this repository, not by the copy's."""
    shown = _python(REPOSITORY, "chaos.checker.main", str(run), "--checks", ",".join(bug.checks), "--json")
    report = json.loads(shown[shown.index("{") :]) if "{" in shown else {}
    return next(
        (
            f"{check['id']} ({check['title']}): {check['violations']} times"
            for one in report.get("runs", [])
            for check in one["checks"]
            if check["id"] in bug.checks and check["violations"]
        ),
        "",
    )


def _python(root: Path, module: str, *arguments: str) -> str:
    """Run a module of the product below `root`; what it printed."""
    clients = os.environ.get(VARIABLE, str(REPOSITORY / "build" / "clients"))
    environment = {**os.environ, "PYTHONPATH": str(root), VARIABLE: clients}
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def _no_client() -> str:
    """Why clients cannot be the load; "" if they can."""
    try:
        client_python()
    except ConfigError as error:
        return error.message
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hunt the planted bugs; 1 if one was not found.")
    parser.add_argument("names", nargs="*", help="All without any.")
    parser.add_argument("--most", type=int, default=10, help="Runs for each.")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    missed = 0
    for bug in BUGS:
        if chosen.names and bug.name not in chosen.names:
            continue
        if bug.workload == "clients" and (why := _no_client()):
            missed += 1
            print(f"{bug.name:28} NOT HUNTED: {why}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="dledger-planted-") as folder:
            found = hunt(bug, Path(folder), chosen.most, seed=chosen.seed)
        missed += not found.runs
        what = f"found in run {found.runs}: {found.evidence}" if found.runs else "NOT FOUND"
        print(f"{bug.name:28} {what}  ({found.seconds:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
