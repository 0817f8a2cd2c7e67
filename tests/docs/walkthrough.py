"""The files and shell blocks of docs/getting-started.md, and three machines as directories of this one.

Shell blocks run as they stand on the page, in bash. Addresses and paths are replaced. `sudo`, `useradd`,
`pip` and `systemctl` are stand-ins, because a test must not change the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.deploy.notify_socket import notify_socket
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "getting-started.md"
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
#: Where a shell block runs: on each machine, on the first one, on those with a NameServer, at the operator's.
PLACES = {"each": (1, 2, 3), "first": (1,), "namesrv": (1, 2), "once": (0,)}
_FILE = re.compile(r"# (/\S+)( \(append\))?\n")
_WALK = re.compile(r"<!-- walk: (\w+) -->\n```sh\n")
_STOP_S = 30


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page shows. `appended`: added to the end of one that is there."""

    path: str
    text: str
    appended: bool


@dataclass(frozen=True, slots=True)
class Shell:
    """Commands, and a key of PLACES."""

    place: str
    text: str


def steps_of(page: str) -> Iterator[File | Shell]:
    """What the page has a reader do, in its order."""
    places = iter(_WALK.findall(page))
    for block in blocks_of(page):
        if block.kind == "sh":
            yield Shell(next(places), block.text)
        elif found := _FILE.match(block.text):
            yield File(found[1], block.text[found.end() :], found[2] is not None)


def for_machine(text: str, machine: int) -> str:
    """The file or commands of machine 1, as comments like `# n2, n3` say how they are on another one."""
    lines = []
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")
        others = re.findall(r"n\d|10\.0\.0\.\d", comment)
        if 1 < machine <= len(others) + 1 and not code.startswith(("n1 =", "sudo")):
            code = re.sub(r"\bn1\b|10\.0\.0\.1", others[machine - 2], code)
        lines.append(code.rstrip())
    return "\n".join(lines) + "\n"


_STAND_INS = {
    "sudo": 'if [ "$1" = -u ]; then shift 2; fi\nexec "$@"',
    "useradd": "",
    "pip": "",
    "python3": "",
    "ln": "",
    "install": (
        "words=(); while [ $# -gt 0 ]; do "
        'case "$1" in -o|-g) shift 2;; *) words+=("$1"); shift;; esac; done\n'
        'exec {install} "${{words[@]}}"'
    ),
    "systemctl": 'echo "$*" >> "$SYSTEMCTL"',
}


class Machines:
    """Machine 0 is the operator's, 1 to 3 are the machines. Leaving `with` ends all servers."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        """`ports`: of this machine, by the page's host:port."""
        self.folder = folder
        self._ports = ports
        self._servers: dict[tuple[int, str], subprocess.Popen[bytes]] = {}
        self._starts = count()
        self._bin = folder / "bin"
        self._bin.mkdir()
        install = shutil.which("install")
        for name, body in _STAND_INS.items():
            path = self._bin / name
            path.write_text(f"#!/bin/bash\n{body.format(install=install) if name == 'install' else body}\n")
            path.chmod(0o755)
        for name in ("dledger", "dledger-namesrv"):
            (self._bin / name).symlink_to(Path(sys.executable).parent / name)
        for place in range(4):
            for directory in ("etc/systemd/system", "var/lib", "home"):
                (folder / str(place) / directory).mkdir(parents=True)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()

    def _here(self, text: str, place: int) -> str:
        """The page's addresses and paths, as they are on this machine."""
        for address, port in self._ports.items():
            text = text.replace(address, f"127.0.0.1:{port}")
        text = text.replace("examples/deploy/", f"{ROOT}/examples/deploy/")
        text = text.replace("IP:10.0.0.$i", "IP:127.0.0.1").replace("/opt/dledger/bin", str(self._bin))
        text = text.replace("dledger init ", f"dledger init --data-file-size {1 << 24} ")
        return re.sub(r"(?<![\w/])/(etc|var/lib)/", rf"{self.folder}/{place}/\1/", text)

    def write(self, file: File) -> None:
        for machine in (1, 2, 3):
            path = Path(self._here(file.path, machine))
            before = path.read_text() if file.appended else ""
            path.write_text(before + self._here(for_machine(file.text, machine), machine))

    def run(self, text: str, place: int) -> str:
        """Run a shell block, then what it told systemctl. Its stdout. AssertionError if a command failed."""
        home = self.folder / str(place) / "home"
        requests = home / "systemctl"
        requests.write_text("")
        script = self._here(for_machine(text, max(place, 1)), place)
        done = subprocess.run(
            [
                "bash",
                "-c",
                f"set -eu -o pipefail; set -a; [ ! -e .env ] || . ./.env\n{script}\nexport -p > .env",
            ],
            cwd=home,
            capture_output=True,
            text=True,
            env={**_environment(), "PATH": f"{self._bin}:{os.environ['PATH']}", "SYSTEMCTL": str(requests)},
        )
        assert done.returncode == 0, f"place {place}: {script}\n{done.stdout}\n{done.stderr}"
        for request in requests.read_text().splitlines():
            self._systemctl(place, request.split())
        return done.stdout

    def hand_out(self, pattern: str) -> None:
        """Copy files from the operator to every machine, as scp does."""
        for path in (self.folder / "0" / "home").glob(pattern):
            for machine in (1, 2, 3):
                shutil.copy(path, self.folder / str(machine) / "home")

    def _systemctl(self, place: int, words: list[str]) -> None:
        if words == ["daemon-reload"]:
            return
        key = place, words[-1]
        if words[0] in ("stop", "restart"):
            self._servers[key].send_signal(signal.SIGTERM)
            assert self._servers.pop(key).wait(_STOP_S) == 0
        if words[0] != "stop":
            unit = self.folder / str(place) / "etc/systemd/system" / f"{words[-1]}.service"
            command = re.findall(r"^ExecStart=(.*)$", self._here(unit.read_text(), place), re.MULTILINE)[0]
            log = (self.folder / str(place) / f"{words[-1]}.log").open("ab")
            with log, notify_socket(f"@walk-{os.getpid()}-{next(self._starts)}") as manager:
                environment = {**_environment(), **manager.variables()}
                self._servers[key] = subprocess.Popen(
                    command.split(), stderr=log, stdout=log, env=environment
                )
                manager.wait_for("READY=1")  # as systemctl does for a unit with Type=notify

    def pause(self, seconds: float) -> None:
        """Between two looks. AssertionError if a server has ended unasked, with the end of its log."""
        for (place, unit), server in self._servers.items():
            try:
                code = server.wait(seconds / len(self._servers))
            except subprocess.TimeoutExpired:
                continue
            log = (self.folder / str(place) / f"{unit}.log").read_text()
            raise AssertionError(f"{unit} of machine {place} ended with {code}:\n{log[-3000:]}")


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DLEDGER_")}
    return {**ours, "PYTHONPATH": str(ROOT)}
