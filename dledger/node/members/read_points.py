"""Obtains linearizable read points for any number of readers. One round is in progress, and another one
waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from dledger.errors import Code, DLedgerError, Overloaded, ReadFailed
from dledger.infra.loops.turns import wake_queue

Waiter = asyncio.Future[int]


class ReadPoints:
    """Joins concurrent requests into rounds.

    A request never joins a round in progress, whose read point may be older than the request.
    """

    def __init__(self, confirm: Callable[[], Awaitable[int]], max_waiting: int, timeout_ms: int) -> None:
        """`confirm` obtains one read point, from this node or from the leader."""
        self._confirm = confirm
        self._max_waiting = max_waiting
        self._timeout_s = timeout_ms / 1000
        self._next: list[Waiter] = []
        self._round: asyncio.Task[None] | None = None

    async def get(self) -> int:
        """Return a read point. Raises ReadFailed READ_NOT_CONFIRMED, NotLeader, or Overloaded
        TOO_MANY_WAITING_READS.
        """
        if len(self._next) >= self._max_waiting:
            raise Overloaded(
                f"too many reads are waiting: the limit is {self._max_waiting}",
                code=Code.TOO_MANY_WAITING_READS,
            )
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._next.append(waiter)
        if self._round is None:
            self._round = asyncio.ensure_future(self._run())
        return await waiter

    async def stop(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    async def _run(self) -> None:
        served: list[Waiter] = []
        try:
            while self._next:
                served, self._next = self._next, []
                outcome = await self._one_round()
                wake_queue().each("read points", served, partial(_settle, outcome=outcome))
        except BaseException as error:
            reason = (
                "the node is stopping" if isinstance(error, asyncio.CancelledError) else f"a bug: {error!r}"
            )
            waiters, self._next = (*served, *self._next), []
            failed = ReadFailed(reason, code=Code.READ_NOT_CONFIRMED)
            wake_queue().each("read points", waiters, partial(_settle, outcome=failed))
            raise
        finally:
            self._round = None

    async def _one_round(self) -> int | DLedgerError:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._confirm()
        except TimeoutError:
            return ReadFailed(
                f"no majority confirmed the leader within {self._timeout_s:g} s", code=Code.READ_NOT_CONFIRMED
            )
        except DLedgerError as error:
            return error


def _settle(waiter: Waiter, outcome: int | DLedgerError) -> bool:
    if waiter.done():
        return False
    if isinstance(outcome, DLedgerError):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
    return True
