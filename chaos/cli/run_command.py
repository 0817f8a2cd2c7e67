"""The command `dledger-chaos run`, which executes scenarios."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chaos.cli.checking import check_runs, require_checker
from chaos.cli.left_out import runnable
from chaos.cli.soak_command import BROKEN
from chaos.plans.scenario import Scenario, all_scenarios, find_scenario
from chaos.run import RESULT_FILE, Run, ScenarioResult, Watch
from chaos.trace.schema import OpType
from chaos.verdict import RunVerdict
from chaos.workloads.messages import lines_of
from dledger.errors import ConfigError, DLedgerError


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of all runs of a command. `changes`: scenario keys to override; a value of None keeps the
    scenario's value."""

    seed: int
    input_file: Path | None
    trace_nodes: bool
    keep: bool
    at_most: float | None
    changes: dict[str, Any]

    def arguments(self) -> list[str]:
        """Return the same options as command-line arguments."""
        options = {"seed": self.seed, "input": self.input_file, "at-most": self.at_most, **self.changes}
        arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
        arguments += [] if self.trace_nodes else ["--no-trace-nodes"]
        return [*arguments, "--keep"] if self.keep else arguments


@click.command()
@click.argument("names", nargs=-1, metavar="SCENARIO...")
@click.option("--all", "run_all", is_flag=True, help="Run all scenarios that `list` shows.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory for the runs.  [default: a new directory]",
)
@click.option("--nodes", type=click.IntRange(1, 9), help="Number of nodes, overriding the scenario.")
@click.option(
    "--seconds", type=click.FloatRange(1, 86_400), help="Duration of the faults, overriding the scenario."
)
@click.option("--rate", type=click.FloatRange(0), help="Messages per second; 0: no limit.")
@click.option(
    "--at-most",
    type=click.FloatRange(0, min_open=True),
    help="Upper limit on the scenario's messages per second.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of all random choices.  [default: random]")
@click.option(
    "--jobs", type=click.IntRange(1, 16), default=1, show_default=True, help="Number of concurrent runs."
)
@click.option("--trace-nodes/--no-trace-nodes", default=True, help="Also trace the nodes.  [default: yes]")
@click.option("--keep", is_flag=True, help="Keep the nodes' files even if the run is valid.")
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file.",
)
@click.option("--check", "with_checker", is_flag=True, help="Judge all runs with dledger-check at the end.")
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
    """Run scenarios, by name or by the path of a TOML file, one after the other or several at a time.

    \b
    Examples:
      dledger-chaos run leader-kill
      dledger-chaos run --all --jobs 2 --check
      dledger-chaos run my-scenario.toml --seed 7 --keep

    \b
    Exit codes:
      0  all valid: no message was lost, duplicated, reordered or invented, and all faults took effect
      1  a guarantee was violated
      2  void: a fault had no effect, or too few messages were acknowledged
      3  a run could not be executed
    """
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    options = _Options(seed, input_file, trace_nodes, keep, at_most, changes)
    try:
        available, left_out = runnable(all_scenarios()) if run_all else ([], "")
        selected = [scenario.name for scenario in available] if run_all else list(names)
        if not selected and not left_out:
            raise click.UsageError("name a scenario, or use --all")
        scenarios = {name: changed(find_scenario(name), at_most, changes) for name in selected}
        lines = lines_of(input_file) if input_file else []
        if with_checker:
            require_checker()
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-chaos-"))
    is_one = len(scenarios) == 1 and directory is not None
    folders = {name: root if is_one else root / f"{s.name}-{seed}" for name, s in scenarios.items()}
    console, began = Console(), time.monotonic()
    _print_warning(console, left_out)
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
        _print_warning(console, left_out)
        worst = max(worst, RunVerdict.VOID.exit_code)
    console.print(f"in {root}", highlight=False, soft_wrap=True)
    sys.exit(worst)


def _print_warning(console: Console, text: str) -> None:
    if text:
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)


def changed(scenario: Scenario, at_most: float | None, changes: dict[str, Any]) -> Scenario:
    """Return the scenario with the overrides of the command line. It is validated again, because it may not
    fit another number of nodes."""
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
    """Run a scenario in this process and return its exit code. A KeyboardInterrupt is passed on after
    cleanup."""
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

    async def whole() -> ScenarioResult:
        async with view.showing():
            return await run.run()

    try:
        result = asyncio.run(whole())
    except (DLedgerError, TimeoutError) as error:
        console.print(f"{scenario.name}: could not be executed: {error!r}", style="red", markup=False)
        return BROKEN
    print_result(console, result)
    return result.verdict.exit_code


def _run_side_by_side(console: Console, folders: dict[str, Path], options: _Options, at_once: int) -> int:
    """Run `at_once` scenarios at a time, each in its own process, and print the output of each when it
    ends."""
    jobs = [
        Job(name, ["run", name, f"--dir={folder}", *options.arguments()]) for name, folder in folders.items()
    ]
    codes: list[int] = []

    def show(ended: JobResult) -> None:
        codes.append(ended.exit_code)
        text = f"{ended.output.rstrip()}\n[{len(codes)} of {len(jobs)}]"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    asyncio.run(run_side_by_side(jobs, at_once, show))
    return max(BROKEN if code > BROKEN or code < 0 else code for code in codes)


def _has_ended(folder: Path) -> bool:
    """Return True if the run reached a verdict."""
    return (folder / RESULT_FILE).exists()


def _check(console: Console, folders: list[Path], report: Path) -> int:
    """Judge runs that had faults and return the exit code. dledger-check considers runs without faults
    inconclusive."""
    console.print(f"checking {len(folders)} runs with Spark", highlight=False)
    try:
        verdicts = check_runs(folders, report)
    except ConfigError as error:
        console.print(error.message, style="red", markup=False, soft_wrap=True)
        return BROKEN
    for verdict, sentence in verdicts.values():
        console.print(sentence, style=COLOURS[verdict], markup=False, highlight=False, soft_wrap=True)
    return max(verdict.exit_code for verdict, _ in verdicts.values())


class Job(NamedTuple):
    """A child process. `arguments`: passed to `dledger-chaos`."""

    name: str
    arguments: Sequence[str]


class JobResult(NamedTuple):
    """The result of a job. `output`: standard output and standard error."""

    job: Job
    exit_code: int
    output: str


async def run_side_by_side(jobs: Sequence[Job], at_once: int, on_end: Callable[[JobResult], object]) -> None:
    """Run all jobs in order, `at_once` at a time, and call `on_end` as each one ends.

    On cancellation, interrupts the running jobs and returns after their cleanup. If this process dies, the
    jobs end at their next line of output, with a broken pipe.
    """
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            on_end(await _run(job))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())


async def _run(job: Job) -> JobResult:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-m",
        "chaos.cli",
        *job.arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        # Harmless if a terminal has already interrupted the process.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await asyncio.shield(asyncio.ensure_future(process.communicate()))
        raise
    assert process.returncode is not None
    return JobResult(job, process.returncode, output.decode(errors="replace"))


_REFRESH_S = 0.5
#: Number of rates in the curve.
_CURVE = 60
_LEVELS = " ▁▂▃▄▅▆▇█"
COLOURS = {RunVerdict.VALID: "green", RunVerdict.INVALID: "bold red", RunVerdict.VOID: "yellow"}


@dataclass(frozen=True, slots=True)
class PanelContent:
    """Content of the panel. `rates`: acknowledged messages per second, oldest first. Latencies are in ms.
    `errors`: code and count, the most frequent first."""

    phase: str
    seconds: float
    leader: str = ""
    faults: Sequence[str] = ()
    acknowledged: int = 0
    operations: int = 0
    rates: Sequence[float] = ()
    p50: float = 0.0
    p99: float = 0.0
    failed: int = 0
    in_doubt: int = 0
    shed: int = 0
    errors: Sequence[tuple[str, int]] = ()
    read: int = 0


def panel_of(shown: PanelContent) -> Panel:
    """Build the panel. Every value has a fixed position, so that the panel is stable while numbers change."""
    # Use `Text` instead of markup: printing a line next to the panel disables markup in the panel as well.
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_row("phase", Text.assemble((shown.phase, "bold"), f", {shown.seconds:.0f} s"))
    faults = "; ".join(shown.faults)
    table.add_row("fault", Text(faults, style="red") if faults else Text("none in force"))
    table.add_row("leader", Text(shown.leader or "-"))
    rate = shown.rates[-1] if shown.rates else 0.0
    total = f", {shown.acknowledged:,} in {shown.operations:,} operations"
    table.add_row("acknowledged", Text.assemble((f"{rate:,.0f}/s", "bold"), total))
    table.add_row("", Text(curve(shown.rates), style="green"))
    table.add_row("latency", Text(f"p50 {shown.p50:.1f} ms, p99 {shown.p99:.1f} ms"))
    outcomes = f"{shown.acknowledged:,} ok, {shown.failed:,} failed, {shown.in_doubt:,} in doubt"
    table.add_row("outcomes", Text(outcomes + (f", {shown.shed:,} not started" if shown.shed else "")))
    errors = ", ".join(f"{code} {count:,}" for code, count in shown.errors)
    table.add_row("errors", Text(errors or "-"))
    table.add_row("read", Text(f"{shown.read:,}"))
    return Panel(table, expand=False, border_style="red" if shown.faults else "dim")


def curve(rates: Sequence[float]) -> str:
    """Draw one character per rate, from zero to the highest. Every nonzero rate is visible."""
    highest = max(rates, default=0.0)
    if not highest:
        return " " * len(rates)
    steps = len(_LEVELS) - 1
    return "".join(_LEVELS[0 if rate <= 0 else max(1, round(rate / highest * steps))] for rate in rates)


@dataclass(slots=True)
class _Rates:
    """Rates of change of a growing count."""

    last_at: float
    last_count: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_CURVE))

    def sample(self, now: float, count: int) -> None:
        self.rates.append((count - self.last_count) / max(1e-9, now - self.last_at))
        self.last_at, self.last_count = now, count


class RunView:
    """Terminal view of a run. The run writes to `watch`; `showing()` keeps the panel current, on terminals
    only."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._rates = _Rates(self._began)
        self._leader = ""
        self.watch = Watch(note=self._note)

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        self._console.print(Text(self._title, style="bold"), soft_wrap=True)
        if not self._console.is_terminal:
            yield
            return
        with Live(self._panel(), console=self._console, auto_refresh=False, transient=True) as live:
            refreshing = asyncio.create_task(self._refresh(live))
            try:
                yield
            finally:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    async def _refresh(self, live: Live) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            watch = self.watch
            if watch.cluster is not None and watch.phase not in ("stopping", "checking"):
                leader = await watch.cluster.leadership()
                self._leader = f"{leader.node_id}, term {leader.term}" if leader else "none"
            if watch.tally is not None:
                self._rates.sample(time.monotonic(), watch.tally.acknowledged)
            live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        watch, seconds = self.watch, time.monotonic() - self._began
        tally = watch.tally
        if tally is None:
            return panel_of(PanelContent(watch.phase, seconds))
        return panel_of(
            PanelContent(
                watch.phase,
                seconds,
                self._leader,
                watch.nemesis.in_force if watch.nemesis else (),
                tally.acknowledged,
                tally.operations,
                tuple(self._rates.rates),
                tally.latency_ms(0.5),
                tally.latency_ms(0.99),
                tally.outcomes[OpType.FAIL],
                tally.outcomes[OpType.INFO],
                tally.shed,
                tally.errors.most_common(3),
                tally.read,
            )
        )


def _during(result: ScenarioResult) -> list[str]:
    if (during := result.during) is None:
        return []
    return [
        f"  during the faults {during.messages:,.0f} messages/s acknowledged in {during.sends:,.0f} sends/s, "
        f"{during.read:,.0f}/s read"
    ]


def print_result(console: Console, result: ScenarioResult) -> None:
    """Print the outcome of a run in a few lines."""
    report = result.report
    colour = COLOURS[result.verdict]
    for text in (
        f"{result.scenario} (seed {result.seed}): [{colour}]{result.verdict.upper()}[/]  "
        f"{report.acknowledged:,} acknowledged ({result.acknowledged_per_second:,.0f}/s in "
        f"{result.operations_per_second:,.0f} operations/s), {report.failed:,} failed, "
        f"{report.in_doubt:,} in doubt; {len(result.faults)} faults, {len(result.hostiles)} hostile clients, "
        f"{result.leader_changes} changes of leader, longest silence {result.longest_silence_ms:,} ms",
        f"  lost {report.lost}, duplicated {report.duplicated}, reordered {report.reordered}, "
        f"phantom {report.phantom}, returned {report.returned}, early {report.early}; "
        f"{report.read:,} read at the end"
        + (f", {report.left_behind:,} lost with nodes" if report.left_behind else "")
        + (
            f", {report.consumed:,} by groups ({report.redelivered:,} redelivered)" if report.consumed else ""
        ),
        *_during(result),
    ):
        console.print(text, highlight=False, soft_wrap=True)
    for reason in result.reasons:
        console.print(f"  {reason}", style=colour, markup=False, highlight=False, soft_wrap=True)
