"""What the master looks after in the state of delivery: messages that are pending for nothing.

What was purged from the log nobody can be given any more, and what is visible again for days nobody wants:
both take room of the limits that all groups share. They go as commands of the log, on all nodes alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

import structlog

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.errors import BrokerError
from broker_adapter.pop.commands import Element, Fold, Purged
from broker_adapter.pop.committer import Committer, Request
from broker_adapter.pop.queue_state import QueueDelivery
from broker_adapter.pop.receive_queues import ReceiveQueues
from broker_adapter.pop.state import DeliveryState

_log = structlog.get_logger(part="delivery")

#: Queues of one step of the loop, each as many as its pending messages are thousands; messages of a command.
_QUEUES, _MESSAGES = 50, 1_000
_PAUSE_S = 0.005
#: ReceiveQueues of one step: 2 ms.
_VIEWS = 10_000
#: While half of what may be pending is, nobody has to want a message for so long only.
_SCARCE_MS = 600_000


class Bounds(Protocol):
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...


class Upkeep:
    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        receive_queues: ReceiveQueues,
        files: Bounds,
        *,
        now_ms: Callable[[], int],
        settings: DeliverySettings,
    ) -> None:
        """`now_ms` is cluster time."""
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

    def _arm(self, left: Iterator[QueueDelivery] | None) -> None:
        """`left`: what of a round is still to be looked at; None: it is over."""
        delay = self._settings.upkeep_ms / 1000 if left is None else _PAUSE_S
        self._timer = asyncio.get_running_loop().call_later(delay, self.look, left)

    def look(self, left: Iterator[QueueDelivery] | None = None) -> None:
        """At some queues."""
        is_over = True
        try:
            left, is_over = self._look_at_some(left)
        except BrokerError as error:
            _log.info("the upkeep of delivery waits", reason=str(error))
        except Exception as error:  # a mistake costs this look, and not all that are to come
            _log.error("what is pending could not be looked after", exc_info=error)
        self._arm(None if is_over else left)

    def _look_at_some(self, left: Iterator[QueueDelivery] | None) -> tuple[Iterator[QueueDelivery], bool]:
        """What is left of the round, and whether it is over."""
        if left is None:
            with self._state.lock:
                left = iter(list(self._state.queues.values()))
        self._receive_queues.tidy(_VIEWS)
        elements: dict[Element, None] = {}
        looked_at = 0
        for queue in left:
            looked_at += 1 + len(queue.pending) // 1_000
            with self._state.lock:
                found = self._of_queue(queue)
            elements.update(dict.fromkeys(found))
            if looked_at >= _QUEUES:
                break
        try:
            if elements:
                self._committer.submit(Request(elements=list(elements)))
        except BrokerError as error:
            _log.info("the upkeep of delivery waits", reason=str(error))
        return left, looked_at < _QUEUES

    def _idle_ms(self) -> int:
        is_scarce = 2 * self._state.pending_count > self._settings.max_pending
        return min(self._settings.abandoned_ms, _SCARCE_MS) if is_scarce else self._settings.abandoned_ms

    def _of_queue(self, queue: QueueDelivery) -> Collection[Element]:
        if not queue.pending:
            return ()
        key = queue.key
        found: list[Element] = []
        least = self._files.bounds(key.topic, key.queue_id)[0]
        if min(queue.pending) < least:
            found.append(Purged(key.topic, key.queue_id, least))
        receives = self._receive_queues.find(key)
        newest = queue.pending.get(queue.cursor - 1)
        idle_ms = self._idle_ms()
        is_free = receives is None or receives.is_idle
        if is_free and newest is not None and newest.invisible_until_ms <= self._now_ms() - idle_ms:
            found.append(Fold(key, idle_ms, _MESSAGES))
        return found
