"""Clients that append to the replicated log: single entries, batches and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from random import Random

from chaos.trace.operations import Process
from chaos.trace.schema import LEDGER
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


class Appender:
    """One client, by several workers."""

    def __init__(self, setting: Setting, client: AsyncClient, name: str, rng: Random, way: Way) -> None:
        self._tally = setting.tally
        self._spec = setting.spec
        self._client = client
        self._writer, self._numbers = setting.client(name)
        self._rng = rng
        self._way = way
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())
        self._renewing = asyncio.Lock()

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """One that does one operation, or a piece of a stream, and says whether that is acknowledged."""
        if self._way is Way.STREAM:
            processes = [self._process() for _ in range(_STREAM)]
            return lambda: self._stream(processes)
        process = self._process()
        return lambda: self._append(process)

    def _process(self) -> Process:
        return Process(self._writer, self._numbers)

    async def _append(self, process: Process) -> bool:
        """One entry or batch."""
        count = self._spec.draw_size(self._rng)
        mids = [self._numbers.message() for _ in range(count)]
        bodies = [self._bodies.make(mid) for mid in mids]
        if count == 1:
            process.invoke("append", ledger=LEDGER, mid=mids[0], digest=digest(bodies[0]))
        else:
            for i, (mid, body) in enumerate(zip(mids, bodies, strict=True)):
                process.item(i, mid, digest(body), ledger=LEDGER)
            process.invoke("send_batch", ledger=LEDGER, count=count)
        session, began = self._client.appender, self._writer.now()
        return await self._finish(process, self._client.append_many(bodies), session, began, count)

    async def _stream(self, processes: Sequence[Process]) -> bool:
        """Some entries one after the other, each an operation of its own; then their answers."""
        under_way: list[tuple[Process, asyncio.Future[AppendResult], log.Appender, int]] = []
        for process in processes:
            mid = self._numbers.message()
            body = self._bodies.make(mid)
            process.invoke("append", ledger=LEDGER, mid=mid, digest=digest(body))
            session, began = self._client.appender, self._writer.now()
            future = await self._client.submit(body)
            under_way.append((process, future, session, began))
        acknowledged = 0
        for process, future, session, began in under_way:
            acknowledged += await self._finish(process, _as_list(future), session, began, 1)
        return acknowledged == len(processes)

    async def _finish(
        self,
        process: Process,
        answer: Awaitable[list[AppendResult]],
        session: log.Appender,
        began: int,
        count: int,
    ) -> bool:
        """Note what comes of an operation; whether it is acknowledged."""
        try:
            results = await answer
        except DLedgerError as error:
            await self._failed(process, error, session, count)
            return False
        self._acknowledged(process, results)
        self._tally.ok(began, self._writer.now(), count, results[0].term)
        return True

    def _acknowledged(self, process: Process, results: Sequence[AppendResult]) -> None:
        first = results[0]
        # A retry of old may be answered without a position: that it is stored is all we know then.
        where = {"lidx": first.index} if first.index >= 0 else {}
        process.ok(term=first.term, count=len(results), **where)

    async def _failed(self, process: Process, error: DLedgerError, session: log.Appender, count: int) -> None:
        self._tally.not_ok(process.failed(error), error.code.name, count)
        if isinstance(error, SessionExpired):
            await self._renew(session)

    async def _renew(self, expired: log.Appender) -> None:
        async with self._renewing:
            if self._way is not Way.PLAIN and self._client.appender is expired:
                try:
                    await self._client.new_session()
                except DLedgerError:
                    return  # the next append meets the same, and comes here again


async def _as_list(answer: Awaitable[AppendResult]) -> list[AppendResult]:
    return [await answer]
