"""Starts modules as processes that have imported the product already: the import takes longer than what
most tests have a node do. `tests.process.forked` is the other end.

`python -m tests.process.fork_server FD`: FD is a socket of packets. Each request is answered with the pid of
a new process, each end of a process is told with its exit code. When the other end is gone, all are killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from dledger.infra.libraries import configure_libraries, configure_node_channels

#: What nodes, brokers and NameServers import before they serve.
_MODULES = (
    "dledger.node.run",
    "dledger.node.setup.config",
    "broker_adapter.server.program",
    "broker_adapter.namesrv.server",
)
_MOST_BYTES = 1 << 17


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._running: set[int] = set()

    def serve(self) -> dict[str, Any] | None:
        """In each new process: what it is to run. In this one, at the end: None."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._requests.fileno(), self._woken], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._tell_ends()
            if self._requests.fileno() in ready and (request := self._take()) is not None:
                return request
            if self._requests.fileno() == -1:
                break
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        return None

    def _take(self) -> dict[str, Any] | None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._requests, _MOST_BYTES, 1)
        except ConnectionResetError:
            packet, descriptors = b"", []
        if not packet:
            self._requests.close()
            return None
        request: dict[str, Any] = json.loads(packet)
        pid = os.fork()
        if pid == 0:
            self._become(request, *descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        self._running.add(pid)
        self._tell({"started": request["number"], "pid": pid})
        return None

    def _become(self, request: dict[str, Any], output: int) -> None:
        """Be as a process that was just started."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._requests.close()
        os.close(self._woken)
        os.close(self._wake)
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        os.close(output)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = [request["module"], *request["arguments"]]

    def _tell_ends(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._running.discard(pid)
            self._tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, what: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._requests.send(json.dumps(what).encode())


def main() -> None:
    configure_libraries()
    configure_node_channels()
    for name in _MODULES:
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: what is forked has one of them only"
    # Not to be looked through, and copied thereby, in every process.
    gc.collect()
    gc.freeze()
    request = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is None:
        return
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
