"""Load on the replicated log: appenders with and without sessions, readers of all kinds, a final drain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from random import Random
from typing import Literal

from chaos.trace.operations import Process
from chaos.trace.schema import LEDGER, Ev
from chaos.workloads.messages import Bodies, digest, number_of
from chaos.workloads.pacing import Pace, while_running
from chaos.workloads.spec import Setting
from dledger.client import AppendResult, AsyncClient, Entry
from dledger.errors import DLedgerError, SessionExpired

_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
_TAIL = 500  # entries that a reader of the end goes back

ReaderKind = Literal["follow", "linearizable", "local"]
_KINDS: tuple[ReaderKind, ...] = ("follow", "linearizable", "local")


class LogWorkload:
    """Implements `Workload`."""

    def __init__(self, setting: Setting, servers: Sequence[str], group: str) -> None:
        self._setting = setting
        self._servers = list(servers)
        self._group = group

    async def prepare(self) -> None:
        return

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._setting.spec.clients):
                group.create_task(self._append(number, stop))
            for number in range(self._setting.spec.readers):
                group.create_task(self._read(number, stop))

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        writer.write(Ev.META, {"e": "drain_begin"})
        async with asyncio.timeout(within_s), self._client() as client:
            reader = _Reader(self._setting, client, Process(writer, numbers))
            while (end := await reader.end()) is None:
                await asyncio.sleep(_PAUSE_S)
            writer.write(Ev.META, {"e": "drain_target", "ledger": LEDGER, "off": end})
            at, whole = 0, False
            while not whole:
                at, whole = await reader.read("drain", at, "linearizable")
        writer.write(Ev.META, {"e": "drain_end"})

    async def _append(self, number: int, stop: asyncio.Event) -> None:
        setting, rng = self._setting, Random(self._setting.rng.random())
        in_session = number % 2 == 0
        async with self._client(session=in_session) as client:
            appender = _Appender(setting, client, f"p{number}", rng, in_session)
            pace = Pace(setting.spec.at_once, setting.spec.rate_of_client(), rng)
            await pace.run(stop, appender.worker)

    async def _read(self, number: int, stop: asyncio.Event) -> None:
        kind = _KINDS[number % len(_KINDS)]
        writer, numbers = self._setting.client(f"r{number}")
        async with self._client() as client:
            reader = _Reader(self._setting, client, Process(writer, numbers))
            if kind == "follow":
                await while_running(stop, reader.follow())
            while not stop.is_set():
                await reader.read_tail(kind)
                await asyncio.sleep(_PAUSE_S)

    def _client(self, *, session: bool = True) -> AsyncClient:
        return AsyncClient(self._servers, group=self._group, session=session, timeout=_TIMEOUT_S)


class _Appender:
    """One client that appends, by several workers."""

    def __init__(
        self, setting: Setting, client: AsyncClient, name: str, rng: Random, in_session: bool
    ) -> None:
        self._tally = setting.tally
        self._client = client
        self._writer, self._numbers = setting.client(name)
        self._rng = rng
        self._in_session = in_session
        self._max_batch = setting.spec.max_batch
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.lines)
        self._renewing = asyncio.Lock()

    def worker(self) -> _Worker:
        return _Worker(self, Process(self._writer, self._numbers))

    async def append(self, process: Process) -> bool:
        """One append; whether it is acknowledged."""
        count = self._rng.randint(1, self._max_batch)
        mids = [self._numbers.message() for _ in range(count)]
        bodies = [self._bodies.make(mid) for mid in mids]
        session = self._client.appender
        if count == 1:
            process.invoke("append", ledger=LEDGER, mid=mids[0], digest=digest(bodies[0]))
        else:
            for i, (mid, body) in enumerate(zip(mids, bodies, strict=True)):
                process.item(i, mid, digest(body), ledger=LEDGER)
            process.invoke("send_batch", ledger=LEDGER, count=count)
        began = self._writer.now()
        try:
            results = await self._client.append_many(bodies)
        except DLedgerError as error:
            outcome = process.failed(error)
            self._tally.not_ok(outcome, error.code.name, count)
            if isinstance(error, SessionExpired):
                await self._renew(session)
            return False
        self._acknowledged(process, results)
        self._tally.ok(began, self._writer.now(), count, results[0].term)
        return True

    def _acknowledged(self, process: Process, results: Sequence[AppendResult]) -> None:
        first = results[0]
        # A retry of old may be answered without a position: that it is stored is all we know then.
        where = {"lidx": first.index} if first.index >= 0 else {}
        process.ok(term=first.term, count=len(results), **where)

    async def _renew(self, expired: object) -> None:
        async with self._renewing:
            if self._in_session and self._client.appender is expired:
                try:
                    await self._client.new_session()
                except DLedgerError:
                    return  # the next append meets the same, and comes here again


class _Worker:
    def __init__(self, appender: _Appender, process: Process) -> None:
        self._appender = appender
        self._process = process

    async def __call__(self) -> bool:
        return await self._appender.append(self._process)


class _Reader:
    """One client that reads, one operation at a time."""

    def __init__(self, setting: Setting, client: AsyncClient, process: Process) -> None:
        self._tally = setting.tally
        self._client = client
        self._process = process

    async def end(self) -> int | None:
        """The last committed index, confirmed by a leader; None: nobody could say."""
        self._process.invoke("max_off", ledger=LEDGER)
        try:
            found = await self._client.read_index()
        except DLedgerError as error:
            self._process.failed(error)
            return None
        self._process.ok(max_off=found + 1)
        return found

    async def read_tail(self, kind: ReaderKind) -> None:
        """The last entries, up to the end."""
        end = await self.end()
        if end is not None and end >= 0:
            await self.read("get", max(0, end - _TAIL), kind)

    async def read(self, f: str, at: int, kind: ReaderKind) -> tuple[int, bool]:
        """One read from `at` to the end: (where it stopped, whether it came to the end)."""
        mode: Literal["linearizable", "local"] = "local" if kind == "local" else "linearizable"
        self._process.invoke(f, ledger=LEDGER, from_off=at, stale=mode == "local")
        seen = 0
        try:
            async with aclosing(self._client.read_chunks(at, mode=mode)) as chunks:
                async for entries in chunks:
                    self._delivered(entries, seen)
                    seen += len(entries)
                    at = entries[-1].index + 1
        except DLedgerError as error:
            self._process.failed(error)
            await asyncio.sleep(_PAUSE_S)
            return at, False
        self._process.ok(count=seen, next_off=at)
        return at, True

    async def follow(self) -> None:
        """Each chunk is an operation: what was waited for and came."""
        at = 0
        while True:
            self._process.invoke("get", ledger=LEDGER, from_off=at, stale=True)
            try:
                async with aclosing(self._client.read_chunks(at, follow=True)) as chunks:
                    async for entries in chunks:
                        self._delivered(entries, 0)
                        at = entries[-1].index + 1
                        self._process.ok(count=len(entries), next_off=at)
                        self._process.invoke("get", ledger=LEDGER, from_off=at, stale=True)
                return
            except DLedgerError as error:
                self._process.failed(error)
                await asyncio.sleep(_PAUSE_S)

    def _delivered(self, entries: Sequence[Entry], first: int) -> None:
        for i, entry in enumerate(entries, first):
            body = entry.body
            self._process.delivered(
                i, number_of(body), digest(body), ledger=LEDGER, lidx=entry.index, eterm=entry.term
            )
        self._tally.read += len(entries)
