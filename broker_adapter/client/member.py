"""A consumer's membership in its group, at the brokers of one name: joins, owns queues, commits offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from broker_adapter.api import Assignment, QueueOffset
from broker_adapter.client.directory import REPEATABLE, Directory, pause
from broker_adapter.client.listening import GroupListener
from broker_adapter.client.queue_feed import QueueFeed
from broker_adapter.client.values import MessageQueue
from broker_adapter.errors import BrokerError, GroupRefused, Status, TopicRefused
from broker_adapter.rpc.broker_client import BrokerClient

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Where a group begins that has committed nothing of a queue: "earliest", "latest", or ms since 1970.
Start = str | int


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """What all memberships of one consumer share. Times in seconds."""

    group: str
    member_id: str
    subscription: Mapping[str, Sequence[str]]  # topic -> tags, () for all
    start: Start = "earliest"
    lease: float = 10.0
    commit_interval: float = 1.0
    call_timeout: float = 3.0
    poll_wait: float = 15.0
    prefetch_bytes: int = 32 << 20


class Member:
    """One membership. `feeds` are the queues that it owns under `generation`."""

    def __init__(
        self,
        directory: Directory,
        broker: str,
        topics: Sequence[str],
        config: MemberConfig,
        on_ready: Callable[[QueueFeed], None],
        on_feeds: Callable[[Sequence[QueueFeed]], None],
        listener: GroupListener,
    ) -> None:
        self._directory = directory
        self._broker = broker
        self._topics = topics
        self._config = config
        self._on_ready = on_ready
        self._on_feeds = on_feeds
        self._listener = listener
        self.generation = -1
        self.feeds: dict[MessageQueue, QueueFeed] = {}
        self._rejoin = asyncio.Event()
        self._committing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Join. Raises what the broker refuses for good: TopicRefused, GroupRefused, IllegalMessage."""
        heartbeat = await self._join_once()
        self._tasks = [
            asyncio.create_task(self._keep_joined(heartbeat)),
            asyncio.create_task(self._commit_now_and_then()),
        ]

    def rejoin(self) -> None:
        """Something suggests that the group or the master has changed: ask at once."""
        self._rejoin.set()

    async def commit(self) -> None:
        """Commit what was consumed. A stale generation is no error here, as others own the queues by now, nor
        is a topic that is gone: what is ours is asked for anew, and the rest is committed the next time.

        Raises the error of a broker that cannot be reached: it is committed the next time.
        """
        async with self._committing:
            generation = self.generation
            dirty = [(feed, feed.position) for feed in self.feeds.values() if feed.is_dirty]
            if not dirty:
                return
            for feed, position in dirty:
                feed.attempted = position
            offsets = [QueueOffset(f.queue.topic, f.queue.queue_id, position) for f, position in dirty]
            told = {feed.queue: position for feed, position in dirty}
            self._listener.committing(told, generation)
            try:
                await self._send_commit(generation, offsets, told)
            except (GroupRefused, TopicRefused) as error:
                self._listener.committed(told, error)
                _log.info("commit of group %s refused: %s", self._config.group, error)
                self.rejoin()
                return
            except BaseException as error:
                self._listener.committed(told, error)
                raise
            self._listener.committed(told, None)
            for feed, position in dirty:
                feed.acknowledged = position

    async def _send_commit(
        self, generation: int, offsets: Sequence[QueueOffset], told: Mapping[MessageQueue, int]
    ) -> None:
        numbers = count(1)

        async def send(client: BrokerClient) -> None:
            if (number := next(numbers)) > 1:
                self._listener.commit_repeated(told, number)
            await client.commit_offsets(self._config.group, generation, offsets, self._config.call_timeout)

        await self._ask(send)

    async def close(self) -> None:
        """Stop, commit and leave, as far as the broker lets us."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_feeds()
        with suppress(BrokerError):
            await self.commit()
        config = self._config
        with suppress(BrokerError):
            await self._ask(lambda c: c.leave(config.group, config.member_id, config.call_timeout))

    async def abandon(self) -> None:
        """Stop, and tell nobody."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_feeds()

    async def _stop_feeds(self) -> None:
        await asyncio.gather(*(feed.stop() for feed in self.feeds.values()))
        for queue in self.feeds:
            self._listener.revoked(queue)

    # -- joining

    async def _keep_joined(self, heartbeat: float) -> None:
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(heartbeat if not failures else pause(failures)):
                    await self._rejoin.wait()
            try:
                await self._try_to_commit()  # what was consumed counts before others may get the queues
                self._rejoin.clear()  # whoever has asked so far, be it that commit
                heartbeat = await self._join_once()
                failures = 0
            except BrokerError as error:
                failures += 1
                _log.info("group %s: not joined: %s", self._config.group, error)

    async def _join_once(self) -> float:
        """Join or heartbeat, and take over what is assigned. The seconds until the next time."""
        config = self._config
        assignment = await self._ask(
            lambda client: client.join(
                config.group, config.member_id, self._topics, int(config.lease * 1000), config.call_timeout
            )
        )
        if assignment.generation != self.generation or self._wanted(assignment) != set(self.feeds):
            await self._adopt(assignment)
        return min(assignment.heartbeat_ms / 1000, config.lease / 3)

    def _wanted(self, assignment: Assignment) -> set[MessageQueue]:
        return {MessageQueue(topic, self._broker, queue_id) for topic, queue_id in assignment.queues}

    async def _adopt(self, assignment: Assignment) -> None:
        """Own the queues of a new generation, and no others."""
        async with self._committing:
            wanted = self._wanted(assignment)
            await self._drop([queue for queue in self.feeds if queue not in wanted])
            generation, committed = await self._committed()
            if generation != assignment.generation:
                self.rejoin()  # a newer one has begun already
                return
            moved = [queue for queue, feed in self.feeds.items() if not _is_ours(feed, committed.get(queue))]
            await self._drop(moved)
            starts = await self._starts(wanted - set(self.feeds), committed)
            self.generation = generation
            room = max(1, self._config.prefetch_bytes // max(1, len(wanted)))
            for feed in self.feeds.values():
                feed.room = room
            for queue, at in starts.items():
                self._listener.assigned(queue, at, generation)
            new = [self._feed(queue, at, committed.get(queue), room) for queue, at in starts.items()]
            self.feeds.update({feed.queue: feed for feed in new})
        _log.info("group %s: generation %d, %d queues", self._config.group, generation, len(self.feeds))
        self._on_feeds(new)

    async def _drop(self, queues: Sequence[MessageQueue]) -> None:
        dropped = [self.feeds.pop(queue) for queue in queues]
        await asyncio.gather(*(feed.stop() for feed in dropped))
        for feed in dropped:
            self._listener.revoked(feed.queue)

    def _feed(self, queue: MessageQueue, position: int, acknowledged: int | None, room: int) -> QueueFeed:
        return QueueFeed(
            self._directory,
            queue,
            group=self._config.group,
            tags=self._config.subscription[queue.topic],
            position=position,
            acknowledged=acknowledged,
            room=room,
            wait_ms=int(self._config.poll_wait * 1000),
            on_ready=self._on_ready,
            on_trouble=self.rejoin,
        )

    async def _committed(self) -> tuple[int, dict[MessageQueue, int]]:
        timeout = self._config.call_timeout
        generation, offsets = await self._ask(lambda client: client.offsets(self._config.group, timeout))
        return generation, {MessageQueue(o.topic, self._broker, o.queue_id): o.offset for o in offsets}

    async def _starts(
        self, queues: set[MessageQueue], committed: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Where to begin with each queue: at what was committed, else where the group is to begin."""
        starts = {queue: committed[queue] for queue in sorted(queues) if queue in committed}
        for queue in sorted(queues - set(starts)):
            starts[queue] = await self._first_start(queue)
        return starts

    async def _first_start(self, queue: MessageQueue) -> int:
        timeout, start = self._config.call_timeout, self._config.start
        if isinstance(start, int):
            return await self._ask(
                lambda client: client.offset_by_time(queue.topic, queue.queue_id, start, timeout)
            )
        stats = await self._ask(lambda client: client.topic_stats(queue.topic, timeout))
        found = next((of_queue for of_queue in stats if of_queue.queue_id == queue.queue_id), None)
        if found is None:  # the topic was made anew in the meantime, with fewer queues
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"topic {queue.topic!r} has no queue {queue.queue_id}")
        return found.max_offset if start == "latest" else found.min_offset

    # -- committing

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._config.commit_interval)
            await self._try_to_commit()

    async def _try_to_commit(self) -> None:
        """If not now, the next time: whatever a broker answers, it ends neither commits nor membership."""
        try:
            await self.commit()
        except REPEATABLE:
            pass
        except BrokerError as error:
            _log.warning("commit of group %s: %s", self._config.group, error)

    async def _ask(self, ask: Callable[[BrokerClient], Awaitable[T]]) -> T:
        return await self._directory.on_master(
            self._broker, self._topics[0], ask, 2 * self._config.call_timeout
        )


def _is_ours(feed: QueueFeed, committed: int | None) -> bool:
    """Whether the group's offset is one of this feed's: then it goes on. A reset gives it another."""
    return committed in (feed.acknowledged, feed.attempted)
