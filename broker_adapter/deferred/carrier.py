"""Carry delayed messages along with the log, so that a long delay does not keep all of it from being purged.

RocketMQ's timer does so every two days. Here it is done when retention wants to purge an entry that is still
waited for: the message is appended again, under the number that it has, and its old entry may go. A stretch
of the log is cleared only if at most half of it has to be carried. So carrying writes no more than half of
what it frees, and a log that consists of delayed messages stays until they are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from broker_adapter.errors import BrokerError
from broker_adapter.pop.commands import Carried, Defer
from broker_adapter.pop.committer import Committer, Request
from broker_adapter.pop.deferred_messages import DeferredMessage, Numbered
from broker_adapter.pop.delay_index import DelayedRow
from broker_adapter.pop.state import DeliveryState

_log = structlog.get_logger(part="delivery")

#: Of messages that are read, and appended again, at once.
_STEP_BYTES, _STEP_MESSAGES = 1 << 20, 200
#: Under the lock at once: 2 ms.
_LOOKED_AT = 500


class KeptLog(Protocol):
    """What of `dledger.NodeServer` is asked."""

    @property
    def begin_pos(self) -> int: ...

    @property
    def wanted_begin_pos(self) -> int:
        """Where the log would begin if no delayed message were waited for; -1: where it does."""


class Carrier:
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
        """`whole` reads messages from the log. `run`: what blocks, on a reader's thread."""
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
        """How much of the log is not purged because of delayed messages."""
        return max(0, self._log.wanted_begin_pos - self._log.begin_pos)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_ms / 1000)
            try:
                await self.look()
            except BrokerError as error:
                _log.info("delayed messages are carried along later", reason=str(error))
            except Exception as error:  # a mistake costs this look, and not all that are to come
                _log.error("delayed messages could not be carried along", exc_info=error)

    async def look(self) -> None:
        """Carry all that stands between the log and its purge, if that is worth it."""
        begin, wanted = self._log.begin_pos, self._log.wanted_begin_pos
        if wanted <= begin:
            return
        if not await self._is_worth_it(wanted, (wanted - begin) // 2):
            return
        after, last = -1, self._state.deferred.last_version
        while rows := await self._in_the_way(after, wanted, _STEP_MESSAGES):
            after = rows[-1].version
            # What was carried is behind the last of those that were there.
            messages = [(row.number, DeferredMessage.of_row(row)) for row in rows if row.version <= last]
            if not messages:
                break
            while messages:
                count = _step(messages)
                await self._carry(messages[:count])
                del messages[:count]

    async def _is_worth_it(self, wanted: int, most_bytes: int) -> bool:
        """Whether those that the log has before a position have no more bytes than that."""
        after = -1
        while rows := await self._in_the_way(after, wanted, _LOOKED_AT):
            after = rows[-1].version
            most_bytes -= sum(row.size for row in rows)
            if most_bytes < 0:
                return False
        return True

    async def _in_the_way(self, after: int, wanted: int, limit: int) -> list[DelayedRow]:
        """The next rows behind a version that the log has before a position."""

        def page() -> list[DelayedRow]:
            with self._state.lock:
                return self._state.deferred.page(after, limit)

        return [row for row in await self._run_apart(page, "") if row.pos < wanted]

    async def _carry(self, messages: Sequence[Numbered]) -> None:
        """One that cannot be read holds up none of the others. BrokerError: there is no room, say."""
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
            request = Request(
                elements=[Carried(deferred_id, defer)], is_due=partial(self._is_deferred, deferred_id)
            )
            waiting.append(self._committer.submit(request))
        for outcome in await asyncio.gather(*map(asyncio.shield, waiting), return_exceptions=True):
            if not isinstance(outcome, BaseException):
                self.carried += bool(outcome.outcomes[0])

    def _is_deferred(self, deferred_id: int) -> bool:
        return deferred_id in self._state.deferred


def _step(messages: Sequence[Numbered]) -> int:
    """How many come next: one at least."""
    size = 0
    for count, (_, message) in enumerate(messages[:_STEP_MESSAGES]):
        size += message.place.size
        if count and size > _STEP_BYTES:
            return count
    return min(len(messages), _STEP_MESSAGES)
