"""Modules as processes of their own, as `python -m` runs them, forked from a process that has imported the
product: one for all tests of a worker."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import IO

_REPO = Path(__file__).resolve().parents[2]
_MOST_BYTES = 1 << 16


def environment() -> dict[str, str]:
    """So that children import the same code as the tests, installed or not."""
    path = os.pathsep.join(filter(None, [str(_REPO), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class Forked:
    """A process, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.end: Future[int] = _unanswered()

    @property
    def returncode(self) -> int | None:
        return self.end.result() if self.end.done() else None

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.wrap_future(self.end)


def _unanswered() -> Future[int]:
    """One that nobody can cancel who only waits for it."""
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return future


class _ForkServer:
    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.process.fork_server", str(theirs.fileno())],
                cwd=_REPO,
                env=environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._numbers = count()
        self._starting: dict[int, Future[Forked]] = {}
        self._running: dict[int, Forked] = {}
        threading.Thread(target=self._listen, name="fork server", daemon=True).start()
        atexit.register(self._stop)

    async def start(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], output: int
    ) -> Forked:
        number, started = next(self._numbers), Future[Forked]()
        started.set_running_or_notify_cancel()
        self._starting[number] = started
        request = {"number": number, "module": module, "arguments": arguments, "env": env, "cwd": str(_REPO)}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [output])
        return await asyncio.wrap_future(started)

    def _listen(self) -> None:
        while packet := self._requests.recv(_MOST_BYTES):
            told = json.loads(packet)
            if "started" in told:
                process = self._running[told["pid"]] = Forked(told["pid"])
                self._starting.pop(told["started"]).set_result(process)
            else:
                self._running.pop(told["ended"]).end.set_result(told["code"])
        error = RuntimeError("the process that starts processes has ended")
        for starting in self._starting.values():
            starting.set_exception(error)
        for process in self._running.values():
            process.end.set_exception(error)

    def _stop(self) -> None:
        self._requests.shutdown(socket.SHUT_RDWR)
        self._process.wait()


_servers: list[_ForkServer] = []


async def start_process(*command: str, output: IO[bytes]) -> Forked | asyncio.subprocess.Process:
    """Run a command in the repository; what it prints goes to the file `output`. Modules are forked, others
    started."""
    if command[:2] != (sys.executable, "-m"):
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=_REPO,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    if not _servers:
        _servers.append(_ForkServer())
    return await _servers[0].start(command[2], command[3:], environment(), output.fileno())
