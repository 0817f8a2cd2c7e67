"""Expiry of automatically created topics that are no longer used.

No message is lost with its topic. The master decides in the same event-loop step in which the log accepts the
deletion. It then knows all earlier messages, and `TopicGate` refuses later ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog

from broker_adapter.metadata.commands import DeleteTopic
from broker_adapter.metadata.expiry import MAX_DELETIONS_PER_SWEEP, NAMES_PER_YIELD, Expiry, LastUse
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState

_log = structlog.get_logger(part="topics")


class Holdings(NamedTuple):
    """Callbacks for the contents of topics and the progress of this master's log."""

    bounds: Callable[[str, int], tuple[int, int]]  # (min offset, max offset) of a queue
    queue_ids: Callable[[str], Collection[int]]  # ids of queues that have ever had a message
    is_awaited: Callable[[str], bool]  # True while delayed or half messages are bound for the topic
    last_index: Callable[[], int]  # index of the last entry that this master appended
    dispatched_index: Callable[[], int]


class _IdleObservation(NamedTuple):
    """First observation of an idle topic.

    `used_ms`: time of its last use. `last_index`: last index of the log at the observation.
    """

    used_ms: int
    last_index: int


class TopicExpiry(Expiry):
    """Deletes unused topics."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        use: LastUse,
        holdings: Holdings,
        *,
        expire_ms: int,
    ) -> None:
        """`expire_ms` 0: never expire."""
        super().__init__("topic", use, expire_ms)
        self._metadata = metadata
        self._proposals = proposals
        self._holdings = holdings
        self._seen_idle: dict[str, _IdleObservation] = {}

    def start(self, term: int, role_epoch: int) -> None:
        self._seen_idle.clear()
        super().start(term, role_epoch)

    async def sweep(self) -> None:
        """Delete some unused topics.

        All messages of a topic are known once this node has applied every entry that was appended before the
        topic was first observed as idle.
        """
        topics = self._metadata.topics
        self._use.keep(topics)
        idle: list[str] = []
        for number, (name, config) in enumerate(topics.items(), 1):
            if config.auto_created and self._use.idle_ms(name) >= self._expire_ms:
                idle.append(name)
            if number % NAMES_PER_YIELD == 0:
                await asyncio.sleep(0)
        self._seen_idle = seen = {name: self._seen(name) for name in idle}
        deleted = 0
        for name, first in list(seen.items()):
            if self._can_delete(name, first):
                # No other task runs between this check and the append.
                await self._delete(name)
                deleted += 1
                if deleted == MAX_DELETIONS_PER_SWEEP:
                    return

    def _seen(self, topic: str) -> _IdleObservation:
        """Return the first observation of the topic as idle since its last use."""
        used_ms, first = self._use.used_ms(topic), self._seen_idle.get(topic)
        if first is not None and first.used_ms == used_ms:
            return first
        return _IdleObservation(used_ms, self._holdings.last_index())

    def _can_delete(self, topic: str, first: _IdleObservation) -> bool:
        config, holdings = self._metadata.topic(topic), self._holdings
        return (
            config is not None
            and config.auto_created
            and self._use.used_ms(topic) == first.used_ms
            and self._use.idle_ms(topic) >= self._expire_ms
            and holdings.dispatched_index() >= first.last_index
            and not holdings.is_awaited(topic)
            and all(
                least == end
                for least, end in (holdings.bounds(topic, queue_id) for queue_id in holdings.queue_ids(topic))
            )
        )

    async def _delete(self, topic: str) -> None:
        idle_s = self._use.idle_ms(topic) // 1000
        (await self._proposals.propose(DeleteTopic(topic))).check()
        self._seen_idle.pop(topic, None)
        self.expired += 1
        _log.info("deleted an unused topic", topic=topic, idle_s=idle_s)
