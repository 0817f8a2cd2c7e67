"""Starts, finds and signals one server process of a local cluster, and reports why it ended.

The server runs under a small shell that waits for it and records its exit code. The reason thus remains known
after the starting process has ended: `cluster status` can still report "killed by SIGKILL" after `cluster up
--detach`.
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

# $1 is the folder for pid, exit and log; the rest is the command. The shell starts to ignore signals only
# after the server has started, because the server would inherit the setting.
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
    """The state of a process according to the operating system."""

    state: str  # one letter as in ps: R, S, D, T, Z, ...
    command: str


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts of a pid, or None if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _facts_from_ps(pid)
    # The name in parentheses may itself contain blanks and parentheses.
    state = status.rpartition(")")[2].split()[0]
    return ProcessFacts(state, command.replace(b"\0", b" ").decode(errors="replace"))


def _facts_from_ps(pid: int) -> ProcessFacts | None:
    shown = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = shown.stdout.strip().partition(" ")
    return ProcessFacts(state[:1], command.strip()) if state else None


class NodeProcess:
    """The server of one node. `folder` contains its config, log, pid and exit code. `module`: another server
    to run instead; it must accept `--config`."""

    def __init__(self, folder: Path, config: Path, module: str | None = None) -> None:
        self.folder = folder
        self.config = config
        self._module = module
        #: Added to the environment of every start.
        self.environment: dict[str, str] = {}
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The pid of the last start, even if that process has ended."""
        return _read_int(self.folder / "pid")

    @property
    def is_alive(self) -> bool:
        return self._facts() is not None

    @property
    def is_paused(self) -> bool:
        facts = self._facts()
        return facts is not None and facts.state == "T"

    def start(self, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> int:
        """Start the server and return its pid, without waiting until it serves."""
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
            # Use a separate session: Ctrl-C at the supervisor must not reach the servers before the
            # supervisor stops them.
            start_new_session=True,
        )
        try:
            return self._started_pid()
        except KeyboardInterrupt:
            self._started_pid()  # without it, the caller could not stop the server
            raise

    def _started_pid(self) -> int:
        deadline = time.monotonic() + _SPAWN_SECONDS
        while (pid := self.pid) is None:
            if time.monotonic() > deadline:
                raise DLedgerError(f"{self.config}: the server process did not start; see {self.log}")
            time.sleep(_POLL_SECONDS)
        return pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the server is alive. A process that has reused its pid never receives the
        signal."""
        pid = self.pid
        if pid is not None and self.is_alive:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return

    def wait(self, seconds: float) -> bool:
        """Wait until the server has ended and its exit code is recorded. Returns False if it still runs."""
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
        """Stop the server gracefully; kill it after `seconds`. Returns False if it was killed."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a suspended process would not handle SIGTERM
        if self.wait(seconds):
            return True
        self.kill()
        return False

    def kill(self, seconds: float = 10.0) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.send_signal(signal.SIGKILL)
        if not self.wait(seconds):
            raise DLedgerError(
                f"process {self.pid} ({self.config}) is still running after SIGKILL; check whether its "
                "disk hangs"
            )

    def why_down(self) -> str:
        """Describe how the last run ended. Returns an empty text if the server never ran or still runs."""
        pid = self.pid
        if pid is None or self.is_alive:
            return ""
        code = self._exit_code()
        if code is None:
            facts = process_facts(pid)
            if facts is not None and facts.state != "Z":
                return f"ended for an unknown reason; pid {pid} now belongs to another process"
            return "ended for an unknown reason (was the machine restarted?)"
        if code == 0:
            return "stopped (exit code 0)"
        if code > 128:  # the shell's convention for processes that a signal ended
            return f"killed by {_signal_name(code - 128)}"
        return f"failed (exit code {code})"

    def last_errors(self, lines: int = 3) -> list[str]:
        """Return the last lines of the log, limited to errors if there are any."""
        tail = tail_of(self.log, 40)
        errors = [line for line in tail if "error" in line.lower() or "critical" in line.lower()]
        return (errors or tail)[-lines:]

    def _exit_code(self) -> int | None:
        """Return the exit code of a server that has ended. The shell writes it a moment after the end, or
        never if the shell has ended too."""
        deadline = time.monotonic() + _KEEPER_SECONDS
        while (code := _read_int(self.folder / "exit")) is None and self.pid is not None:
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)
        return code

    def _facts(self) -> ProcessFacts | None:
        """Return the facts of this server, or None if it has ended, even if another process has its pid
        now."""
        pid = self.pid
        if pid is None or (self.folder / "exit").exists():
            return None
        facts = process_facts(pid)
        if facts is None or facts.state == "Z":
            return None
        # In the moment of its exec, the server has no command line. Nobody else has its pid while the keeper
        # waits for it.
        is_kept = self._keeper is not None and self._keeper.poll() is None
        return facts if is_kept or str(self.config) in facts.command else None

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
    """Return the last lines of a file without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def import_path() -> dict[str, str]:
    """Return environment variables with which a child imports the same dledger, installed or not."""
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
