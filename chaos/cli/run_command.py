"""`dledger-chaos run`."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import click
from rich.console import Console

from chaos.cli.checking import check_runs, require_checker
from chaos.cli.left_out import runnable
from chaos.cli.side_by_side import Ended, Job, run_side_by_side
from chaos.cli.soak_command import BROKEN
from chaos.cli.view import COLOURS, RunView, print_result
from chaos.plans.scenario import Scenario, all_scenarios, find_scenario
from chaos.run import RESULT_FILE, Result, Run
from chaos.verdict import Verdict
from chaos.workloads.messages import lines_of
from dledger.errors import ConfigError, DLedgerError


@dataclass(frozen=True, slots=True)
class _Options:
    """Of every run. `changes`: keys of scenarios, None: as the scenario says."""

    seed: int
    input_file: Path | None
    trace_nodes: bool
    keep: bool
    at_most: float | None
    changes: dict[str, Any]

    def arguments(self) -> list[str]:
        """The same on a command line."""
        given = {"seed": self.seed, "input": self.input_file, "at-most": self.at_most, **self.changes}
        found = [f"--{name}={value}" for name, value in given.items() if value is not None]
        found += [] if self.trace_nodes else ["--no-trace-nodes"]
        return [*found, "--keep"] if self.keep else found


@click.command()
@click.argument("names", nargs=-1, metavar="SCENARIO...")
@click.option("--all", "run_all", is_flag=True, help="All scenarios that `list` shows.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where runs go.  [default: a new directory]"
)
@click.option("--nodes", type=click.IntRange(1, 9), help="Instead of the scenario's.")
@click.option("--seconds", type=click.FloatRange(1, 86_400), help="Instead of the scenario's.")
@click.option("--rate", type=click.FloatRange(0), help="Messages per second; 0: as fast as it goes.")
@click.option(
    "--at-most",
    type=click.FloatRange(0, min_open=True),
    help="Messages per second where the scenario has more, or no limit.",
)
@click.option("--seed", type=click.IntRange(0), help="Of all that is drawn.  [default: random]")
@click.option(
    "--jobs", type=click.IntRange(1, 16), default=1, show_default=True, help="Runs at the same time."
)
@click.option(
    "--trace-nodes/--no-trace-nodes", default=True, help="Have nodes write traces too.  [default: yes]"
)
@click.option("--keep", is_flag=True, help="Keep what nodes have stored, also if the run is valid.")
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file.",
)
@click.option("--check", "with_checker", is_flag=True, help="Have dledger-check judge all runs in the end.")
def run(
    names: tuple[str, ...],
    run_all: bool,
    directory: Path | None,
    seed: int | None,
    input_file: Path | None,
    trace_nodes: bool,
    keep: bool,
    at_most: float | None,
    jobs: int,
    with_checker: bool,
    **changes: Any,
) -> None:
    """Run scenarios, by name or by the path of a TOML file, one after the other or some at a time.

    \b
    Examples:
      dledger-chaos run leader-kill
      dledger-chaos run --all --jobs 2 --check
      dledger-chaos run my-scenario.toml --seed 7 --keep

    \b
    Exit codes:
      0  all valid: nothing lost, duplicated, reordered or made up, and the faults really happened
      1  a promise was broken
      2  void: a fault did not happen, or too little was acknowledged to say anything
      3  a run could not be carried out
    """
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    options = _Options(seed, input_file, trace_nodes, keep, at_most, changes)
    try:
        found, left_out = runnable(all_scenarios()) if run_all else ([], "")
        asked = [scenario.name for scenario in found] if run_all else list(names)
        if not asked and not left_out:
            raise click.UsageError("name a scenario, or say --all")
        scenarios = {name: changed(find_scenario(name), at_most, changes) for name in asked}
        lines = lines_of(input_file) if input_file else []
        if with_checker:
            require_checker()
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-chaos-"))
    is_one = len(scenarios) == 1 and directory is not None
    folders = {name: root if is_one else root / f"{s.name}-{seed}" for name, s in scenarios.items()}
    console, began = Console(), time.monotonic()
    _say_loud(console, left_out)
    try:
        if jobs > 1 and len(scenarios) > 1:
            worst = _run_side_by_side(console, folders, options, jobs)
        else:
            codes = [_run_here(console, s, folders[n], options, lines) for n, s in scenarios.items()]
            worst = max(codes, default=0)
    except KeyboardInterrupt:
        console.print("interrupted; all processes of the run are gone")
        sys.exit(130)
    done = [
        folders[name] for name, s in scenarios.items() if (s.fault or s.hostile) and _has_ended(folders[name])
    ]
    if len(scenarios) > 1:
        console.print(f"{len(scenarios)} runs in {time.monotonic() - began:.0f} s", highlight=False)
    if with_checker and done:
        worst = max(worst, _check(console, done, root / "report"))
    if left_out:
        _say_loud(console, left_out)
        worst = max(worst, Verdict.VOID.exit_code)
    console.print(f"in {root}", highlight=False, soft_wrap=True)
    sys.exit(worst)


def _say_loud(console: Console, text: str) -> None:
    if text:
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)


def changed(scenario: Scenario, at_most: float | None, changes: dict[str, Any]) -> Scenario:
    """With what the command line says instead. Checked again: another number of nodes may not fit."""
    content = scenario.model_dump()
    content.update({key: value for key, value in changes.items() if key != "rate" and value is not None})
    load = content["load"]
    if changes.get("rate") is not None:
        load["rate"] = changes["rate"]
    if at_most is not None:
        load["rate"] = min(load["rate"] or at_most, at_most)
    return Scenario.model_validate(content)


def _run_here(
    console: Console, scenario: Scenario, folder: Path, options: _Options, lines: Sequence[bytes]
) -> int:
    """In this process. The exit code of this one run; KeyboardInterrupt when it has been cleaned up."""
    view = RunView(console, f"{scenario.name}: {scenario.title} (seed {options.seed})")
    drawn = [] if any(word.startswith("--seed") for word in sys.argv) else ["--seed", str(options.seed)]
    run = Run(
        scenario,
        folder,
        seed=options.seed,
        command=shlex.join(["dledger-chaos", *sys.argv[1:], *drawn]),
        watch=view.watch,
        lines=lines,
        trace_nodes=options.trace_nodes,
        keep_stores=options.keep,
    )

    async def whole() -> Result:
        async with view.showing():
            return await run.run()

    try:
        result = asyncio.run(whole())
    except (DLedgerError, TimeoutError) as error:
        console.print(f"{scenario.name}: could not be carried out: {error!r}", style="red", markup=False)
        return BROKEN
    print_result(console, result)
    return result.verdict.exit_code


def _run_side_by_side(console: Console, folders: dict[str, Path], options: _Options, at_once: int) -> int:
    """`at_once` at a time, each in a process of its own; what it says comes when it has ended."""
    jobs = [
        Job(name, ["run", name, f"--dir={folder}", *options.arguments()]) for name, folder in folders.items()
    ]
    codes: list[int] = []

    def show(ended: Ended) -> None:
        codes.append(ended.exit_code)
        text = f"{ended.output.rstrip()}\n[{len(codes)} of {len(jobs)}]"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    asyncio.run(run_side_by_side(jobs, at_once, show))
    return max(BROKEN if code > BROKEN or code < 0 else code for code in codes)


def _has_ended(folder: Path) -> bool:
    """With a verdict."""
    return (folder / RESULT_FILE).exists()


def _check(console: Console, folders: list[Path], report: Path) -> int:
    """What dledger-check says of runs with faults; without any, a run proves nothing to it. The exit code."""
    console.print(f"checking {len(folders)} runs with Spark", highlight=False)
    try:
        found = check_runs(folders, report)
    except ConfigError as error:
        console.print(error.message, style="red", markup=False, soft_wrap=True)
        return BROKEN
    for verdict, sentence in found.values():
        console.print(sentence, style=COLOURS[verdict], markup=False, highlight=False, soft_wrap=True)
    return max(verdict.exit_code for verdict, _ in found.values())
