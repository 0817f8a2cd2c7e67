"""Load on the replicated log: appenders with and without sessions, readers of all kinds, a final drain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any, Literal

from chaos.trace.operations import Process
from chaos.trace.schema import LEDGER, Ev
from chaos.workloads.appenders import Appender, Way
from chaos.workloads.messages import digest, number_of, payload_of
from chaos.workloads.pacing import Pace, while_running
from chaos.workloads.spec import DrainTimeout, Setting
from dledger.client import AsyncClient, Entry, TlsFiles
from dledger.errors import Code, DLedgerError

_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
_TAIL = 500  # entries that a reader of the end goes back

ReaderKind = Literal["follow", "linearizable", "local"]
_AT_ONCE = 6
#: Of the clients in turn.
_WAYS = (Way.SESSION, Way.PLAIN, Way.STREAM)
_KINDS: tuple[ReaderKind, ...] = ("follow", "linearizable", "local")


class LogWorkload:
    """Implements `Workload`."""

    def __init__(
        self, setting: Setting, servers: Sequence[str], group: str, tls: TlsFiles | None = None
    ) -> None:
        self._setting = setting
        self._spec = replace(setting.spec, at_once=setting.spec.at_once or _AT_ONCE)
        self._servers = list(servers)
        self._group = group
        self._tls = tls
        self._readers: dict[int, _Reader] = {}

    async def prepare(self) -> None:
        return

    def logs(self) -> Iterable[Mapping[str, str | int]]:
        return [{"ledger": LEDGER}]

    async def write(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._spec.clients):
                tasks.create_task(self._append(number, stop))

    async def read(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._spec.readers):
                tasks.create_task(self._read(number, drained))

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        writer.write(Ev.META, {"e": "drain_begin"})
        last: int | None = None
        try:
            async with asyncio.timeout(within_s), self._client() as client:
                reader = _Reader(self._setting, client, Process(writer, numbers), is_last=True)
                while (end := await reader.end()) is None:
                    await asyncio.sleep(_PAUSE_S)
                writer.write(Ev.META, {"e": "drain_target", "ledger": LEDGER, "off": end})
                at, whole = 0, False
                while not whole:
                    at, whole = await reader.read("drain", at, "linearizable", end)
                # Behind that there may be entries of the log itself, which nobody is given.
                last = reader.reached - 1
                while self._behind(last):
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            behind = "" if last is None else self._behind(last)
            raise DrainTimeout(behind or "the final reader did not come to the end") from None
        writer.write(Ev.META, {"e": "drain_end"})

    async def close(self) -> None:
        return

    def _behind(self, last: int) -> str:
        """Which reader has not read entry `last`, in words; empty if all have."""
        for number, reader in self._readers.items():
            if reader.reached <= last:
                return f"reader {number} has read up to {reader.reached - 1}, and there is entry {last}"
        return ""

    async def _append(self, number: int, stop: asyncio.Event) -> None:
        setting, rng, way = self._setting, Random(self._setting.rng.random()), _WAYS[number % len(_WAYS)]
        trace = setting.sender(f"p{number}")
        async with self._client(session=way is not Way.PLAIN, on_attempt=trace.note) as client:
            appender = Appender(setting, client, trace, rng, way)
            rate = self._spec.rate_of_client(way.messages(self._spec))
            pace = Pace(self._spec.at_once, rate, rng, setting.tally)
            await pace.run(stop, appender.worker)

    async def _read(self, number: int, drained: asyncio.Event) -> None:
        kind = _KINDS[number % len(_KINDS)]
        writer, numbers = self._setting.client(f"r{number}")
        async with self._client() as client:
            reader = self._readers[number] = _Reader(self._setting, client, Process(writer, numbers))
            if kind == "follow":
                await while_running(drained, reader.follow())
            while not drained.is_set():
                await reader.read_tail(kind)
                await asyncio.sleep(_PAUSE_S)

    def _client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self._servers, group=self._group, timeout=_TIMEOUT_S, tls=self._tls, **options)


class _Reader:
    """One client that reads, one operation at a time. `reached`: one behind the last entry that it has read.
    `is_last`: what it reads is what went through."""

    def __init__(
        self, setting: Setting, client: AsyncClient, process: Process, *, is_last: bool = False
    ) -> None:
        self.reached = 0
        self._setting = setting
        self._is_last = is_last
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

    async def _begin(self, at: int, error: DLedgerError) -> int:
        """Where to go on after a read from `at` failed: where the log begins now, if that was purged."""
        if error.code is not Code.INDEX_LESS_THAN_LOCAL_BEGIN:
            return at
        self._process.invoke("min_off", ledger=LEDGER)
        try:
            begin = (await self._client.leader()).ledger_begin_index
        except DLedgerError as unanswered:
            self._process.failed(unanswered)
            return at
        self._process.ok(min_off=begin)
        return max(at, begin)

    async def read_tail(self, kind: ReaderKind) -> None:
        """The last entries, up to the end."""
        end = await self.end()
        if end is not None and end >= 0:
            await self.read("get", max(0, end - _TAIL), kind)

    async def read(self, f: str, at: int, kind: ReaderKind, end: int = -1) -> tuple[int, bool]:
        """One read from `at` to the end: (where it stopped, whether it came to the end). `end`: the log was
        known to reach so far; who reads to the end is behind it, also if the last entries are the log's own,
        which nobody is given."""
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
            return await self._begin(at, error), False
        at = max(at, end + 1)
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
                at = await self._begin(at, error)

    def _delivered(self, entries: Sequence[Entry], first: int) -> None:
        for i, entry in enumerate(entries, first):
            body = entry.body
            self._process.delivered(
                i, number_of(body), digest(body), ledger=LEDGER, lidx=entry.index, eterm=entry.term
            )
            if self._is_last:
                self._setting.went_through(payload_of(body))
        self.reached = max(self.reached, entries[-1].index + 1)
        self._tally.took(self._process.now(), len(entries))
