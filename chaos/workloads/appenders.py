"""Clients that append to the replicated log: single entries, batches and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from chaos.trace.operations import ClientTrace, Process
from chaos.trace.schema import LEDGER, OpType
from chaos.workloads.messages import Bodies, digest
from chaos.workloads.spec import LoadSpec, Setting
from dledger.client import AppendResult, AsyncClient
from dledger.client import session as log
from dledger.errors import DLedgerError, SessionExpired

#: Entries of a stream that are under way before their answers are looked at.
_STREAM = 8


class Way(Enum):
    #: Single entries and batches, exactly once.
    SESSION = "session"
    #: The same without a session: what is not answered is never sent again.
    PLAIN = "plain"
    #: Entry after entry in a session, without waiting for the answers in between.
    STREAM = "stream"

    def messages(self, spec: LoadSpec) -> float:
        """What a worker's call sends in the mean."""
        return _STREAM if self is Way.STREAM else spec.mean_size


class _Sent(NamedTuple):
    """An operation under way. `mid`: of its first message; `began`: ns; `count`: of messages."""

    process: Process
    mid: int
    session: log.Appender
    began: int
    count: int  # type: ignore[assignment]  # hides tuple.count


class Appender:
    """One client, by several workers."""

    def __init__(
        self, setting: Setting, client: AsyncClient, trace: ClientTrace, rng: Random, way: Way
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
        """One that does one operation, or a piece of a stream, and says whether that is acknowledged."""
        if self._way is Way.STREAM:
            processes = [self._trace.process() for _ in range(_STREAM)]
            return lambda: self._stream(processes)
        process = self._trace.process()
        return lambda: self._append(process)

    async def _append(self, process: Process) -> bool:
        """One entry or batch."""
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
        sent = _Sent(process, mids[0], self._client.appender, self._now(), count)
        return await self._finish(sent, self._client.append_many(bodies))

    async def _stream(self, processes: Sequence[Process]) -> bool:
        """Some entries one after the other, each an operation of its own; then their answers."""
        under_way: list[tuple[_Sent, asyncio.Future[AppendResult]]] = []
        for process in processes:
            mid = self._numbers.message()
            body = self._bodies.make(mid)
            op = process.invoke("append", ledger=LEDGER, mid=mid, digest=digest(body))
            self._trace.sending(mid, op)
            sent = _Sent(process, mid, self._client.appender, self._now(), 1)
            under_way.append((sent, await self._client.submit(body)))
        acknowledged = 0
        for sent, future in under_way:
            acknowledged += await self._finish(sent, _as_list(future))
        return acknowledged == len(processes)

    async def _finish(self, sent: _Sent, answer: Awaitable[list[AppendResult]]) -> bool:
        """Note what comes of an operation; whether it is acknowledged."""
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
        # A retry of old may be answered without a position: that it is stored is all we know then.
        where = {"lidx": first.index} if first.index >= 0 else {}
        process.ok(term=first.term, count=len(results), **where)

    async def _failed(self, sent: _Sent, error: DLedgerError) -> None:
        outcome = sent.process.failed(error)
        self._tally.not_ok(outcome, error.code.name, sent.count)
        if outcome is OpType.FAIL:
            self._trace.over(sent.mid)
        if isinstance(error, SessionExpired):
            await self._renew(sent.session)

    async def _renew(self, expired: log.Appender) -> None:
        async with self._renewing:
            if self._way is not Way.PLAIN and self._client.appender is expired:
                try:
                    await self._client.new_session()
                except DLedgerError:
                    return  # the next append meets the same, and comes here again


async def _as_list(answer: Awaitable[AppendResult]) -> list[AppendResult]:
    return [await answer]
