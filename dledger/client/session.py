"""Appends with and without a session: the API for users on top of a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from dledger.client.batching import AppendCall, FutureLike, Limits, check, check_timeout, split, undecided
from dledger.client.pipeline import Pipeline
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest

DEFAULT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 5.0


class Appender:
    """Appends through one pipeline. A client returns it from `session()` and `open_session()`.

    All appends raise Refused (nothing is or will be stored), Indeterminate (the entry is or may later be in
    the log), and InvalidRequest (the request is invalid and nothing is stored).
    """

    def __init__(self, new_pipeline: Callable[[], Pipeline], limits: Limits, timeout: float) -> None:
        self._new_pipeline = new_pipeline
        self._pipeline: Pipeline | None = None  # created inside the event loop that will run it
        self._limits = limits
        self._timeout = timeout

    def _ready(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._new_pipeline()
        return self._pipeline

    def _deadline(self, timeout: float | None) -> float:
        check_timeout(timeout)
        return asyncio.get_running_loop().time() + (self._timeout if timeout is None else timeout)

    async def append(self, body: bytes, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is committed. `timeout` is in seconds and defaults to the
        client's timeout.

        Concurrent calls share batches. Cancellation does not withdraw the entry.
        """
        check(body)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._ready().submit(
            AppendCall((body,), single=True, future=future, deadline=self._deadline(timeout))
        )
        return await future

    async def append_many(
        self, bodies: Sequence[bytes], *, timeout: float | None = None
    ) -> list[AppendResult]:
        """Append entries in order and wait until all are committed. `timeout` in seconds.

        They are stored as one atomic batch, all or none, if they fit into `max_batch_bytes` and
        `max_batch_count`; otherwise as several, in order, and after an error the number of stored entries is
        unknown.
        """
        if not isinstance(bodies, Sequence):
            raise InvalidRequest(f"bodies must be a sequence of bytes, not {type(bodies).__name__}")
        futures = self.submit_parts(bodies, _new_future, timeout)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        results: list[AppendResult] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise _for_all(outcome, outcomes)
            results.extend(outcome)
        return results

    async def submit(self, body: bytes, *, timeout: float | None = None) -> asyncio.Future[AppendResult]:
        """Queue one entry and return its future, for producers with many pending appends.

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
        """True if at most `max_pending_bytes` are queued or in flight."""
        return self._pipeline is None or self._pipeline.has_room

    async def room(self) -> None:
        """Wait until `has_room`."""
        if self._pipeline is not None:
            await self._pipeline.room()

    def submit_to(self, future: FutureLike, body: bytes, timeout: float | None) -> None:
        """Queue one checked entry; any kind of future receives the outcome. Call it in the event loop."""
        self._ready().submit(
            AppendCall((body,), single=True, future=future, deadline=self._deadline(timeout))
        )

    def submit_parts(
        self,
        bodies: Sequence[bytes],
        new_future: Callable[[], asyncio.Future[list[AppendResult]]],
        timeout: float | None,
    ) -> list[asyncio.Future[list[AppendResult]]]:
        """Queue `bodies` in as few atomic parts as possible, with one future per part."""
        if not bodies:
            return []
        futures = []
        pipeline, deadline = self._ready(), self._deadline(timeout)
        for part in split(bodies, self._limits):
            future = new_future()
            pipeline.submit(AppendCall(part, single=False, future=future, deadline=deadline))
            futures.append(future)
        return futures

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait up to `timeout` seconds for pending appends, then fail the remaining ones, those already sent
        with Indeterminate."""
        if self._pipeline is None:
            self._new_pipeline = _refuse
        else:
            await self._pipeline.close(timeout)


class Session(Appender):
    """Appends that are stored exactly once, in call order, across retries and changes of leader.

    A call that exceeds its `timeout` raises Refused if it is certainly not stored, for example because it was
    not sent yet, and Indeterminate otherwise. A batch that was sent once is nevertheless sent again until the
    cluster responds, so that the order of a session has no gaps. If the cluster has expired the session, all
    pending and later appends raise SessionExpired, because only the application can decide how to continue.
    """

    @property
    def session_id(self) -> int | None:
        """The index of the session's OPEN entry, or None before it is opened."""
        return None if self._pipeline is None else self._pipeline.session_id

    async def open(self, *, timeout: float | None = None) -> int:
        """Open the session now instead of at the first append, and return its id. Raises Indeterminate after
        `timeout` seconds."""
        check_timeout(timeout)
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
    """Choose the error for several parts of which one failed. It is a definite failure only if no part was
    stored."""
    if not isinstance(error, DLedgerError) or len(outcomes) == 1:
        return error
    if all(isinstance(o, BaseException) and not isinstance(o, Indeterminate) for o in outcomes):
        return error
    return undecided(error)
