"""From a command to what came of it: through the log and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.errors import PutIndeterminate, Status, error_for
from broker_adapter.metadata.commands import Command
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.values import Outcome


class Proposals:
    """Commands of this node on their way. Everything but `on_result` runs on one event loop.

    `append` puts the body of a metadata message into the log and returns its index once it is committed; it
    raises PutRefused if it will never be there, PutIndeterminate if nobody knows. `new_request_id` gives 16
    bytes that are never given twice, on any node.
    """

    def __init__(
        self,
        append: Callable[[bytes], Awaitable[int]],
        *,
        new_request_id: Callable[[], bytes],
        timeout_ms: int = 5_000,
        max_waiting: int = 10_000,
    ) -> None:
        self._append = append
        self._new_request_id = new_request_id
        self._timeout_ms = timeout_ms
        self._max_waiting = max_waiting
        self._waiting: dict[bytes, asyncio.Future[Outcome]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def propose(self, command: Command) -> Outcome:
        """What came of the command, once it was applied on this node (`Outcome.check` raises a refusal).

        Errors of `encode` and `append`; Busy (TOO_MANY_PROPOSALS); PutIndeterminate if it was not applied
        within `timeout_ms`, or before `abandon`: it may still be.
        """
        if len(self._waiting) >= self._max_waiting:
            raise error_for(Status.TOO_MANY_PROPOSALS, f"{self._max_waiting} commands are on their way")
        request_id = self._new_request_id()
        body = encode(command, request_id)
        # Known before the entry can be: it may be applied before `append` returns.
        result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = result
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._append(body)
                return await asyncio.shield(result)
        except (TimeoutError, PutIndeterminate) as error:
            # What was applied is known, even if `append` could not tell.
            if result.done() and result.exception() is None:
                return result.result()
            if isinstance(error, PutIndeterminate):
                raise
            raise _unknown(f"not applied within {self._timeout_ms} ms") from None
        finally:
            del self._waiting[request_id]
            if not result.cancel():
                result.exception()  # marks it as seen, if `abandon` came and `append` failed

    def on_result(self, request_id: bytes, outcome: Outcome) -> None:
        """A command was applied: `MetadataState` calls this, on its own thread, for those of all nodes."""
        result = self._waiting.get(request_id)
        if result is None:
            return
        try:
            result.get_loop().call_soon_threadsafe(_settle, result, outcome)
        except RuntimeError:
            # The loop was closed with callers still waiting: nobody is left to be told.
            return

    def abandon(self, reason: str) -> None:
        """This node is not the master any more: whoever waits is told that nobody knows."""
        for result in self._waiting.values():
            if not result.done():
                result.set_exception(_unknown(reason))


def _settle(result: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not result.done():
        result.set_result(outcome)


def _unknown(reason: str) -> PutIndeterminate:
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"the command may or may not take effect: {reason}")
