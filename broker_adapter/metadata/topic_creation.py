"""Topics that come into being by being used: one creation of each is under way, whoever asked first.

Whoever needs the topic meanwhile waits behind the others, in the order in which they came: what they send is
stored in that order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, Status, error_for

Create = Callable[[], Awaitable[TopicConfig]]


class _Coming:
    """A topic on its way. `error`: why it does not come."""

    __slots__ = ("error", "lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # its waiters get it in turn
        self.users = 0
        self.error: BrokerError | None = None


class TopicCreation:
    """`known` gives a topic that there is. On the event loop."""

    def __init__(self, known: Callable[[str], TopicConfig | None]) -> None:
        self._known = known
        self._coming: dict[str, _Coming] = {}

    async def topic(self, topic: str, create: Create) -> TopicConfig:
        """The topic; `create` makes it if it is not there. What that raises, all who wait get."""
        coming = self._coming.get(topic)
        if coming is None:
            if (found := self._known(topic)) is not None:
                return found
            coming = self._coming[topic] = _Coming()
        coming.users += 1
        try:
            async with coming.lock:
                if (found := self._known(topic)) is not None:
                    return found
                if coming.error is not None:
                    raise coming.error
                try:
                    return await create()
                except BrokerError as error:
                    coming.error = error
                    raise
        finally:
            coming.users -= 1
            if not coming.users:
                del self._coming[topic]


def check_writable(config: TopicConfig) -> TopicConfig:
    """The topic, to which messages may be sent. TopicRefused (TOPIC_NOT_WRITABLE)."""
    if not config.is_writable:
        text = f"topic {config.name} takes no messages (perm {config.perm})"
        raise error_for(Status.TOPIC_NOT_WRITABLE, text)
    return config
