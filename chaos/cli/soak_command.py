"""The command `dledger-chaos soak`, which executes random scenarios."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

import click
from rich.console import Console

from chaos.cli.checking import check_runs, require_checker
from chaos.cli.left_out import runnable
from chaos.plans.scenario import Scenario, all_scenarios
from chaos.plans.soak import draw
from chaos.run import Run, ScenarioResult
from chaos.verdict import RunVerdict
from dledger.errors import ConfigError

#: Exit code if runs could not be executed.
BROKEN = 3
_COLOURS = {"valid": "green", "invalid": "bold red", "void": "yellow", "broken": "red"}


@click.command()
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Duration in hours.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory for the runs.  [default: a new directory]",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of all random choices.  [default: random]")
@click.option("--check", "with_checker", is_flag=True, help="Also judge every run with dledger-check.")
def soak(hours: float, directory: Path | None, seed: int | None, with_checker: bool) -> None:
    """Run random scenarios for hours and print one line each. Keeps the files of all runs that are not
    valid.

    A failure does not stop the soak.

    \b
    Examples:
      dledger-chaos soak --hours 8
      dledger-chaos soak --seed 1 --check --dir /tmp/soak

    \b
    Exit codes:
      0  no guarantee was violated, and at least one run was valid
      1  a guarantee was violated
      2  all runs were inconclusive
      3  a run could not be executed
    """
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-soak-"))
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    console = Console()
    console.print(f"seed {seed}, in {root}", highlight=False, soft_wrap=True)
    if with_checker:
        try:
            require_checker()
        except ConfigError as error:
            raise click.ClickException(error.message) from None
    runs = Soak(console, root, seed, with_checker=with_checker)
    until = time.monotonic() + hours * 3600
    try:
        while time.monotonic() < until:
            runs.next()
    except KeyboardInterrupt:
        console.print("interrupted; all processes of the run are gone")
        runs.print_summary()
        sys.exit(130)
    runs.print_summary()
    sys.exit(runs.exit_code)


class Soak:
    """A sequence of runs below `root`, determined by the seed."""

    def __init__(self, console: Console, root: Path, seed: int, *, with_checker: bool) -> None:
        self._console = console
        self._root = root
        self._rng = Random(seed)
        self._with_checker = with_checker
        available, left_out = runnable([scenario for scenario in all_scenarios() if scenario.fault])
        self._scenarios = available
        if left_out:
            console.print(left_out, style="bold red", markup=False, highlight=False, soft_wrap=True)
        self._number = 0
        self._acknowledged = self._faults = self._leader_changes = 0
        self.verdicts: Counter[str] = Counter()

    def next(self) -> None:
        """Run one more scenario and print its line. Raises KeyboardInterrupt only."""
        scenario, seed = draw(self._rng, self._scenarios), self._rng.randrange(1 << 32)
        self._number += 1
        folder = self._root / f"{self._number:04}-{scenario.name}"
        began = time.monotonic()
        try:
            verdict, text = self._judged(scenario, folder, seed)
        except Exception as error:  # continue with the next run after any error
            verdict, text = "broken", repr(error)
        self.verdicts[verdict] += 1
        what = f"{scenario.name} ({scenario.workload}, {scenario.nodes} nodes, seed {seed})"
        head = f"{self._number:5} {verdict.upper():8}{time.monotonic() - began:5.0f} s  {what}: "
        self._console.print(
            head + text, style=_COLOURS[verdict], markup=False, highlight=False, soft_wrap=True
        )
        if verdict == "valid":
            shutil.rmtree(folder)

    def _judged(self, scenario: Scenario, folder: Path, seed: int) -> tuple[str, str]:
        """Run the scenario; return its verdict and the rest of its line."""
        # The run's directory has the drawn scenario as a file.
        command = f"dledger-chaos run {folder / 'scenario.toml'} --seed {seed}"
        result = asyncio.run(Run(scenario, folder, seed=seed, command=command).run())
        self._count(result)
        text = (
            f"{result.report.acknowledged:,} acknowledged, {result.operations_per_second:,.0f} operations/s, "
            f"{len(result.faults)} faults, {result.leader_changes} changes of leader"
        )
        verdict = result.verdict
        if self._with_checker:
            [(checked, sentence)] = check_runs([folder], folder / "report").values()
            if checked.exit_code and verdict is not RunVerdict.INVALID:
                verdict, text = checked, f"{text}; {sentence}"
        return verdict.value, "; ".join([text, *result.reasons[:1]])

    def _count(self, result: ScenarioResult) -> None:
        self._acknowledged += result.report.acknowledged
        self._faults += len(result.faults)
        self._leader_changes += result.leader_changes

    @property
    def exit_code(self) -> int:
        if self.verdicts["invalid"]:
            return RunVerdict.INVALID.exit_code
        if self.verdicts["broken"]:
            return BROKEN
        return 0 if self.verdicts["valid"] else RunVerdict.VOID.exit_code

    def print_summary(self) -> None:
        counts = ", ".join(f"{self.verdicts[verdict]} {verdict}" for verdict in _COLOURS)
        self._console.print(
            f"{self.verdicts.total()} runs: {counts}; {self._acknowledged:,} acknowledged messages, "
            f"{self._faults:,} faults, {self._leader_changes:,} changes of leader; "
            f"runs that were not valid are in "
            f"{self._root}",
            highlight=False,
            soft_wrap=True,
        )
