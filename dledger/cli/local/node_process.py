"""One server process of a local cluster: started, found again, signalled, and its end explained.

The server runs under a tiny shell that waits for it and writes down how it ended. So the reason survives
whoever started it: `cluster up --detach` returns, and `cluster status` can still say "killed by SIGKILL".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dledger
from dledger.errors import DLedgerError

_POLL_SECONDS = 0.01
_SPAWN_SECONDS = 10.0
_KEEPER_SECONDS = 2.0

# $1 is the folder for pid, exit and log; the rest is the command. The signals are only ignored once the
# server runs, because it would inherit that.
_KEEPER = """
run=$1; shift
umask 077
"$@" </dev/null >>"$run/server.log" 2>&1 &
child=$!
trap '' HUP INT TERM
echo "$child" >"$run/pid.new" && mv "$run/pid.new" "$run/pid"
wait "$child"
code=$?
echo "$code" >"$run/exit.new" && mv "$run/exit.new" "$run/exit"
"""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the operating system says of a pid."""

    state: str  # one letter as in ps: R, S, D, T, Z, ...
    command: str


def process_facts(pid: int) -> ProcessFacts | None:
    """None when there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _facts_from_ps(pid)
    # The name in parentheses may itself hold blanks and parentheses.
    state = status.rpartition(")")[2].split()[0]
    return ProcessFacts(state, command.replace(b"\0", b" ").decode(errors="replace"))


def _facts_from_ps(pid: int) -> ProcessFacts | None:
    shown = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = shown.stdout.strip().partition(" ")
    return ProcessFacts(state[:1], command.strip()) if state else None


class NodeProcess:
    """The server of one node. `folder` holds its config, log, pid and exit code. `module`: another server
    than a node's, which takes `--config`, too."""

    def __init__(self, folder: Path, config: Path, module: str | None = None) -> None:
        self.folder = folder
        self.config = config
        self._module = module
        #: Of every start, over that of this process.
        self.environment: dict[str, str] = {}
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """Of the last start, whether or not it still runs."""
        return _read_int(self.folder / "pid")

    @property
    def is_alive(self) -> bool:
        return self._facts() is not None

    @property
    def is_paused(self) -> bool:
        facts = self._facts()
        return facts is not None and facts.state == "T"

    def start(self, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> int:
        """Start the server and return its pid. Does not wait until it serves."""
        assert not self.is_alive, f"{self.config} already runs"
        for name in ("pid", "exit"):
            (self.folder / name).unlink(missing_ok=True)
        self._reap()
        shell = shutil.which("sh") or "/bin/sh"
        self._keeper = subprocess.Popen(
            [shell, "-c", _KEEPER, "sh", str(self.folder), *self._command(), *options],
            cwd=self.folder,
            env={**os.environ, **import_path(), **self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Its own session: Ctrl-C at the supervisor must not reach the servers before their turn.
            start_new_session=True,
        )
        deadline = time.monotonic() + _SPAWN_SECONDS
        while (pid := self.pid) is None:
            if time.monotonic() > deadline:
                raise DLedgerError(f"{self.config}: the server process did not appear, see {self.log}")
            time.sleep(_POLL_SECONDS)
        return pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the server is alive; a pid that others use by now is left alone."""
        pid = self.pid
        if pid is not None and self.is_alive:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return

    def wait(self, seconds: float) -> bool:
        """Wait until the server has ended and its end is written down. False: it still runs."""
        deadline = time.monotonic() + seconds
        while self.is_alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        self._exit_code()
        if self._keeper is not None:
            self._reap()
        return True

    def stop(self, seconds: float) -> bool:
        """Ask the server to end; insist after `seconds`. False: it had to be killed."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a paused process would never see the request
        if self.wait(seconds):
            return True
        self.kill()
        return False

    def kill(self, seconds: float = 10.0) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.send_signal(signal.SIGKILL)
        if not self.wait(seconds):
            raise DLedgerError(f"pid {self.pid} ({self.config}) survives SIGKILL: is its disk stuck?")

    def why_down(self) -> str:
        """How the last run ended, in words; empty if it never ran or still runs."""
        pid = self.pid
        if pid is None or self.is_alive:
            return ""
        code = self._exit_code()
        if code is None:
            facts = process_facts(pid)
            if facts is not None and facts.state != "Z":
                return f"ended, nobody saw how; pid {pid} belongs to another process now"
            return "ended, nobody saw how (was the machine restarted?)"
        if code == 0:
            return "stopped (exit code 0)"
        if code > 128:  # the shell's way to say: by a signal
            return f"killed by {_signal_name(code - 128)}"
        return f"failed (exit code {code})"

    def last_errors(self, lines: int = 3) -> list[str]:
        """The last lines of the log, those that look like errors if there are any."""
        tail = tail_of(self.log, 40)
        errors = [line for line in tail if "error" in line.lower() or "critical" in line.lower()]
        return (errors or tail)[-lines:]

    def _exit_code(self) -> int | None:
        """Of a server that has ended. Its keeper writes it a moment later, or never if it is gone too."""
        deadline = time.monotonic() + _KEEPER_SECONDS
        while (code := _read_int(self.folder / "exit")) is None and self.pid is not None:
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)
        return code

    def _facts(self) -> ProcessFacts | None:
        """The facts of our server; None if it ended or if its pid went to another process."""
        pid = self.pid
        if pid is None or (self.folder / "exit").exists():
            return None
        facts = process_facts(pid)
        # A dead process that nobody has waited for yet has no command line any more.
        if facts is None or facts.state == "Z" or str(self.config) not in facts.command:
            return None
        return facts

    def _command(self) -> Sequence[str]:
        if self._module is None:
            return server_command(self.config)
        return [sys.executable, "-P", "-m", self._module, "--config", str(self.config)]

    def _reap(self) -> None:
        if self._keeper is not None:
            self._keeper.wait()
            self._keeper = None


def server_command(config: Path) -> Sequence[str]:
    # -P: the working directory must not shadow modules of the standard library.
    return [sys.executable, "-P", "-m", "dledger.cli", "server", "--config", str(config)]


def tail_of(path: Path, lines: int, max_bytes: int = 64 * 1024) -> list[str]:
    """The last lines of a file, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def import_path() -> dict[str, str]:
    """The environment in which a child finds the same dledger, installed or not."""
    package = Path(dledger.__file__ or "").resolve().parent.parent
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{package}{os.pathsep}{others}" if others else str(package)}


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
