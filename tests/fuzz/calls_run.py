"""Goes round the servers, a slice of calls of each, and asks whether good clients are still served."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.calls import Call, Caller, never_accepted
from tests.fuzz.registry import CORPUS, name_of
from tests.fuzz.servers import SERVERS, Server

PREFIX = "calls-"
NAMES = tuple(f"{PREFIX}{name}" for name in SERVERS)
#: Calls of a server in one go.
SLICE = 200
#: After so many slices a server is stopped and started again: it has to open what it has stored.
_RESTART_EVERY = 3
_KEPT = 10  # calls of a find: the last ones
_ASYNCIO = logging.getLogger("asyncio")
_MOST_FOUND = 10  # of a server, after which it is left alone


def corpus_of(name: str) -> list[list[Call]]:
    """Sequences of calls that were kept, by the name of the target."""
    folder = CORPUS / name
    return [read_calls(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []


def read_calls(path: Path) -> list[Call]:
    """One a line."""
    return [Call.from_json(line) for line in path.read_text().splitlines()]


class CallFuzzing:
    """`async with` starts what `run` needs and ends it."""

    def __init__(self, names: Sequence[str], seed: int, finds: Path) -> None:
        self.count = 0
        self.found: Counter[str] = Counter()
        #: Ends of a server that were asked for, by messages of members that contradict each other.
        self.alarms = 0
        self._names = names
        self._seed = seed
        self._finds = finds
        self._callers: dict[str, Caller] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="dledger-fuzz-")
        self._starts = 0
        self._asyncio_level = logging.NOTSET

    async def __aenter__(self) -> CallFuzzing:
        # gRPC leaves tasks of streams that their servers end, and asyncio tells of each.
        self._asyncio_level = _ASYNCIO.level
        _ASYNCIO.setLevel(logging.CRITICAL)
        for name in self._names:
            server = await self._new_server(name)
            self._callers[name] = Caller(server, self._seed)
        return self

    async def __aexit__(self, *_: object) -> None:
        for caller in self._callers.values():
            await caller.server.kill()
        self._folder.cleanup()
        _ASYNCIO.setLevel(self._asyncio_level)

    async def _new_server(self, name: str) -> Server:
        self._starts += 1
        server = SERVERS[name.removeprefix(PREFIX)](Path(self._folder.name) / str(self._starts))
        await server.start()
        server.new_log()
        return server

    async def run(self, end_s: float, rounds: int | None) -> None:
        number = 0
        while time.monotonic() < end_s and (rounds is None or number < rounds):
            number += 1
            for name, caller in self._callers.items():
                if self.found[name] < _MOST_FOUND:
                    await self.slice(name, caller, end_s, is_restarted=number % _RESTART_EVERY == 0)
        for name, caller in self._callers.items():
            if missing := never_accepted(caller):
                print(f"{name}: no call was accepted of {', '.join(missing)}")

    async def slice(self, name: str, caller: Caller, end_s: float, *, is_restarted: bool) -> None:
        last: deque[Call] = deque(maxlen=_KEPT)
        for _ in range(SLICE):
            if time.monotonic() >= end_s:
                break
            call = caller.next_call()
            last.append(call)
            self.count += 1
            if problem := await self.problem(caller, call):
                self._tell(name, last, problem)
        if problem := await after(caller.server, is_restarted=is_restarted):
            self._tell(name, last, problem)
            await self._replace(caller)

    async def problem(self, caller: Caller, call: Call) -> str:
        """What came of a call; a server that has ended is replaced by a new one with an empty directory."""
        problem = await caller.make(call)
        if problem and not caller.server.is_up():
            if caller.server.is_alarmed():
                self.alarms += 1
                problem = ""
            await self._replace(caller)
        return problem

    async def _replace(self, caller: Caller) -> None:
        await caller.server.kill()
        caller.server = await self._new_server(caller.server.name)

    def _tell(self, name: str, calls: Sequence[Call], problem: str) -> None:
        self.found[name] += 1
        text = "".join(f"{call.to_json()}\n" for call in calls)
        path = self._finds / name / f"{name_of(text.encode())}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        last = calls[-1]
        print(
            f"\nFOUND in {name} (seed {self._seed}) at {last.method}, the last of {len(calls)} calls: {path}"
        )
        print(problem.rstrip())
        print(f"repeat: make fuzz ARGS='--only {name} --file {path}'", flush=True)


async def after(server: Server, *, is_restarted: bool) -> str:
    """What a good client misses, also after a restart; "" if nothing."""
    if problem := await server.is_served():
        return f"a good client is not served: {problem}"
    if is_restarted:
        if code := await server.stop():
            return f"SIGTERM ended it with code {code}:\n{server.new_log()[-4000:]}"
        await server.start()
        if problem := await server.is_served():
            return f"a good client is not served after a restart: {problem}"
        if "Traceback" in (logged := server.new_log()):
            return f"a stack trace in the log of a restart:\n{logged[-4000:]}"
    return ""


async def repeat(name: str, calls: Sequence[Call], folder: Path) -> str:
    """What is wrong after these calls of a new server; "" if nothing."""
    async with CallFuzzing([name], 0, folder) as fuzzing:
        (caller,) = fuzzing._callers.values()
        for call in calls:
            if problem := await fuzzing.problem(caller, call):
                return problem
        return await after(caller.server, is_restarted=True)
