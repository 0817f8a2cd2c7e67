"""Topics that accept messages: automatic creation, and checks of queues at append time.

The metadata state reflects the applied commands, but the log may already contain further commands. Suppose
that a message is appended after the deletion of its topic, but before that deletion is applied. The message
would be acknowledged but could never be read. Every append therefore checks its queue with `TopicGate`, in
the same step in which the log accepts the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from broker_adapter.api import (
    DEFAULT_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DefaultTopic,
    TopicConfig,
)
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata import records
from broker_adapter.metadata.commands import Command, DeleteTopic, PutTopic, check_user_topic
from broker_adapter.metadata.creation_limits import CreationLimits
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome
from broker_adapter.wire.topic_names import RETRY_PREFIX, UNSENDABLE_TOPICS
from dledger.infra.quotas import client_of

Create = Callable[[], Awaitable[TopicConfig]]


class _PendingTopic:
    """A topic that is being created. `error`: error of the failed creation."""

    __slots__ = ("error", "lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # grants waiters the lock in FIFO order
        self.users = 0
        self.error: BrokerError | None = None


class CreationQueue:
    """Serializes the creations of each topic.

    Users of a topic wait for its creation in order of arrival, so that their messages are stored in that
    order.

    `known` returns an existing topic. Runs on the event loop.
    """

    def __init__(self, known: Callable[[str], TopicConfig | None]) -> None:
        self._known = known
        self._pending: dict[str, _PendingTopic] = {}

    def existing(self, topic: str) -> TopicConfig | None:
        """Return the topic if it exists and nobody waits for its creation any more."""
        return None if topic in self._pending else self._known(topic)

    async def topic(self, topic: str, create: Create) -> TopicConfig:
        """Return the topic.

        If it does not exist, call `create`. All waiters receive the error that `create` raises.
        """
        pending = self._pending.get(topic)
        if pending is None:
            if (config := self._known(topic)) is not None:
                return config
            pending = self._pending[topic] = _PendingTopic()
        pending.users += 1
        try:
            async with pending.lock:
                if (config := self._known(topic)) is not None:
                    return config
                if pending.error is not None:
                    raise pending.error
                try:
                    return await create()
                except BrokerError as error:
                    pending.error = error
                    raise
        finally:
            pending.users -= 1
            if not pending.users:
                del self._pending[topic]


class CreationSettings(Protocol):
    """Settings of automatic creation, implemented by `broker_adapter.config.settings.BrokerSettings`.

    With `auto_create_topics`, the first use of a topic creates it with `default_queues` queues, if there are
    fewer than `auto_create_up_to` topics and the client has created fewer than `auto_create_per_client`.
    """

    @property
    def auto_create_topics(self) -> bool: ...

    @property
    def default_queues(self) -> int: ...

    @property
    def auto_create_up_to(self) -> int: ...

    @property
    def auto_create_per_client(self) -> int: ...


class TopicCreation:
    """Creates topics on their first use. Runs on the master's event loop."""

    def __init__(
        self,
        metadata: MetadataState,
        propose: Callable[[Command], Awaitable[CommandOutcome]],
        check_master: Callable[[], object],
        settings: CreationSettings,
        used: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`used` is called with each topic whose route a client requests."""
        self._metadata = metadata
        self._propose = propose
        self._check_master = check_master
        self._settings = settings
        self._used = used
        self._queue = CreationQueue(metadata.topic)
        self._limits = CreationLimits(
            "topics", Status.TOO_MANY_TOPICS, settings.auto_create_up_to, settings.auto_create_per_client
        )

    async def ensure(
        self,
        topic: str,
        remote: str,
        like: DefaultTopic = DefaultTopic(),  # noqa: B008 - immutable
    ) -> TopicConfig:
        """Return the topic. If it does not exist, create it for the client at `remote` (host:port) if the
        settings permit.

        Raises TopicRefused (TOPIC_UNKNOWN, TOPIC_RESERVED), IllegalMessage, NotMaster, Busy, and the errors
        of a proposal.
        """
        self._check_master()
        return await self._queue.topic(topic, partial(self._create, topic, remote, like))

    def existing(self, topic: str) -> TopicConfig | None:
        """Return the topic, or None if a send to it must wait for `ensure`. Raises NotMaster."""
        self._check_master()
        return self._queue.existing(topic)

    def or_default(self, name: str) -> TopicConfig:
        """Return the topic, or the config with which it would be created automatically. Does not create the
        topic.

        Raises TopicRefused, IllegalMessage or NotMaster.
        """
        self._check_master()
        config = self._metadata.topic(name)
        if config is not None:
            self._used(name)
        return config or self._default(name, DefaultTopic())

    async def make(self, topic: str) -> TopicConfig:
        """Create one of the broker's own topics if it does not exist.

        A retry topic has the number of queues that its group specifies; other topics have one queue.
        """
        name = topic.removeprefix(RETRY_PREFIX)
        group = None if name == topic else self._metadata.group(name)
        queues = 1 if group is None else max(1, group.config.retry_queues)
        config = TopicConfig(topic, read_queues=queues, write_queues=queues, auto_created=True)
        return await self._queue.topic(topic, partial(self._put, config))

    async def _create(self, topic: str, remote: str, like: DefaultTopic) -> TopicConfig:
        config, topics = self._default(topic, like), self._metadata.topics
        now_s = asyncio.get_running_loop().time()
        self._limits.count_creation(client_of(remote), topic, topics, len(topics), now_s)
        return await self._put(config)

    def _default(self, topic: str, like: DefaultTopic) -> TopicConfig:
        """Return the config of an automatically created topic.

        Raises an error if the topic may not be created.
        """
        check_user_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise error_for(Status.TOPIC_RESERVED, f"topic {topic} accepts no messages from clients")
        if not self._settings.auto_create_topics:
            text = f"there is no topic {topic}; create it first (auto_create_topics is off)"
            raise error_for(Status.TOPIC_UNKNOWN, text)
        queues, perm = self._settings.default_queues, PERM_READ | PERM_WRITE
        if like.name != DEFAULT_TOPIC:
            base = self._metadata.topic(like.name)
            if base is None or not base.perm & PERM_INHERIT:
                text = f"there is no topic {topic}, and {like.name[:255]!r} may not serve as its template"
                raise error_for(Status.TOPIC_UNKNOWN, text)
            queues, perm = base.write_queues, base.perm & ~PERM_INHERIT
        if like.queues > 0:
            queues = min(queues, like.queues)
        return TopicConfig(topic, read_queues=queues, write_queues=queues, perm=perm, auto_created=True)

    async def _put(self, config: TopicConfig) -> TopicConfig:
        (await self._propose(PutTopic(config, create_only=True))).check()
        if (created := self._metadata.topic(config.name)) is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {config.name[:255]!r}")
        return created


class _QueueCounts(NamedTuple):
    """Queue counts of a topic, both 0 if the topic does not exist.

    `total` includes read-only queues, because a producer with an outdated route may still send to them while
    an administrator shrinks the topic.
    """

    writable: int
    total: int


class _QueueChange(NamedTuple):
    """A change to a topic's queues by the command at index `at`. After a deletion, both counts are 0."""

    at: int
    queues: _QueueCounts


_NO_QUEUES = _QueueCounts(0, 0)


class TopicGate:
    """Ensures that the log accepts only messages that consumers can read. Runs on the event loop.

    Implements `broker_adapter.put.message_writer.TopicCheck`.
    """

    def __init__(
        self, metadata: MetadataState, use: LastUse | None = None, own: Collection[str] = ()
    ) -> None:
        """`use` records each append. `own`: topics that only the broker writes, and that clients cannot
        create or delete.
        """
        self._own = own
        self._metadata = metadata
        self._use = use
        self._changes: dict[str, list[_QueueChange]] = {}  # appended, not yet known to be applied
        self._closed_from: dict[str, int] = {}

    def start_leadership(self) -> None:
        """Start a term as leader. Call this only after all entries in the log have been applied."""
        self._changes.clear()

    def appending(self, body: bytes) -> Callable[[int], None] | None:
        """Check a command before it is appended.

        Returns a function to call with the index of the command once the log has accepted it, or None if the
        command does not change a topic's queues. Raises TopicRefused (TOPIC_RESERVED).
        """
        try:
            command = records.decode(body).command if records.is_of_topic(body) else None
        except StoredDataDamaged:
            return None
        match command:
            case DeleteTopic(topic=name) | PutTopic(config=TopicConfig(name=name)) if name in self._own:
                raise error_for(Status.TOPIC_RESERVED, f"topic {name!r} is reserved for the broker")
            case DeleteTopic(topic=name):
                return lambda index: self._note(name, _QueueChange(index, _NO_QUEUES))
            case PutTopic(config=config, create_only=False):
                return lambda index: self._note(config.name, _QueueChange(index, _queues_of(config)))
        return None

    @contextmanager
    def closing(self, topic: str, first: int) -> Iterator[None]:
        """Refuse messages for queue `first` and all higher queues while an administrator removes them. At
        most one call per topic may be active.
        """
        self._closed_from[topic] = first
        try:
            yield
        finally:
            del self._closed_from[topic]

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        """Return an error if a message appended now could not be read by consumers, or None to accept it."""
        if topic in self._own:
            return None
        if self._use is not None:
            self._use.touch(topic)
        queues = self._queues(topic)
        if queue_id < queues.total:
            return None
        count = queues.writable
        problem = f"has {count} writable queues" if count else "is deleted or being deleted"
        text = f"topic {topic} {problem}: nothing was stored in queue {queue_id}; send again"
        return error_for(Status.TOPIC_CHANGED, text)

    def fitting_queue(self, topic: str, queue_id: int) -> int:
        """Return `queue_id`, or another queue if the topic has fewer queues or is being shrunk.

        The topic may have changed, because a message may have waited for a long time.
        """
        queues = self._queues(topic)
        if queue_id < queues.total or not queues.writable:
            return queue_id
        return queue_id % queues.writable

    def _queues(self, topic: str) -> _QueueCounts:
        """Count the queues that exist now and still exist after every entry of the log has been applied."""
        # Forget applied changes first, so that the state read afterwards includes them.
        changes = self._pending(topic) if topic in self._changes else ()
        config = self._metadata.topic(topic)
        counts = [
            _NO_QUEUES if config is None else _queues_of(config),
            *(change.queues for change in changes),
        ]
        if (first := self._closed_from.get(topic)) is not None:
            counts.append(_QueueCounts(first, first))
        if len(counts) == 1:
            return counts[0]
        return _QueueCounts(min(count.writable for count in counts), min(count.total for count in counts))

    def _note(self, topic: str, change: _QueueChange) -> None:
        for other in list(self._changes):
            self._pending(other)  # forget applied changes; deleted topics are never looked up again
        self._changes.setdefault(topic, []).append(change)

    def _pending(self, topic: str) -> list[_QueueChange]:
        applied = self._metadata.applied_index
        remaining = [change for change in self._changes[topic] if change.at > applied]
        if remaining:
            self._changes[topic] = remaining
        else:
            del self._changes[topic]
        return remaining


def _queues_of(config: TopicConfig) -> _QueueCounts:
    return _QueueCounts(config.write_queues, max(config.read_queues, config.write_queues))
