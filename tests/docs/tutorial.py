"""Follow a tutorial of docs/tutorials in an empty directory.

    python -m tests.docs.tutorial PAGE DIRECTORY [--own-network]

A comment before each code block names its use:

    <!-- file -->              write the block to the file that its first line names
    <!-- run -->               run the commands; a `text` block after it is the expected output
    <!-- run: exit 1 -->       the same, and the last command exits with 1
    <!-- run: terminals -->    start each line in a terminal of its own
    <!-- printed: terminals -->  wait until the last line that each terminal has printed is this one
    <!-- kill: COMMAND -->     kill the terminal with this command
    <!-- shown: REASON -->     not run, because REASON

`...` in an expected output matches any text.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import ROOT

_STEP = re.compile(
    r"<!-- (?P<use>file|run|printed|kill|shown)(?:: (?P<detail>[^>]+))? -->\n"
    r"(?:```\w*\n(?P<block>.*?)\n```(?:\n```text\n(?P<output>.*?)\n```)?)?",
    re.DOTALL,
)
_PATIENCE_S = 90.0
#: Programs that the reader installs and the tests have already: commands, and what the test runs instead.
_INSTALLED = {"python -m venv client": f"ln -s {ROOT / 'build' / 'clients' / 'python'} client"}


@dataclass(frozen=True, slots=True)
class Step:
    """`block` is empty for `kill`; `output` is None if any output is right."""

    use: str
    detail: str
    block: str
    output: str | None


def steps_of(page: str) -> Iterator[Step]:
    for match in _STEP.finditer(page):
        yield Step(match["use"], match["detail"] or "", match["block"] or "", match["output"])


def matches(expected: str, printed: str) -> bool:
    """Compare outputs. A line `...` stands for any lines, also none; within a line it stands for any text."""
    pattern = re.escape(expected).replace("\\\n", "\n").replace(r"\.\.\.", ".*")
    pattern = re.sub(r"^\.\*\n", r"(?:.*\\n)?", pattern)
    pattern = re.sub(r"\n\.\*$", r"(?:\\n.*)?", pattern)
    return re.fullmatch(pattern, printed.strip("\n"), re.DOTALL) is not None


class Terminal:
    """A command that runs until it is killed."""

    def __init__(self, command: str, directory: Path, environment: dict[str, str]) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            shlex.split(command),
            cwd=directory,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, wanted: str) -> None:
        """Wait until the last lines are these."""
        count = wanted.count("\n") + 1
        with self._changed:
            found = self._changed.wait_for(
                lambda: matches(wanted, "\n".join(self._lines[-count:])), _PATIENCE_S
            )
            assert found, f"expected {wanted!r}, printed:\n" + "\n".join(self._lines[-50:])

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(_PATIENCE_S)


@dataclass
class Walk:
    """The reader's directory, shell variables and terminals."""

    directory: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)

    def follow(self, step: Step) -> None:
        match step.use:
            case "file":
                name = step.block.partition("\n")[0].removeprefix("# ")
                (self.directory / name).write_text(step.block + "\n")
            case "run" if step.detail == "terminals":
                for line in step.block.splitlines():
                    self.terminals[line] = Terminal(line, self.directory, self._environment())
            case "run":
                self._run(step)
            case "printed":
                for terminal in self.terminals.values():
                    terminal.wait_for(step.block)
            case "kill":
                self.terminals.pop(step.detail).end(signal.SIGKILL)

    def end(self) -> None:
        for terminal in self.terminals.values():
            terminal.end(signal.SIGTERM)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DLEDGER_")}
        return {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONPATH": str(ROOT)}

    def _run(self, step: Step) -> None:
        variables = self.directory / ".variables"
        text = step.block
        for installed, present in _INSTALLED.items():
            text = text.replace(installed, present)
        script = f"[ ! -e {variables} ] || . {variables}\nset -e\ntrap 'export -p > {variables}' EXIT\n{text}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self._environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        print(f"{step.block}\n{done.stdout}", flush=True)
        expected = int(step.detail.removeprefix("exit ") or 0)
        assert done.returncode == expected, f"exit {done.returncode}, expected {expected}"
        if step.output is not None:
            assert matches(step.output, done.stdout), f"expected:\n{step.output}\nprinted:\n{done.stdout}"


def raise_loopback() -> None:
    """Enable the loopback device of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def main(page: str, directory: str, *options: str) -> None:
    if options == ("--own-network",):
        raise_loopback()
    walk = Walk(Path(directory))
    try:
        for step in steps_of(Path(page).read_text()):
            walk.follow(step)
    finally:
        walk.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
