"""Topics that came into being because clients used them go when nobody does any more.

The master decides, in the step in which the log takes the deletion: whatever was sent before it is known by
then, and what is sent after it is refused (`topic_gate`). So no message goes with its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

import structlog

from broker_adapter.errors import BrokerError
from broker_adapter.metadata.commands import DeleteTopic
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState

_log = structlog.get_logger(part="topics")

_LOOK_MOST_MS = 60_000
#: Topics that one look deletes at most: each is an append.
_AT_ONCE = 20
#: Of names looked at in one turn of the loop.
_STEP = 1_000


class TopicUse:
    """When each topic was used for the last time, as far as this master knows. On the event loop."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: monotonic."""
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._used_ms: dict[str, int] = {}

    def begin(self) -> None:
        """A leadership begins: what was before, nobody here knows, so all topics count as used."""
        self._since_ms = self._now_ms()
        self._used_ms.clear()

    def touch(self, topic: str) -> None:
        self._used_ms[topic] = self._now_ms()

    def used_ms(self, topic: str) -> int:
        return self._used_ms.get(topic, self._since_ms)

    def idle_ms(self, topic: str) -> int:
        return self._now_ms() - self.used_ms(topic)

    def keep(self, topics: Collection[str]) -> None:
        """Forget those that there are not."""
        for name in [name for name in self._used_ms if name not in topics]:
            del self._used_ms[name]


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


class TopicExpiry:
    """Implements `broker_adapter.role.broker_role.MasterService`."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        use: TopicUse,
        holdings: Holdings,
        *,
        expire_ms: int,
        run: _Run,
    ) -> None:
        """`expire_ms` 0: never. `run` does what takes long on a thread."""
        self.expired = 0
        self._metadata = metadata
        self._proposals = proposals
        self._use = use
        self._holdings = holdings
        self._expire_ms = expire_ms
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._seen_idle: dict[str, _Seen] = {}

    def start(self, term: int, role_epoch: int) -> None:
        self._use.begin()
        self._seen_idle.clear()
        if self._expire_ms:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="topic-expiry")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_MOST_MS, max(1, self._expire_ms // 4)) / 1000)
            try:
                await self.look()
            except BrokerError as error:
                _log.info("unused topics stay for now", reason=str(error))
            except Exception as error:  # a mistake: topics stay, and the next look may succeed
                _log.error("unused topics could not be looked for", exc_info=error)

    async def look(self) -> None:
        """Delete some topics that nobody uses. What was appended before a topic was first seen to be idle has
        to be applied by then, so that what the topic holds is known."""
        topics = self._metadata.topics
        self._use.keep(topics)
        idle: list[str] = []
        for number, (name, config) in enumerate(topics.items(), 1):
            if config.auto_created and self._use.idle_ms(name) >= self._expire_ms:
                idle.append(name)
            if number % _STEP == 0:
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
                if deleted == _AT_ONCE:
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
