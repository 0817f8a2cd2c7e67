"""Appending, with and without a session: the calls of users on top of a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from dledger.client.batching import Call, FutureLike, Limits, check, split, undecided
from dledger.client.pipeline import Pipeline
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate

DEFAULT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 5.0


class Appender:
    """Appends through one pipeline. Get one from a client: `session()`, `open_session()`.

    Errors of all appends: Refused (nothing was stored, also not later), Indeterminate (it may be in the log,
    now or later), InvalidRequest (nothing was stored; the request is wrong).
    """

    def __init__(self, new_pipeline: Callable[[], Pipeline], limits: Limits, timeout: float) -> None:
        self._new_pipeline = new_pipeline
        self._pipeline: Pipeline | None = None  # made inside the event loop that will run it
        self._limits = limits
        self._timeout = timeout

    def _ready(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._new_pipeline()
        return self._pipeline

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._timeout if timeout is None else timeout)

    async def append(self, body: bytes, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is committed. `timeout` in seconds, default that of the client.

        Concurrent calls share batches. Cancelling it does not take the entry back.
        """
        check(body)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._ready().submit(Call((body,), single=True, future=future, deadline=self._deadline(timeout)))
        return await future

    async def append_many(
        self, bodies: Sequence[bytes], *, timeout: float | None = None
    ) -> list[AppendResult]:
        """Append entries in order and wait until all are committed. `timeout` in seconds.

        They are stored as one atomic batch, all or none, if they fit `max_batch_bytes` and `max_batch_count`;
        otherwise as several, in order, and an error leaves open how many of them were stored.
        """
        futures = self.submit_parts(bodies, _new_future, timeout)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        results: list[AppendResult] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise _for_all(outcome, outcomes)
            results.extend(outcome)
        return results

    async def submit(self, body: bytes, *, timeout: float | None = None) -> asyncio.Future[AppendResult]:
        """Queue one entry and return its future: for a producer that keeps many appends under way.

        Waits while more than `max_pending_bytes` are queued or in flight.
        """
        check(body)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.submit_to(future, body, timeout)
        if not self.has_room:
            await self.room()
        return future

    @property
    def has_room(self) -> bool:
        """Whether no more than `max_pending_bytes` are queued or in flight."""
        return self._pipeline is None or self._pipeline.has_room

    async def room(self) -> None:
        """Wait until `has_room`."""
        if self._pipeline is not None:
            await self._pipeline.room()

    def submit_to(self, future: FutureLike, body: bytes, timeout: float | None) -> None:
        """Queue one checked entry; any kind of future gets the outcome. Call it in the event loop."""
        self._ready().submit(Call((body,), single=True, future=future, deadline=self._deadline(timeout)))

    def submit_parts(
        self,
        bodies: Sequence[bytes],
        new_future: Callable[[], asyncio.Future[list[AppendResult]]],
        timeout: float | None,
    ) -> list[asyncio.Future[list[AppendResult]]]:
        """Queue `bodies` in as few atomic parts as possible; one future for each part."""
        if not bodies:
            return []
        futures = []
        pipeline, deadline = self._ready(), self._deadline(timeout)
        for part in split(bodies, self._limits):
            future = new_future()
            pipeline.submit(Call(part, single=False, future=future, deadline=deadline))
            futures.append(future)
        return futures

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait `timeout` seconds for appends under way, then end them: sent ones with Indeterminate."""
        if self._pipeline is None:
            self._new_pipeline = _refuse
        else:
            await self._pipeline.close(timeout)


class Session(Appender):
    """Appends that are stored exactly once, in call order, through retries and changes of leader.

    A call whose `timeout` passes raises Indeterminate, but a batch once sent is sent again until the cluster
    answers: the session's order has no holes. When the cluster has forgotten the session, everything
    unanswered and every later append raises SessionExpired: only its user can decide what to do then.
    """

    @property
    def session_id(self) -> int | None:
        """The index of the session's OPEN entry; None: not opened yet."""
        return None if self._pipeline is None else self._pipeline.session_id

    async def open(self, *, timeout: float | None = None) -> int:
        """Open the session now, not at the first append; its id. Raises Indeterminate after `timeout` s."""
        seconds = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._ready().open()
        except TimeoutError:
            raise Indeterminate(f"no session opened within {seconds:g} s", code=Code.TIMEOUT) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _refuse() -> Pipeline:
    raise RuntimeError("the session is closed")


def _new_future() -> asyncio.Future[list[AppendResult]]:
    return asyncio.get_running_loop().create_future()


def _for_all(error: BaseException, outcomes: Sequence[object]) -> BaseException:
    """What to say of several parts when one failed: a definite failure only if none was stored."""
    if not isinstance(error, DLedgerError) or len(outcomes) == 1:
        return error
    if all(isinstance(o, BaseException) and not isinstance(o, Indeterminate) for o in outcomes):
        return error
    return undecided(error)
