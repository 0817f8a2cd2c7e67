"""The `dledger-chaos` command."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import tempfile
from pathlib import Path
from random import SystemRandom
from typing import Any

import click
from rich.console import Console

from chaos.cli.checking import check_runs, require_checker
from chaos.cli.convert_command import convert_command
from chaos.cli.demo_command import demo
from chaos.cli.failover_command import failover
from chaos.cli.left_out import runnable
from chaos.cli.soak_command import BROKEN, soak
from chaos.cli.view import COLOURS, RunView, print_result
from chaos.run import Result, Run
from chaos.scenario import Scenario, all_scenarios, find_scenario
from chaos.verdict import Verdict
from chaos.workloads.messages import lines_of
from dledger.errors import ConfigError, DLedgerError


@click.group()
def cli() -> None:
    """Break a real cluster on purpose, under load, and see what it has promised and kept."""


@cli.command("list")
def list_scenarios() -> None:
    """The scenarios that come with this program."""
    for scenario in all_scenarios():
        size = f"{scenario.nodes} nodes, {scenario.seconds:g} s"
        click.echo(f"{scenario.name:24} {scenario.workload:8} {size:16} {scenario.title}")


@cli.command()
@click.argument("names", nargs=-1, metavar="SCENARIO...")
@click.option("--all", "run_all", is_flag=True, help="All scenarios that `list` shows.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where runs go.  [default: a new directory]"
)
@click.option("--nodes", type=click.IntRange(1, 9), help="Instead of the scenario's.")
@click.option("--seconds", type=click.FloatRange(1, 86_400), help="Instead of the scenario's.")
@click.option("--rate", type=click.FloatRange(0), help="Messages per second; 0: as fast as it goes.")
@click.option("--seed", type=click.IntRange(0), help="Of all that is drawn.  [default: random]")
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
    with_checker: bool,
    **changes: Any,
) -> None:
    """Run scenarios, by name or by the path of a TOML file, one after the other.

    \b
    Exit code:
      0  all valid: nothing lost, duplicated, reordered or made up, and the faults really happened
      1  a promise was broken
      2  void: a fault did not happen, or too little was acknowledged to say anything
      3  a run could not be carried out
    """
    try:
        named = [find_scenario(name) for name in names]
        found, left_out = runnable(all_scenarios()) if run_all else (named, "")
        if not found and not left_out:
            raise click.UsageError("name a scenario, or say --all")
        scenarios = [_changed(scenario, changes) for scenario in found]
        lines = lines_of(input_file) if input_file else []
        if with_checker:
            require_checker()
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-chaos-"))
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    console, worst = Console(), Verdict.VOID.exit_code if left_out else 0
    _say_loud(console, left_out)
    done: list[Path] = []
    for scenario in scenarios:
        folder = root / f"{scenario.name}-{seed}" if len(scenarios) > 1 or directory is None else root
        try:
            options = {"lines": lines, "trace_nodes": trace_nodes, "keep_stores": keep}
            result = _run_one(console, scenario, folder, seed, **options)
        except KeyboardInterrupt:
            console.print("interrupted; all processes of the run are gone")
            sys.exit(130)
        except (DLedgerError, TimeoutError) as error:
            console.print(f"{scenario.name}: could not be carried out: {error!r}", style="red", markup=False)
            worst = max(worst, BROKEN)
            continue
        print_result(console, result)
        worst = max(worst, result.verdict.exit_code)
        if scenario.fault:
            done.append(folder)
    if with_checker and done:
        worst = max(worst, _check(console, done, root / "report"))
    _say_loud(console, left_out)
    console.print(f"in {root}", highlight=False, soft_wrap=True)
    sys.exit(worst)


def _say_loud(console: Console, text: str) -> None:
    if text:
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)


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


def _run_one(console: Console, scenario: Scenario, folder: Path, seed: int, **options: Any) -> Result:
    view = RunView(console, f"{scenario.name}: {scenario.title} (seed {seed})")
    drawn = [] if "--seed" in sys.argv else ["--seed", str(seed)]
    command = shlex.join(["dledger-chaos", *sys.argv[1:], *drawn])

    async def whole() -> Result:
        async with view.showing():
            return await Run(scenario, folder, seed=seed, command=command, watch=view.watch, **options).run()

    return asyncio.run(whole())


def _changed(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    """With what the command line says instead. Checked again: another number of nodes may not fit."""
    content = scenario.model_dump()
    content.update({key: value for key, value in changes.items() if key != "rate" and value is not None})
    if changes.get("rate") is not None:
        content["load"]["rate"] = changes["rate"]
    return Scenario.model_validate(content)


cli.add_command(convert_command)
cli.add_command(demo)
cli.add_command(failover)
cli.add_command(soak)


def main() -> None:
    # gRPC tells of every connection that breaks, and here they break on purpose.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # What clients log, they log of what is done to them; what matters of it is in the trace.
    logging.getLogger().addHandler(logging.NullHandler())
    cli()
