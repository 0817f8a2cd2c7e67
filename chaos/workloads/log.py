"""Workload on the replicated log, with appenders with and without sessions, readers of all kinds, and a final
drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any, Literal, NamedTuple

from chaos.trace.operations import ClientTrace, Process
from chaos.trace.schema import LEDGER, Ev, OpType
from chaos.workloads.closing import ClosedInTime
from chaos.workloads.messages import Bodies, digest, number_of, payload_of
from chaos.workloads.pacing import Pacer, while_running
from chaos.workloads.spec import DrainTimeout, LoadSpec, Setting
from dledger.client import AppendResult, AsyncClient, Entry, TlsFiles
from dledger.client import session as log
from dledger.errors import Code, DLedgerError, SessionExpired
from dledger.infra.transport.tls import ClientTls
from dledger.rpc.log_client import LogClient

#: Entries of a stream that are submitted before the first answer is awaited.
_STREAM = 8


class AppendMode(Enum):
    #: Single entries and batches, exactly once.
    SESSION = "session"
    #: The same without a session: an unanswered append is never repeated.
    PLAIN = "plain"
    #: Entries in a session, one by one, without waiting for the answers in between.
    STREAM = "stream"

    def messages(self, spec: LoadSpec) -> float:
        """Return the mean number of messages per call of a worker."""
        return _STREAM if self is AppendMode.STREAM else spec.mean_size


class _PendingAppend(NamedTuple):
    """An operation in flight. `mid`: number of its first message; `began`: start time in ns; `count`:
    messages."""

    process: Process
    mid: int
    session: log.Appender
    began: int
    count: int  # type: ignore[assignment]  # hides tuple.count


class LogAppender:
    """One client, shared by several workers."""

    def __init__(
        self, setting: Setting, client: AsyncClient, trace: ClientTrace, rng: Random, way: AppendMode
    ) -> None:
        self._tally = setting.tally
        self._spec = setting.spec
        self._client = client
        self._trace = trace
        self._numbers = trace.numbers
        self._rng = rng
        self._way = way
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())
        self._renewing = asyncio.Lock()

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """Return a function that runs one operation, or one piece of a stream, and returns True if it was
        acknowledged."""
        if self._way is AppendMode.STREAM:
            processes = [self._trace.process() for _ in range(_STREAM)]
            return lambda: self._stream(processes)
        process = self._trace.process()
        return lambda: self._append(process)

    async def _append(self, process: Process) -> bool:
        """Append one entry or one batch."""
        count = self._spec.draw_size(self._rng)
        mids = [self._numbers.message() for _ in range(count)]
        bodies = [self._bodies.make(mid) for mid in mids]
        if count == 1:
            op = process.invoke("append", ledger=LEDGER, mid=mids[0], digest=digest(bodies[0]))
        else:
            for i, (mid, body) in enumerate(zip(mids, bodies, strict=True)):
                process.item(i, mid, digest(body), ledger=LEDGER)
            op = process.invoke("send_batch", ledger=LEDGER, count=count)
        self._trace.sending(mids[0], op)
        sent = _PendingAppend(process, mids[0], self._client.appender, self._now(), count)
        return await self._finish(sent, self._client.append_many(bodies))

    async def _stream(self, processes: Sequence[Process]) -> bool:
        """Submit several entries in a row, each as its own operation, then await the answers."""
        under_way: list[tuple[_PendingAppend, asyncio.Future[AppendResult]]] = []
        for process in processes:
            mid = self._numbers.message()
            body = self._bodies.make(mid)
            op = process.invoke("append", ledger=LEDGER, mid=mid, digest=digest(body))
            self._trace.sending(mid, op)
            sent = _PendingAppend(process, mid, self._client.appender, self._now(), 1)
            under_way.append((sent, await self._client.submit(body)))
        acknowledged = 0
        for sent, future in under_way:
            acknowledged += await self._finish(sent, _as_list(future))
        return acknowledged == len(processes)

    async def _finish(self, sent: _PendingAppend, answer: Awaitable[list[AppendResult]]) -> bool:
        """Record the outcome of an operation; return True if it was acknowledged."""
        try:
            results = await answer
        except DLedgerError as error:
            await self._failed(sent, error)
            return False
        self._trace.over(sent.mid)
        self._acknowledged(sent.process, results)
        self._tally.ok(sent.began, self._now(), sent.count, results[0].term)
        return True

    def _now(self) -> int:
        return self._trace.writer.now()

    def _acknowledged(self, process: Process, results: Sequence[AppendResult]) -> None:
        first = results[0]
        # The response to a repeated append may lack the position if the original is too old. It proves only
        # that the entry is stored.
        where = {"lidx": first.index} if first.index >= 0 else {}
        process.ok(term=first.term, count=len(results), **where)

    async def _failed(self, sent: _PendingAppend, error: DLedgerError) -> None:
        outcome = sent.process.failed(error)
        self._tally.not_ok(outcome, error.code.name, sent.count)
        if outcome is OpType.FAIL:
            self._trace.over(sent.mid)
        if isinstance(error, SessionExpired):
            await self._renew(sent.session)

    async def _renew(self, expired: log.Appender) -> None:
        async with self._renewing:
            if self._way is not AppendMode.PLAIN and self._client.appender is expired:
                try:
                    await self._client.new_session()
                except DLedgerError:
                    return  # the next append fails in the same way and is retried


async def _as_list(answer: Awaitable[AppendResult]) -> list[AppendResult]:
    return [await answer]


_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
#: Requests to single nodes are frequent, because a leader notices within one election time-out that it is
#: deposed.
_END_PAUSE_S, _END_TIMEOUT_S = 0.1, 0.2
_TAIL = 500  # entries before the end at which a tail reader starts

ReaderKind = Literal["follow", "linearizable", "local"]
_AT_ONCE = 6
#: Assigned to the clients in rotation.
_WAYS = (AppendMode.SESSION, AppendMode.PLAIN, AppendMode.STREAM)
_KINDS: tuple[ReaderKind, ...] = ("follow", "linearizable", "local")


class LogWorkload:
    """Implements `Workload`."""

    def __init__(
        self, setting: Setting, servers: Callable[[], Sequence[str]], group: str, tls: TlsFiles | None = None
    ) -> None:
        """`servers`: returns the addresses of the nodes, which may change during the run."""
        self._setting = setting
        self._spec = replace(setting.spec, at_once=setting.spec.at_once or _AT_ONCE)
        self._servers = servers
        self._group = group
        self._tls = tls
        self._readers: dict[int, _LogReader] = {}

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
            servers: list[str] = []
            while self._spec.readers and not stop.is_set():
                new = [server for server in self._servers() if server not in servers]
                for number, server in enumerate(new, len(servers)):
                    tasks.create_task(self._read_ends_at(number, server, stop))
                servers += new
                await asyncio.sleep(_PAUSE_S)

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        writer.write(Ev.META, {"e": "drain_begin"})
        last: int | None = None
        try:
            async with asyncio.timeout(within_s), self._client() as client:
                reader = _LogReader(self._setting, client, Process(writer, numbers), is_last=True)
                while (end := await reader.end()) is None:
                    await asyncio.sleep(_PAUSE_S)
                writer.write(Ev.META, {"e": "drain_target", "ledger": LEDGER, "off": end})
                at, whole = 0, False
                while not whole:
                    at, whole = await reader.read("drain", at, "linearizable", end)
                # The log may end with internal entries, which readers never receive.
                last = reader.reached - 1
                while self._behind(last):
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            behind = "" if last is None else self._behind(last)
            raise DrainTimeout(behind or "the final reader did not reach the end") from None
        writer.write(Ev.META, {"e": "drain_end"})

    async def close(self) -> None:
        return

    def _behind(self, last: int) -> str:
        """Describe the first reader that has not read entry `last`. Returns an empty text if all have."""
        for number, reader in self._readers.items():
            if reader.reached <= last:
                return f"reader {number} has read up to {reader.reached - 1} of {last}"
        return ""

    async def _append(self, number: int, stop: asyncio.Event) -> None:
        setting, rng, way = self._setting, Random(self._setting.rng.random()), _WAYS[number % len(_WAYS)]
        trace = setting.sender(f"p{number}")
        about = self._client(session=way is not AppendMode.PLAIN, on_attempt=trace.note)
        async with ClosedInTime(f"p{number}", about, trace.writer, setting.tally) as client:
            appender = LogAppender(setting, client, trace, rng, way)
            rate = self._spec.rate_of_client(way.messages(self._spec))
            pace = Pacer(self._spec.at_once, rate, rng, setting.tally)
            await pace.run(stop, appender.worker)

    async def _read(self, number: int, drained: asyncio.Event) -> None:
        kind = _KINDS[number % len(_KINDS)]
        writer, numbers = self._setting.client(f"r{number}")
        async with ClosedInTime(f"r{number}", self._client(), writer, self._setting.tally) as client:
            reader = self._readers[number] = _LogReader(self._setting, client, Process(writer, numbers))
            if kind == "follow":
                await while_running(drained, reader.follow())
            while not drained.is_set():
                await reader.read_tail(kind)
                await asyncio.sleep(_PAUSE_S)

    async def _read_ends_at(self, number: int, server: str, stop: asyncio.Event) -> None:
        """Repeatedly request the end of the log from one node while it believes that it leads."""
        process = Process(*self._setting.client(f"end{number}"))
        security = None if self._tls is None else ClientTls(self._tls)()
        node = LogClient(server, self._group, security)
        try:
            while not stop.is_set():
                with suppress(DLedgerError):
                    # A follower would forward the request, and could wait long for an unreachable leader.
                    if (await node.get_status(_END_TIMEOUT_S)).is_leader:
                        await _read_end(process, node.read_index(_END_TIMEOUT_S))
                await asyncio.sleep(_END_PAUSE_S)
        finally:
            await node.close()

    def _client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self._servers(), group=self._group, timeout=_TIMEOUT_S, tls=self._tls, **options)


async def _read_end(process: Process, answer: Awaitable[int]) -> int | None:
    """Record a request for the read index. Returns the index, or None if the request failed."""
    process.invoke("max_off", ledger=LEDGER)
    try:
        committed = await answer
    except DLedgerError as error:
        process.failed(error)
        return None
    process.ok(max_off=committed + 1)
    return committed


class _LogReader:
    """One client that reads, one operation at a time. `reached`: the index after the last entry read.
    `is_last`: this is the final reader, whose payloads are kept."""

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
        """Return the last committed index as confirmed by a leader, or None if the request failed."""
        return await _read_end(self._process, self._client.read_index())

    async def _begin(self, at: int, error: DLedgerError) -> int:
        """Return the index to resume from after a read from `at` failed: the start of the log if `at` was
        purged."""
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
        """Read the last entries, up to the end."""
        end = await self.end()
        if end is not None and end >= 0:
            await self.read("get", max(0, end - _TAIL), kind)

    async def read(self, f: str, at: int, kind: ReaderKind, end: int = -1) -> tuple[int, bool]:
        """Read once from `at` to the end. Returns the index that was reached, and whether it is the end.

        `end`: an index that the log is known to contain. A complete read ends after it even if the last
        entries are internal ones, which are not delivered.
        """
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
        """Follow the log. Each delivered chunk is recorded as an operation."""
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
        self._tally.count_read(self._process.now(), len(entries))
