"""The command `dledger-chaos demo`, which executes and checks a run with three faults.

Sends a real file through brokers whose master is killed, paused and isolated. Then the checker determines
from the trace alone whether messages were lost.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import click

from chaos.cli.checker_setup import CheckerSetup
from chaos.plans.scenario import Scenario, find_scenario
from chaos.run import Run, ScenarioResult, Watch
from dledger.errors import ConfigError, DLedgerError

SCENARIO = "main-job"
#: Meaning of the checker's exit codes, which this command shares.
_MEANINGS = {0: "OK", 1: "FAILED", 2: "UNKNOWN"}
_BROKEN = 255
#: Phase of a run -> label and text to print.
_PHASES = {
    "warming up": ("load", "producers send the lines to several queues; a group of consumers reads them"),
    "faults": ("faults", "the master fails three times; each time another broker takes over"),
    "healing": ("healing", "all faults are over; waiting until all three nodes are healthy"),
    "draining": ("draining", "a final reader reads every queue from start to end"),
    "stopping": ("stopping", "the cluster stops"),
    "reading what is stored": ("files", "the files of the three nodes are read and compared"),
}
#: Fault -> texts for its start and its end.
_FAULTS = {
    "kill": ("is killed (SIGKILL)", "is back"),
    "stop": ("is paused (SIGSTOP)", "resumes (SIGCONT)"),
    "isolate": ("is cut off from the other nodes", "is connected again"),
}
_FAULT = re.compile(r"(\w+) leader \((\w+)\) (started|ended)")
CHECK_LOG = "check.log"
_COLOURS = {"fault": "yellow", "PROBLEM": "red", "OK": "green", "FAILED": "red"}


@click.command()
@click.option(
    "--input",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose lines are sent in rotation.  [default: a long text of Python's library]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory for all files, empty or absent.  [default: a new directory]",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of all random choices.  [default: random]")
@click.option(
    "--scenario",
    "name",
    default=SCENARIO,
    show_default=True,
    help="Scenario to run: a name (see `list`) or a file.",
)
@click.option(
    "--prepare",
    metavar="COMMAND",
    help="Shell command that installs the checker. It runs in the background; the check waits for it.",
)
def demo(path: Path | None, directory: Path | None, seed: int | None, name: str, prepare: str | None) -> None:
    """Send a file through brokers, kill, pause and isolate their master, and check that no message is lost.

    Starts three nodes with brokers and a NameServer as separate processes. Clients and nodes write a
    trace of all operations and events. At the end the consistency checker (Spark, needs Java 17) reads the
    trace and prints the verdict. The demo takes about two minutes. `make demo` installs Spark meanwhile, if
    it is missing.

    \b
    Examples:
      dledger-chaos demo
      dledger-chaos demo --input /var/log/syslog --dir /tmp/demo
      dledger-chaos demo --seed 1

    \b
    Exit codes:
      0    valid: every guarantee was kept
      1    a guarantee was violated
      2    unknown: the run is inconclusive; or an invalid option
      130  interrupted (Ctrl-C)
      255  the run could not be executed
    """
    scenario = find_scenario(name)
    inputs = [path] if path is not None else default_input()
    lines = [line for file in inputs for line in read_lines(file)]
    print_line("input", f"{', '.join(map(str, inputs))}: {len(lines):,} lines")
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    began = time.monotonic()
    try:
        with CheckerSetup(prepare, lambda text: print_line("install", text)) as setup:
            result = asyncio.run(_break(scenario, root, seed, lines))
            _print_result(result)
            _wait_for(setup, root)
    except (DLedgerError, TimeoutError) as error:
        print_line("FAILED", f"the run could not be executed: {error!r}; its files are in {root}")
        sys.exit(_BROKEN)
    except KeyboardInterrupt:
        print_line("FAILED", "interrupted; all processes of the run are gone")
        sys.exit(130)
    code = _check(root)
    print_line(_MEANINGS.get(code, "FAILED"), f"{_sentence(code)}; {time.monotonic() - began:.0f} s in total")
    sys.exit(code if code in _MEANINGS else _BROKEN)


def print_line(what: str, text: str) -> None:
    """Print a line of progress. click drops the colors when the output is not a terminal."""
    click.echo(f"{click.style(f'{what:<10}', fg=_COLOURS.get(what), bold=True)} {text}")


async def _break(scenario: Scenario, root: Path, seed: int, lines: Sequence[bytes]) -> ScenarioResult:
    began = time.monotonic()

    def note(text: str) -> None:
        match = _FAULT.fullmatch(text)
        if text in _PHASES:
            print_line(*_PHASES[text])
        elif match and match[1] in _FAULTS:
            begin, end = _FAULTS[match[1]]
            event = f"{match[2]}, the master, {begin}" if match[3] == "started" else f"{match[2]} {end}"
            print_line("fault", f"{time.monotonic() - began:5.1f} s  {event}")
        elif text != watch.phase:
            print_line("PROBLEM", text)

    print_line("cluster", f"three nodes with brokers, and a NameServer, in {root} (seed {seed})")
    watch = Watch(note=note)
    return await Run(scenario, root, seed=seed, lines=lines, watch=watch).run()


def _wait_for(setup: CheckerSetup, root: Path) -> None:
    """Wait for the installation of the checker. Exits if it has failed."""
    if setup.is_running:
        print_line("install", "the run is over; the check starts when Spark is installed")
    try:
        setup.wait()
    except ConfigError as error:
        print_line("FAILED", f"{error.message}\nthe run is not checked; its files are in {root}")
        sys.exit(_BROKEN)


def _print_result(result: ScenarioResult) -> None:
    report = result.report
    stored = report.in_doubt_stored
    doubt = f" ({stored:,} stored, {report.in_doubt - stored:,} not stored)" if report.in_doubt else ""
    print_line(
        "clients",
        f"{report.acknowledged:,} messages acknowledged, {report.failed:,} refused, "
        f"{report.in_doubt:,} in doubt{doubt}",
    )
    print_line(
        "repeats",
        f"{result.repeated:,} sends were repeated; brokers recognized {result.recognized:,} whose earlier "
        "attempt was stored",
    )
    pauses = (
        f"{fault.partition(' ')[0]} {pause_ms:,} ms"
        for fault, pause_ms in zip(result.faults, result.pauses_ms, strict=True)
    )
    print_line(
        "pauses",
        f"{result.leader_changes} changes of master; longest time without an acknowledgment: "
        f"{', '.join(pauses)}",
    )


def _check(root: Path) -> int:
    """Run the checker as a process and return its exit code. The output of Java and Spark goes to a file."""
    print_line("checking", "Spark replays the trace; this takes a while")
    command = [sys.executable, "-m", "chaos.checker.main", str(root), "--out", str(root / "report")]
    # Files instead of pipes: the checker's JVM may still clean up after the checker has exited.
    with (root / CHECK_LOG).open("wb") as log, tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(command, stdout=output, stderr=log, check=False)
        output.seek(0)
        report = output.read()
    for line in report.splitlines():
        what, _, text = line.partition(": ")
        print_line(*((what, text) if what == "report" else ("verdict", line)))
    if done.returncode not in _MEANINGS:
        print_line("PROBLEM", (root / CHECK_LOG).read_text(errors="replace").strip().rpartition("\n")[2])
    return done.returncode


def _sentence(code: int) -> str:
    return {
        0: "nothing that was acknowledged was lost, doubled or put out of order",
        1: "a guarantee was violated; the report lists the contradictory lines of the trace",
        2: "this run is inconclusive; see the report for the reason",
    }.get(code, f"the checker failed; see {CHECK_LOG}")


# The first is the text of Python's help, about 15,000 lines. The others are long modules, for distributions
# without it.
_CANDIDATES = ("pydoc_data/topics.py", "_pydecimal.py", "turtle.py", "typing.py", "argparse.py")
_ENOUGH_LINES = 10_000


def default_input() -> list[Path]:
    """Return the files to send: as few as needed for enough lines."""
    library = Path(sysconfig.get_path("stdlib"))
    chosen: list[Path] = []
    lines = 0
    for name in _CANDIDATES:
        path = library / name
        if lines < _ENOUGH_LINES and path.is_file():
            chosen.append(path)
            lines += len(read_lines(path))
    if not chosen:
        raise ConfigError(f"no text files in {library}; specify a file with --input")
    return chosen


def read_lines(path: Path) -> list[bytes]:
    """Split a file into lines as `dledger append` does: the last line needs no newline, and empty lines
    count."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return lines[:-1] if lines[-1] == b"" else lines
