"""Serializes config changes of topics and groups on the master.

An administrator specifies only the settings to change. The new config is computed from the current one, so
concurrent changes of a topic could otherwise undo each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import Command, PutGroup, PutTopic
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome

_MAX_SHOWN = 8


class ConfigChanges:
    """Applies config changes. Runs on the event loop of the master."""

    def __init__(
        self,
        metadata: MetadataState,
        propose: Callable[[Command], Awaitable[CommandOutcome]],
        topic_stats: Callable[[str], Awaitable[Sequence[QueueStats]]],
        closing: Callable[[str, int], AbstractContextManager[None]],
    ) -> None:
        """`topic_stats`: linearizable, like `BrokerApi.topic_stats`. `closing`: see `TopicGate.closing`."""
        self._metadata = metadata
        self._propose = propose
        self._topic_stats = topic_stats
        self._closing = closing
        self._locks: WeakValueDictionary[tuple[type, str], asyncio.Lock] = WeakValueDictionary()

    async def change_topic(
        self, name: str, change: Callable[[TopicConfig | None], TopicConfig], *, is_forced: bool
    ) -> None:
        """Implement `BrokerApi.change_topic`."""
        async with self._lock(PutTopic, name):
            before = self._metadata.topic(name)
            after = change(before)
            if before is None or is_forced or not (hidden := _hidden_queues(before, after)):
                (await self._propose(PutTopic(after))).check()
                return
            await self._check_empty(name, hidden)
            # Suppose a producer sends to one of these queues now. The message would be acknowledged, and then
            # its queue would be removed. The queues therefore stop accepting messages before the second
            # check. Once `closed` is applied, all messages accepted earlier are in their queues.
            with self._closing(name, _queue_count(after)):
                if _queue_count(after) < _queue_count(before):
                    closed = before._replace(write_queues=min(before.write_queues, after.write_queues))
                    (await self._propose(PutTopic(closed))).check()
                    await self._check_empty(name, hidden)
                (await self._propose(PutTopic(after))).check()

    async def change_group(self, name: str, change: Callable[[GroupConfig | None], GroupConfig]) -> None:
        """Implement `BrokerApi.change_group`."""
        async with self._lock(PutGroup, name):
            group = self._metadata.group(name)
            after = change(None if group is None else group.config)
            (await self._propose(PutGroup(after))).check()

    def _lock(self, kind: type, name: str) -> asyncio.Lock:
        return self._locks.setdefault((kind, name), asyncio.Lock())

    async def _check_empty(self, name: str, queues: range) -> None:
        queue_ids = [
            stats.queue_id
            for stats in await self._topic_stats(name)
            if stats.queue_id in queues and stats.max_offset > stats.min_offset
        ]
        if queue_ids:
            shown = ", ".join(map(str, queue_ids[:_MAX_SHOWN]))
            shown += ", ..." if len(queue_ids) > _MAX_SHOWN else ""
            text = f"topic {name} would lose {len(queue_ids)} queues that hold messages: {shown}"
            raise error_for(Status.QUEUES_NOT_EMPTY, text)


def _hidden_queues(before: TopicConfig, after: TopicConfig) -> range:
    """Return the queues that the change would hide from consumers and statistics."""
    total_before, total_after = _queue_count(before), _queue_count(after)
    if after.read_queues < before.read_queues:
        return range(after.read_queues, total_before)
    return range(total_after, total_before)


def _queue_count(config: TopicConfig) -> int:
    return max(config.read_queues, config.write_queues)
