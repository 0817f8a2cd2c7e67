"""`dledger-chaos demo`: the main job. A real file through brokers whose master is killed, paused and
isolated, and then the checker, which says from the trace alone whether anything was lost."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import click

from chaos.cli.demo_input import default_input, read_lines
from chaos.plans.scenario import Scenario, find_scenario
from chaos.run import Result, Run, Watch
from dledger.errors import DLedgerError

SCENARIO = "main-job"
#: The checker's exit codes, and what they mean for this command, whose own are the same.
_MEANINGS = {0: "OK", 1: "FAILED", 2: "UNKNOWN"}
_BROKEN = 255
#: What a run says of itself -> the word and the text for it.
_PHASES = {
    "warming up": ("load", "producers send the lines to several queues; a group of consumers reads them"),
    "faults": (
        "faults",
        "now the master fails, three times; another broker takes over each time",
    ),
    "healing": ("healing", "all faults are over; waiting until all three nodes are well again"),
    "draining": ("draining", "every queue is read once more, from its beginning to its end"),
    "stopping": ("stopping", "the cluster stops"),
    "reading what is stored": ("files", "what stands on the disks of the three nodes is read as well"),
}
#: By fault: what it is to begin and to end.
_FAULTS = {
    "kill": ("is killed (SIGKILL)", "is back"),
    "stop": ("is paused (SIGSTOP)", "goes on (SIGCONT)"),
    "isolate": ("is cut off from the other nodes", "is reached again"),
}
_FAULT = re.compile(r"(\w+) leader \((\w+)\) (began|ended)")
CHECK_LOG = "check.log"
_COLOURS = {"fault": "yellow", "PROBLEM": "red", "OK": "green", "FAILED": "red"}


@click.command()
@click.option(
    "--input",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file whose lines are sent, again and again.  [default: a long text of Python's library]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where everything goes, empty or absent.  [default: a new directory]",
)
@click.option("--seed", type=click.IntRange(0), help="Of all that is drawn.  [default: random]")
@click.option(
    "--scenario",
    "name",
    default=SCENARIO,
    show_default=True,
    help="What happens: a name, or a file; see `list`.",
)
def demo(path: Path | None, directory: Path | None, seed: int | None, name: str) -> None:
    """Send a file through brokers, kill, pause and isolate their master, and prove that nothing was lost.

    Starts three nodes with brokers and a NameServer as processes of their own. Clients and nodes write a
    trace of everything they do. At the end the consistency checker (Spark, needs Java 17) reads the trace
    and gives the verdict. It takes about two minutes. `make demo` installs what is missing first.

    \b
    Examples:
      dledger-chaos demo
      dledger-chaos demo --input /var/log/syslog --dir /tmp/demo
      dledger-chaos demo --seed 1

    \b
    Exit codes:
      0    valid: every promise was kept, and the run proves it
      1    a promise was broken
      2    unknown: the run proves nothing; or a wrong option
      130  interrupted (Ctrl-C)
      255  the run could not be carried out
    """
    scenario = find_scenario(name)
    inputs = [path] if path is not None else default_input()
    lines = [line for file in inputs for line in read_lines(file)]
    say("input", f"{', '.join(map(str, inputs))}: {len(lines):,} lines")
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    began = time.monotonic()
    try:
        result = asyncio.run(_break(scenario, root, seed, lines))
    except (DLedgerError, TimeoutError) as error:
        say("FAILED", f"the run could not be carried out: {error!r}; its files are in {root}")
        sys.exit(_BROKEN)
    except KeyboardInterrupt:
        say("FAILED", "interrupted; all processes of the run are gone")
        sys.exit(130)
    _tell(result)
    code = _check(root)
    say(_MEANINGS.get(code, "FAILED"), f"{_sentence(code)}; {time.monotonic() - began:.0f} s in all")
    sys.exit(code if code in _MEANINGS else _BROKEN)


def say(what: str, text: str) -> None:
    """Print one line of the story. Colours only on a terminal."""
    click.echo(f"{click.style(f'{what:<10}', fg=_COLOURS.get(what), bold=True)} {text}")


async def _break(scenario: Scenario, root: Path, seed: int, lines: Sequence[bytes]) -> Result:
    began = time.monotonic()

    def note(text: str) -> None:
        match = _FAULT.fullmatch(text)
        if text in _PHASES:
            say(*_PHASES[text])
        elif match and match[1] in _FAULTS:
            begin, end = _FAULTS[match[1]]
            told = f"{match[2]}, the master, {begin}" if match[3] == "began" else f"{match[2]} {end}"
            say("fault", f"{time.monotonic() - began:5.1f} s  {told}")
        elif text != watch.phase:
            say("PROBLEM", text)

    say("cluster", f"three nodes with brokers, and a NameServer, in {root} (seed {seed})")
    watch = Watch(note=note)
    return await Run(scenario, root, seed=seed, lines=lines, watch=watch).run()


def _tell(result: Result) -> None:
    report = result.report
    say(
        "clients",
        f"{report.acknowledged:,} messages acknowledged, {report.failed:,} refused, "
        f"{report.in_doubt:,} in doubt; {result.leader_changes} changes of master, "
        f"the longest silence {result.longest_silence_ms:,} ms",
    )


def _check(root: Path) -> int:
    """Run the checker in a process of its own; its exit code. What Java and Spark say goes into a file."""
    say("checking", "Spark replays the trace; this takes a while")
    command = [sys.executable, "-m", "chaos.checker.main", str(root), "--out", str(root / "report")]
    # Files and not pipes: the checker's JVM may have things to put away after the checker has ended.
    with (root / CHECK_LOG).open("wb") as log, tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(command, stdout=output, stderr=log, check=False)
        output.seek(0)
        said = output.read()
    for line in said.splitlines():
        what, _, text = line.partition(": ")
        say(*((what, text) if what == "report" else ("verdict", line)))
    if done.returncode not in _MEANINGS:
        say("PROBLEM", (root / CHECK_LOG).read_text(errors="replace").strip().rpartition("\n")[2])
    return done.returncode


def _sentence(code: int) -> str:
    return {
        0: "nothing that was acknowledged was lost, doubled or put out of order",
        1: "a promise was broken; the report names the lines of the trace that contradict each other",
        2: "this run proves nothing; the report says why",
    }.get(code, f"the checker failed; see {CHECK_LOG}")
