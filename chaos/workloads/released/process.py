"""A released client in a process of its own, seen from the harness."""

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

#: Importing the client takes a quarter of a second of CPU; machines that are busy take their time.
_START_S = 60.0
#: No call of a client takes so long: it has given up before.
_ANSWER_S = 120.0
#: A line may hold many messages.
_MAX_LINE = 64 << 20
_MAX_TOLD = 2000


class ClientDied(DLedgerError):
    """The process of a client ended unasked, or does not answer: an error of the run, no finding of it."""

    default_code = Code.INTERNAL_ERROR


class ClientProcess:
    """Drives `driver.py` or `driver.cjs`. Several requests may be under way; what a client raises is a
    ClientError."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`folder`: for its log and its home, made here. `command`: begins with an interpreter.
        `environment`: on top of ours."""
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
        """Returns when it takes requests. ClientDied if it does not get there."""
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
                # Ctrl-C is the harness's affair, which ends it.
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
            raise ClientDied(f"client {self.name} did not start: {self._last_words()}")
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Have the client do something. ClientError: it raised; ClientDied: it is no more."""
        if self._process is None or self._reading is None or self._reading.done():
            raise self._died()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        assert self._process.stdin is not None
        # Requests are small, and answered: the pipe needs no watching.
        self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            raise ClientDied(f"client {self.name} did not answer {do!r} in {_ANSWER_S:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        """SIGKILL. What is under way raises ClientDied. Safe to call again."""
        self._is_killed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        """Until a process that was killed is gone."""
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
            told = json.loads(line)
            waiting = self._waiting.get(told["id"])
            if waiting is None or waiting.done():
                continue
            if (error := told.get("error")) is not None:
                waiting.set_exception(ClientError(error["type"], error["code"], error["text"]))
            else:
                waiting.set_result(told["ok"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._died())

    def _died(self) -> ClientDied:
        how = "was killed" if self._is_killed else f"died: {self._last_words()}"
        return ClientDied(f"client {self.name} {how}")

    def _last_words(self) -> str:
        log = self._folder / "stderr.log"
        return log.read_text(errors="replace")[-_MAX_TOLD:].strip() if log.exists() else "nothing is known"
