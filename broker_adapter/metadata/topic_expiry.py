"""Topics that came into being because clients used them go when nobody does any more.

The master decides, in the step in which the log takes the deletion: whatever was sent before it is known by
then, and what is sent after it is refused (`topic_gate`). So no message goes with its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

import structlog

from broker_adapter.metadata.commands import DeleteTopic
from broker_adapter.metadata.expiry import MOST_A_LOOK, NAMES_A_TURN, Expiry, LastUse
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState

_log = structlog.get_logger(part="topics")


class Holdings(NamedTuple):
    """What there is of a topic, and how far the log of this master goes."""

    bounds: Callable[[str, int], tuple[int, int]]  # (min offset, max offset) of a queue
    queue_ids: Callable[[str], Collection[int]]  # of queues that ever had a message
    is_awaited: Callable[[str], bool]  # whether delayed or half messages wait for the topic
    last_index: Callable[[], int]  # of the last entry that this master has appended
    dispatched_index: Callable[[], int]


class _Seen(NamedTuple):
    """A topic that was seen to be idle: when it was used last, and how far the log went by then."""

    used_ms: int
    last_index: int


class _Run(Protocol):
    def __call__(self, work: Callable[[], frozenset[str]], /) -> Awaitable[frozenset[str]]: ...


class TopicExpiry(Expiry):
    """Of topics."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        use: LastUse,
        holdings: Holdings,
        *,
        expire_ms: int,
        run: _Run,
    ) -> None:
        """`expire_ms` 0: never. `run` does what takes long on a thread."""
        super().__init__("topic", use, expire_ms)
        self._metadata = metadata
        self._proposals = proposals
        self._holdings = holdings
        self._run = run
        self._seen_idle: dict[str, _Seen] = {}

    def start(self, term: int, role_epoch: int) -> None:
        self._seen_idle.clear()
        super().start(term, role_epoch)

    async def look(self) -> None:
        """Delete some topics that nobody uses. What was appended before a topic was first seen to be idle has
        to be applied by then, so that what the topic holds is known."""
        topics = self._metadata.topics
        self._use.keep(topics)
        idle: list[str] = []
        for number, (name, config) in enumerate(topics.items(), 1):
            if config.auto_created and self._use.idle_ms(name) >= self._expire_ms:
                idle.append(name)
            if number % NAMES_A_TURN == 0:
                await asyncio.sleep(0)
        self._seen_idle = seen = {name: self._seen(name) for name in idle}
        if not idle:
            return
        subscribed = await self._run(lambda: _subscribed(self._metadata))
        deleted = 0
        for name, first in list(seen.items()):
            if name not in subscribed and self._is_needless(name, first):
                # Nothing else runs on the loop between this and the append.
                await self._delete(name)
                deleted += 1
                if deleted == MOST_A_LOOK:
                    return

    def _seen(self, topic: str) -> _Seen:
        """What the first look since its last use has found."""
        used_ms, found = self._use.used_ms(topic), self._seen_idle.get(topic)
        if found is not None and found.used_ms == used_ms:
            return found
        return _Seen(used_ms, self._holdings.last_index())

    def _is_needless(self, topic: str, first: _Seen) -> bool:
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
                for least, end in (holdings.bounds(topic, one) for one in holdings.queue_ids(topic))
            )
        )

    async def _delete(self, topic: str) -> None:
        idle_s = self._use.idle_ms(topic) // 1000
        (await self._proposals.propose(DeleteTopic(topic))).check()
        self._seen_idle.pop(topic, None)
        self.expired += 1
        _log.info("a topic that nobody uses is deleted", topic=topic, idle_s=idle_s)


def _subscribed(metadata: MetadataState) -> frozenset[str]:
    """Topics of which members of groups have queues. From any thread."""
    members: list[Mapping[str, tuple[tuple[str, int], ...]]] = [one.members for one in metadata.groups()]
    return frozenset(topic for of in members for queues in of.values() for topic, _ in queues)
