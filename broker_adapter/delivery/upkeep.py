"""Removes pending messages that were purged from the log, and moves cursors back over pending messages that
are unclaimed for days.

Both would otherwise count against the shared limits. The log contains a command for each change, so that all
nodes make the same changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator

import structlog

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery.receive_queues import ReceiveQueues
from broker_adapter.delivery.receiver import QueueBounds
from broker_adapter.delivery_state.commands import Element, Fold, PurgeBelow
from broker_adapter.delivery_state.queue_state import QueueDelivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError
from broker_adapter.put.committer import Committer, PutRequest

_log = structlog.get_logger(part="delivery")

#: Maximum number of queues per event-loop step, where 1,000 pending messages count as one more queue, and of
#: messages per command.
_QUEUES, _MESSAGES = 50, 1_000
_PAUSE_S = 0.005
#: ReceiveQueues per step: 2 ms.
_VIEWS = 10_000
#: When more than half of `max_pending` is in use, unclaimed messages expire after this time.
_SCARCE_MS = 600_000


class Upkeep:
    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        receive_queues: ReceiveQueues,
        files: QueueBounds,
        *,
        now_ms: Callable[[], int],
        settings: DeliverySettings,
    ) -> None:
        """`now_ms` returns cluster time without its steps."""
        self._state = state
        self._committer = committer
        self._receive_queues = receive_queues
        self._files = files
        self._now_ms = now_ms
        self._settings = settings
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, remaining: Iterator[QueueDelivery] | None) -> None:
        """Schedule the next step.

        `remaining`: the queues that this round still has to examine, or None if the round has ended.
        """
        delay = self._settings.upkeep_ms / 1000 if remaining is None else _PAUSE_S
        self._timer = asyncio.get_running_loop().call_later(delay, self.run_step, remaining)

    def run_step(self, remaining: Iterator[QueueDelivery] | None = None) -> None:
        """Examine some queues."""
        is_over = True
        try:
            remaining, is_over = self._examine_some(remaining)
        except BrokerError as error:
            _log.info("upkeep of deliveries postponed", reason=str(error))
        except Exception as error:  # a bug, which must not end later steps
            _log.error("upkeep of deliveries failed", exc_info=error)
        self._arm(None if is_over else remaining)

    def _examine_some(
        self, remaining: Iterator[QueueDelivery] | None
    ) -> tuple[Iterator[QueueDelivery], bool]:
        """Examine some queues. Return the remaining queues, and True if the round has ended."""
        if remaining is None:
            with self._state.lock:
                remaining = iter(list(self._state.queues.values()))
        self._receive_queues.drop_idle(_VIEWS)
        elements: dict[Element, None] = {}
        examined = 0
        for queue in remaining:
            examined += 1 + len(queue.pending) // 1_000
            with self._state.lock:
                commands = self._of_queue(queue)
            elements.update(dict.fromkeys(commands))
            if examined >= _QUEUES:
                break
        try:
            if elements:
                self._committer.submit(PutRequest(elements=list(elements)))
        except BrokerError as error:
            _log.info("upkeep of deliveries postponed", reason=str(error))
        return remaining, examined < _QUEUES

    def _idle_ms(self) -> int:
        is_scarce = 2 * self._state.pending_count > self._settings.max_pending
        return min(self._settings.abandoned_ms, _SCARCE_MS) if is_scarce else self._settings.abandoned_ms

    def _of_queue(self, queue: QueueDelivery) -> Collection[Element]:
        if not queue.pending:
            return ()
        key = queue.key
        elements: list[Element] = []
        least = self._files.bounds(key.topic, key.queue_id)[0]
        if min(queue.pending) < least:
            elements.append(PurgeBelow(key.topic, key.queue_id, least))
        receives = self._receive_queues.find(key)
        newest = queue.pending.get(queue.cursor - 1)
        idle_ms = self._idle_ms()
        is_free = receives is None or receives.is_idle
        if is_free and newest is not None and newest.invisible_until_ms <= self._now_ms() - idle_ms:
            elements.append(Fold(key, idle_ms, _MESSAGES))
        return elements
