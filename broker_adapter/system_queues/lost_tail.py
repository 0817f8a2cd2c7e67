"""Queues of the broker that are shorter than what it has read of them: its log has lost its tail.

Facts: RocketMQ writes delayOffset.json and consumerOffset.json at other times than its log. What comes to the
offsets that were lost would be passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broker_adapter.deferred.deferring import DeferringParts
from broker_adapter.pop.commands import SystemQueueEnd
from broker_adapter.pop.committer import Request

_log = structlog.get_logger(part="delivery")


class LostTail:
    """`start` while nothing is written, then `settle` before the queues are read; on the event loop."""

    def __init__(self, parts: DeferringParts, queues: Sequence[tuple[str, int]]) -> None:
        """`queues`: topics and queue ids."""
        self._parts = parts
        self._queues = queues
        self._beyond: list[SystemQueueEnd] = []

    def start(self) -> None:
        """Look at all that is applied: a new master's log is."""
        self._beyond = []
        for topic, queue_id in self._queues:
            offset = self._parts.state.system_offset(topic, queue_id)
            if offset and offset > (end := self._parts.files.bounds(topic, queue_id)[1]):
                self._beyond.append(SystemQueueEnd(topic, queue_id, end))

    async def settle(self) -> None:
        """What the committer raises: then it is to be called again."""
        if self._beyond:
            lost = {f"{one.topic} {one.queue_id}": one.end for one in self._beyond}
            _log.warning("queues of the broker's own are shorter than what was read of them", ends=lost)
            await self._parts.committer.submit(Request(elements=self._beyond))
            self._beyond = []
