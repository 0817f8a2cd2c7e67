"""Proposes commands: appends each to the log, and waits until this node has applied it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.errors import PutIndeterminate, Status, error_for
from broker_adapter.metadata.commands import (
    Command,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    PutGroup,
    PutTopic,
)
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.values import CommandOutcome

#: Commands that change the catalog of topics and groups.
_CATALOG_CHANGES = (PutTopic, DeleteTopic, PutGroup, DeleteGroup, ExpireGroup)


async def _nothing_to_publish() -> None:
    return


class Proposals:
    """Proposes commands and tracks those in flight. All methods except `on_result` run on one event loop.

    `append` appends the body of a metadata message to the log and returns its index once committed. It raises
    PutRefused if the message will never be in the log, and PutIndeterminate if that is unknown.
    `new_request_id` returns 16 bytes that no node ever uses again. `publish_catalog` writes topics and groups
    to files that other programs read; a proposal that changes the catalog waits for `publish_catalog`, up to
    `timeout_ms`.
    """

    def __init__(
        self,
        append: Callable[[bytes], Awaitable[int]],
        *,
        new_request_id: Callable[[], bytes],
        timeout_ms: int = 5_000,
        max_waiting: int = 10_000,
        publish_catalog: Callable[[], Awaitable[None]] = _nothing_to_publish,
    ) -> None:
        self._append = append
        self._new_request_id = new_request_id
        self._timeout_ms = timeout_ms
        self._max_waiting = max_waiting
        self._publish_catalog = publish_catalog
        self._waiting: dict[bytes, asyncio.Future[CommandOutcome]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def propose(self, command: Command) -> CommandOutcome:
        """Propose a command and return its outcome once this node has applied it.

        Raises the errors of `encode` and `append`, and Busy (TOO_MANY_PROPOSALS). Raises PutIndeterminate if
        the command was not applied within `timeout_ms` or before `abandon`; it may still take effect. A
        refusal is part of the outcome (see `CommandOutcome.check`).
        """
        if len(self._waiting) >= self._max_waiting:
            raise error_for(
                Status.TOO_MANY_PROPOSALS, f"too many commands are in flight: {self._max_waiting}"
            )
        request_id = self._new_request_id()
        body = encode(command, request_id)
        # Register first: the entry may be applied before `append` returns.
        result: asyncio.Future[CommandOutcome] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = result
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._append(body)
                outcome = await asyncio.shield(result)
                if outcome.status is None and isinstance(command, _CATALOG_CHANGES):
                    await self._publish_catalog()
                return outcome
        except (TimeoutError, PutIndeterminate) as error:
            # Once the command is applied, its outcome is known, even if `append` failed to determine it.
            if result.done() and result.exception() is None:
                return result.result()
            if isinstance(error, PutIndeterminate):
                raise
            raise _unknown(f"the command was not applied within {self._timeout_ms} ms") from None
        finally:
            del self._waiting[request_id]
            if not result.cancel():
                result.exception()  # mark as retrieved, in case both `abandon` and `append` failed

    def on_result(self, request_id: bytes, outcome: CommandOutcome) -> None:
        """Handle a command that was applied, whichever node proposed it.

        `MetadataState` calls this on its own thread.
        """
        result = self._waiting.get(request_id)
        if result is None:
            return
        try:
            result.get_loop().call_soon_threadsafe(_set_result, result, outcome)
        except RuntimeError:
            # The loop was closed, so there are no waiters to notify.
            return

    def abandon(self, reason: str) -> None:
        """Fail all waiters with PutIndeterminate, because this node is no longer the master."""
        for result in self._waiting.values():
            if not result.done():
                result.set_exception(_unknown(reason))


def _set_result(result: asyncio.Future[CommandOutcome], outcome: CommandOutcome) -> None:
    if not result.done():
        result.set_result(outcome)


def _unknown(reason: str) -> PutIndeterminate:
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"the command may or may not take effect: {reason}")
