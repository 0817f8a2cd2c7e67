"""Resets the read offsets of system queues after the log has lost its tail.

RocketMQ writes delayOffset.json and consumerOffset.json independently of its log, so a read offset may be
beyond the end of its queue. Without a correction, the broker would skip new messages at the lost offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broker_adapter.delivery_state.commands import SystemQueueEnd
from broker_adapter.put.committer import PutRequest
from broker_adapter.scheduled.deferring import DeferredStoreParts

_log = structlog.get_logger(part="delivery")


class LostTail:
    """Resets read offsets.

    Call `start` before writes are accepted, and `settle` before the queues are read. Runs on the event loop.
    """

    def __init__(self, parts: DeferredStoreParts, queues: Sequence[tuple[str, int]]) -> None:
        """`queues`: (topic, queue id) pairs."""
        self._parts = parts
        self._queues = queues
        self._beyond: list[SystemQueueEnd] = []

    def start(self) -> None:
        """Compare the offsets with the queues.

        Call this only after a new master has applied its whole log.
        """
        self._beyond = []
        for topic, queue_id in self._queues:
            offset = self._parts.state.system_offset(topic, queue_id)
            if offset and offset > (end := self._parts.files.bounds(topic, queue_id)[1]):
                self._beyond.append(SystemQueueEnd(topic, queue_id, end))

    async def settle(self) -> None:
        """Commit the corrected offsets. If the committer raises an error, call this method again."""
        if self._beyond:
            lost = {f"{one.topic} {one.queue_id}": one.end for one in self._beyond}
            _log.warning("system queues end before their read offsets; resetting the offsets", ends=lost)
            await self._parts.committer.submit(PutRequest(elements=self._beyond))
            self._beyond = []
