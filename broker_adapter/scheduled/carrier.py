"""Re-appends delayed messages, so that a long delay does not block a purge of the log.

RocketMQ's timer does this every two days. The carrier does it when retention wants to purge an entry with a
pending message. It appends the message again under the same number, which frees the old entry. It frees a
range of the log only if the messages to carry take up at most half of the range. So it never writes more than
half of the bytes that it frees, and a log that consists mainly of delayed messages is not purged until they
are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from broker_adapter.delivery_state.commands import Carry, Defer
from broker_adapter.delivery_state.deferred_messages import DeferredMessage, Numbered
from broker_adapter.delivery_state.delay_index import DelayedRow
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError
from broker_adapter.put.committer import Committer, PutRequest

_log = structlog.get_logger(part="delivery")

# Maximum number of messages that are read and appended together.
_STEP_BYTES, _STEP_MESSAGES = 1 << 20, 200
# Rows examined per lock acquisition, which takes 2 ms.
_EXAMINED = 500


class KeptLog(Protocol):
    """The part of `dledger.NodeServer` that the carrier uses."""

    @property
    def begin_pos(self) -> int: ...

    @property
    def wanted_begin_pos(self) -> int:
        """The position at which the log would start if delayed messages blocked no purge; -1 if they
        block none.
        """


class Carrier:
    """Carries the delayed messages that block a purge."""

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        whole: Callable[[Sequence[Numbered]], Awaitable[list[Defer]]],
        log: KeptLog,
        *,
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
        look_ms: int,
    ) -> None:
        """`whole` reads complete messages from the log. `run` runs a blocking call on a reader thread."""
        self._run_apart = run
        self._state = state
        self._committer = committer
        self._whole = whole
        self._log = log
        self._look_ms = look_ms
        self._task: asyncio.Task[None] | None = None
        self.carried = 0

    def start(self) -> None:
        self.stop()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="carry-delayed-messages")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None

    @property
    def kept_bytes(self) -> int:
        """Number of bytes of the log that cannot be purged because of delayed messages."""
        return max(0, self._log.wanted_begin_pos - self._log.begin_pos)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_ms / 1000)
            try:
                await self.carry_if_worthwhile()
            except BrokerError as error:
                _log.info("could not carry delayed messages; will retry", reason=str(error))
            except Exception as error:  # an unexpected error must not end the task
                _log.error("carrying delayed messages failed", exc_info=error)

    async def carry_if_worthwhile(self) -> None:
        """Carry the messages that block a purge, if they take up at most half of the space that the purge
        frees.
        """
        begin, wanted = self._log.begin_pos, self._log.wanted_begin_pos
        if wanted <= begin:
            return
        if not await self._is_worth_it(wanted, (wanted - begin) // 2):
            return
        after, last = -1, self._state.deferred.last_version
        while rows := await self._in_the_way(after, wanted, _STEP_MESSAGES):
            after = rows[-1].version
            # Carried messages get new versions, which are greater than `last`.
            messages = [(row.number, DeferredMessage.of_row(row)) for row in rows if row.version <= last]
            if not messages:
                break
            while messages:
                count = _step(messages)
                await self._carry(messages[:count])
                del messages[:count]

    async def _is_worth_it(self, wanted: int, most_bytes: int) -> bool:
        """True if the total size of the pending messages before position `wanted` is at most `most_bytes`."""
        after = -1
        while rows := await self._in_the_way(after, wanted, _EXAMINED):
            after = rows[-1].version
            most_bytes -= sum(row.size for row in rows)
            if most_bytes < 0:
                return False
        return True

    async def _in_the_way(self, after: int, wanted: int, limit: int) -> list[DelayedRow]:
        """Return the next rows after a version whose messages are before a log position."""

        def page() -> list[DelayedRow]:
            with self._state.lock:
                return self._state.deferred.page(after, limit)

        return [row for row in await self._run_apart(page, "") if row.pos < wanted]

    async def _carry(self, messages: Sequence[Numbered]) -> None:
        """Carry messages.

        An unreadable message does not prevent the others from being carried. Raises BrokerError, for example
        if the log is full.
        """
        try:
            deferred = await self._whole(messages)
        except Exception as error:
            if len(messages) == 1:
                _log.error("a delayed message cannot be read", number=messages[0][0], reason=str(error))
                return
            for one in messages:
                await self._carry([one])
            return
        waiting = []
        for (deferred_id, _), defer in zip(messages, deferred, strict=True):
            request = PutRequest(
                elements=[Carry(deferred_id, defer)], is_due=partial(self._is_deferred, deferred_id)
            )
            waiting.append(self._committer.submit(request))
        for outcome in await asyncio.gather(*map(asyncio.shield, waiting), return_exceptions=True):
            if not isinstance(outcome, BaseException):
                self.carried += bool(outcome.outcomes[0])

    def _is_deferred(self, deferred_id: int) -> bool:
        return deferred_id in self._state.deferred


def _step(messages: Sequence[Numbered]) -> int:
    """Return the number of messages in the next batch, at least 1."""
    size = 0
    for count, (_, message) in enumerate(messages[:_STEP_MESSAGES]):
        size += message.place.size
        if count and size > _STEP_BYTES:
            return count
    return min(len(messages), _STEP_MESSAGES)
