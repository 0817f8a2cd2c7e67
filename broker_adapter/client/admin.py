"""Topics, groups, offsets and single messages, for operators' programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, QueueStats, TopicConfig
from broker_adapter.client.directory import Directory
from broker_adapter.client.routes import Route, StaticRoute
from broker_adapter.client.values import Message, message_of
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.rpc.broker_client import BrokerClient, NotConnected
from dledger import TlsFiles

T = TypeVar("T")

_LAST_MS = (1 << 63) - 1


class BrokerSource(Protocol):
    """Who knows which brokers there are: `StaticRoutes`."""

    async def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address; id 0 is the master."""


class _RouteOfAll:
    """The route of no topic, which shows all brokers."""

    def __init__(self, source: BrokerSource) -> None:
        self._source = source

    async def route(self, topic: str) -> StaticRoute:
        return StaticRoute(topic, {}, await self._source.brokers())

    async def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        """Nothing: calls of an operator find out themselves."""
        for topic in topics:
            yield await self.route(topic)


class Admin:
    """Asks the master of one broker name. Use it with `async with`, in one event loop.

    Args:
        routes: what knows the brokers.
        broker: the broker name; "": the only one.
        timeout: seconds until a call is given up. Calls are repeated through changes of the master, and while
            no broker is known.
        tls: PEM files for TLS, read again when they change; None: plain text.

    All calls raise the errors of `broker_adapter.errors`.
    """

    def __init__(
        self, routes: BrokerSource, *, broker: str = "", timeout: float = 10.0, tls: TlsFiles | None = None
    ) -> None:
        self._source = routes
        self._directory = Directory(_RouteOfAll(routes), tls)
        self._broker = broker
        self._timeout = timeout

    async def put_topic(self, config: TopicConfig) -> None:
        """Create a topic, or change its config."""
        await self._ask(lambda client: client.put_topic(config, self._timeout))

    async def delete_topic(self, name: str) -> None:
        await self._ask(lambda client: client.delete_topic(name, self._timeout))

    async def topics(self) -> list[TopicConfig]:
        return await self._ask(lambda client: client.topics(self._timeout))

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Least and greatest offset of every queue."""
        return await self._ask(lambda client: client.topic_stats(topic, self._timeout))

    async def put_group(self, config: GroupConfig) -> None:
        await self._ask(lambda client: client.put_group(config, self._timeout))

    async def delete_group(self, name: str) -> None:
        await self._ask(lambda client: client.delete_group(name, self._timeout))

    async def groups(self) -> list[GroupConfig]:
        return await self._ask(lambda client: client.groups(self._timeout))

    async def offsets(self, group: str) -> tuple[int, list[QueueOffset]]:
        """(generation, what the group has committed)."""
        return await self._ask(lambda client: client.offsets(group, self._timeout))

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        """Set offsets, backwards too. Members go on from there, under the new generation that is returned."""
        return await self._ask(lambda client: client.reset_offsets(group, offsets, self._timeout))

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the first message stored at this time or later; one behind the last without one."""
        return await self._ask(
            lambda client: client.offset_by_time(topic, queue_id, timestamp_ms, self._timeout)
        )

    async def message(self, offset_id: str) -> Message:
        """The message of an offset id. ReadFailed if there is none, IllegalMessage if it is no id."""
        offset = parse_offset_id(offset_id).physical_offset
        return message_of(await self._ask(lambda client: client.message_at(offset, self._timeout)))

    async def query(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = _LAST_MS, max_messages: int = 32
    ) -> list[Message]:
        """Messages with a key or unique key, stored between two times, the newest first."""
        records = await self._ask(
            lambda client: client.query(topic, key, begin_ms, end_ms, max_messages, self._timeout)
        )
        return [message_of(record) for record in records]

    async def close(self) -> None:
        await self._directory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, ask: Callable[[BrokerClient], Awaitable[T]]) -> T:
        if not self._broker:
            self._broker = await self._directory.repeated(self._only_broker, self._timeout, "brokers")
        return await self._directory.on_master(self._broker, "", ask, self._timeout)

    async def _only_broker(self) -> str:
        """Its name. A NameServer that has just started knows none yet: it is asked again, as if silent."""
        names = sorted(await self._source.brokers())
        if not names:
            raise NotConnected("no broker is known: none has registered, or all that had are gone")
        if len(names) > 1:
            raise IllegalMessage(
                Status.FIELD_OUT_OF_RANGE, f"there are several brokers ({', '.join(names)}): name one"
            )
        return names[0]
