"""The harness's interface to a released client that runs in its own process."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from chaos.trace.outcomes import ClientError
from dledger.errors import Code, DLedgerError

#: Importing the client takes 0.25 s of CPU, and longer on a busy machine.
_START_S = 60.0
#: Longer than any call of a client, which times out earlier.
_ANSWER_S = 120.0
#: Limit in bytes. A line may hold many messages.
_MAX_LINE = 64 << 20
_MAX_LOG_CHARS = 2000


class ClientDied(DLedgerError):
    """Raised when a client process dies unexpectedly or does not respond: an error of the run, not a
    violation."""

    default_code = Code.INTERNAL_ERROR


class ClientProcess:
    """Drives `driver.py` or `driver.cjs`. Requests may overlap. Exceptions of the client are raised as
    ClientError."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a client. `folder`: a directory to create for the client's log and home. `command`: starts
        with an interpreter. `environment`: additional variables."""
        self.name = name
        self._folder = folder
        self._command = command
        self._environment = environment or {}
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._is_killed = False

    async def start(self) -> None:
        """Start the process and wait until it accepts requests. Raises ClientDied."""
        home = self._folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        with (self._folder / "stderr.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Clients write their logs to HOME.
                env={**os.environ, "HOME": str(home), "GRPC_VERBOSITY": "ERROR", **self._environment},
                limit=_MAX_LINE,
                # Ctrl-C must reach the harness only, which then ends the client.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                first = await self._process.stdout.readline()
        except TimeoutError:
            first = b""
        if not first:
            self.kill()
            raise ClientDied(f"client {self.name} did not start: {self._last_log_line()}")
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def request(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request to the client. Raises ClientError for its exceptions, and ClientDied."""
        if self._process is None or self._reading is None or self._reading.done():
            raise self._died()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        assert self._process.stdin is not None
        # Requests are small and answered one by one, so the pipe needs no backpressure.
        self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            raise ClientDied(f"client {self.name} did not answer {do!r} in {_ANSWER_S:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        """Send SIGKILL; calls in flight raise ClientDied. May be called repeatedly."""
        self._is_killed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait for the exit of a killed process."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def is_killed(self) -> bool:
        return self._is_killed

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            if not line.endswith(b"\n"):
                break  # torn by a kill
            reply = json.loads(line)
            waiting = self._waiting.get(reply["id"])
            if waiting is None or waiting.done():
                continue
            if (error := reply.get("error")) is not None:
                waiting.set_exception(ClientError(error["type"], error["code"], error["text"]))
            else:
                waiting.set_result(reply["ok"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._died())

    def _died(self) -> ClientDied:
        how = "was killed" if self._is_killed else f"died: {self._last_log_line()}"
        return ClientDied(f"client {self.name} {how}")

    def _last_log_line(self) -> str:
        log = self._folder / "stderr.log"
        return log.read_text(errors="replace")[-_MAX_LOG_CHARS:].strip() if log.exists() else "it left no log"
