"""A NameServer without its network: tables, watchers, settings and events. Runs on one event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor as ThreadExecutor
from typing import Any, NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, Status, TopicRefused
from broker_adapter.namesrv.kv_config import KvConfig
from broker_adapter.namesrv.tables import NO_SESSION, NodeKey, RouteTables
from broker_adapter.namesrv.values import (
    BrokerEntry,
    PublishedRoute,
    Registration,
    RegistrationAnswer,
    TableLimits,
)
from broker_adapter.namesrv.watching import RouteNotices, Watchers
from broker_adapter.remoting.executors import Executor
from broker_adapter.wire.topic_names import check_topic_name
from dledger.infra.logs import get_logger
from dledger.infra.quotas import Quota

_log = get_logger("namesrv")

_KEPT_EVENTS = 100


class NameServerLimits(NamedTuple):
    """Limits of a NameServer.

    Requests that exceed a limit fail with SYSTEM_BUSY, and sessions with NAMESRV_LIMIT. If a limit of watches
    is exceeded, a route is returned but not watched.
    """

    max_sessions: int = 1024
    max_watchers: int = 1024
    max_watched_topics: int = 1024  # per connection
    max_waiting_registrations: int = 1024
    max_waiting_routes: int = 4096
    max_waiting_config: int = 64


class NameServerEvent(NamedTuple):
    """An event for operators."""

    unix_ms: int
    what: str  # registered, role-changed, un-registered, connection-lost, expired, refused
    broker_name: str
    node_id: str
    text: str


class CountingExecutor(Executor):
    """An executor that reports each refusal to a callback."""

    def __init__(
        self,
        name: str,
        *,
        running: int,
        waiting: int,
        on_refused: Callable[[str], None],
        is_expensive: bool = False,
    ) -> None:
        super().__init__(name, running, waiting, is_expensive=is_expensive)
        self._on_refused = on_refused

    def count_refusal(self) -> None:
        super().count_refusal()
        self._on_refused(self.name)


class NameServer:
    """The operations of a NameServer, independent of its protocol."""

    def __init__(
        self,
        kv: KvConfig,
        threads: ThreadExecutor,
        *,
        now_ms: Callable[[], int],
        unix_ms: Callable[[], int],
        table_limits: TableLimits | None = None,
        limits: NameServerLimits | None = None,
    ) -> None:
        """`now_ms`: a monotonic clock. `threads`: executor on which settings are written."""
        self.limits = limits or NameServerLimits()
        self.tables = RouteTables(table_limits)
        self.kv = kv
        self.limits_hit: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # number of events by kind
        self.events: deque[NameServerEvent] = deque(maxlen=_KEPT_EVENTS)
        self.sessions: dict[int, str] = {}  # the address whose quota a session uses, by session
        self._session_places = Quota(
            self.limits.max_sessions,
            "nodes are registered under broker names",
            "stop programs that register without being brokers, or raise limits.max_sessions",
        )
        self.watchers = Watchers(self.limits.max_watchers)
        self._threads = threads
        self._now_ms, self._unix_ms = now_ms, unix_ms
        self._session_ids = itertools.count(NO_SESSION + 1)
        self._kv_write = asyncio.Lock()
        # The registration of a broker with 20,000 topics takes tenths of a second.
        self.registrations = self._executor(
            "registration", 4, self.limits.max_waiting_registrations, is_expensive=True
        )
        self.routes = self._executor("route", 8, self.limits.max_waiting_routes)
        self.config = self._executor("config", 4, self.limits.max_waiting_config)

    def _executor(
        self, name: str, running: int, waiting: int, *, is_expensive: bool = False
    ) -> CountingExecutor:
        return CountingExecutor(
            name, running=running, waiting=waiting, on_refused=self.limit_hit, is_expensive=is_expensive
        )

    def limit_hit(self, name: str) -> None:
        self.limits_hit[name] += 1

    # -- brokers ------------------------------------------------------------------------------------------

    def open_session(self, client: str = "") -> int:
        """Return a new session number, for the registrations of one node over one connection. `client`: the
        address whose quota the session uses.

        Raises NameServerBusy (NAMESRV_LIMIT).
        """
        if (refusal := self._session_places.refusal(client)) is not None:
            self.limit_hit("session")
            raise NameServerBusy(Status.NAMESRV_LIMIT, refusal)
        self._session_places.acquire(client)
        session = next(self._session_ids)
        self.sessions[session] = client
        return session

    def close_session(self, session: int, key: NodeKey | None) -> None:
        """Handle the end of a connection over which a node had registered."""
        if (client := self.sessions.pop(session, None)) is not None:
            self._session_places.release(client)
        if key is None:
            return
        changed = self.tables.end_session(session, key, self._now_ms())
        if changed is not None:
            self._happened("connection-lost", key, "un-registered because its connection ended")
            self._mark_changed(changed)

    def register(
        self, registration: Registration, session: int = NO_SESSION, origin: str = ""
    ) -> RegistrationAnswer:
        """Register a node. `origin`: the source address. Raises the errors of `RouteTables.register`."""
        key = (registration.broker_name, registration.node_id)
        before = self.tables.entry(key, self._now_ms())
        try:
            changed = self.tables.register(registration, self._now_ms(), session, origin)
        except BrokerError as error:
            if error.status is Status.NAMESRV_INVALID:
                self.counts["refused"] += 1  # malformed requests contain no reliable name
            else:
                self._happened("refused", key, str(error))
            raise
        self.counts["accepted"] += 1
        if before is None:
            self._happened(
                "registered",
                key,
                f"as id {registration.broker_id} at {registration.address}, term {registration.term}",
            )
        elif (before.broker_id, before.address) != (registration.broker_id, registration.address):
            self._happened(
                "role-changed",
                key,
                f"id {registration.broker_id} at {registration.address}, term {registration.term}",
            )
        self._mark_changed(changed)
        return self.tables.registration_answer(registration.broker_name)

    def unregister(self, broker_name: str, node_id: str, role_epoch: int) -> None:
        """Unregister a node. Raises the errors of `RouteTables.unregister`."""
        changed = self.tables.unregister(broker_name, node_id, role_epoch, self._now_ms())
        self._happened("un-registered", (broker_name, node_id), "on request")
        self._mark_changed(changed)

    def renew(self, broker_name: str, node_id: str) -> bool:
        """Renew a registration without changes. Return False if the node is not registered."""
        return self.tables.renew((broker_name, node_id), self._now_ms())

    def drop_topic(self, topic: str) -> None:
        """Drop the topic's routes until a broker registers with it again."""
        self._mark_changed(self.tables.drop_topic(topic))

    def scan(self) -> list[NodeKey]:
        """Remove expired nodes and return their keys."""
        late, changed = self.tables.expire(self._now_ms())
        for key in late:
            self._happened("expired", key, "its registration was not renewed in time")
        self._mark_changed(changed)
        return late

    def wipe_write_permission(self, broker_name: str, *, give_back: bool) -> int:
        """Wipe or restore the write permission of a broker. Return the number of affected topics.

        Raises NameServerRefused (NAMESRV_BROKER_UNKNOWN).
        """
        changed = self.tables.wipe_write_permission(broker_name, give_back=give_back)
        self._mark_changed(changed)
        return len(changed)

    def entry(self, key: NodeKey) -> BrokerEntry | None:
        """Return one row of the brokerLiveTable."""
        return self.tables.entry(key, self._now_ms())

    def brokers(self) -> list[BrokerEntry]:
        return self.tables.brokers(self._now_ms())

    def _mark_changed(self, topics: Collection[str]) -> None:
        if topics:
            self.watchers.mark(topics)

    def _happened(self, what: str, key: NodeKey, text: str) -> None:
        name, node_id = key
        self.counts[what] += 1
        self.events.append(NameServerEvent(self._unix_ms(), what, name, node_id, text))
        write = _log.info if what in ("registered", "role-changed", "un-registered") else _log.warning
        write(what, broker=name, node=node_id, detail=text)

    # -- routes -------------------------------------------------------------------------------------------

    def route(self, topic: str) -> PublishedRoute:
        """Return a topic's route.

        Raises IllegalMessage if the name is invalid, and TopicRefused (TOPIC_UNKNOWN).
        """
        check_topic_name(topic)
        route = self.tables.route(topic)
        if not route.queues:
            raise TopicRefused(Status.TOPIC_UNKNOWN, f"no registered broker has topic {topic}")
        return route

    def notify(self, on_change: Callable[[Collection[str]], None], client: str) -> RouteNotices | None:
        """Return a watcher that calls `on_change` when a watched route changes, or None if there are too many
        watchers.
        """
        notices = RouteNotices(self.limits.max_watched_topics, on_change)
        if not self.watchers.add(notices, client):
            self.limit_hit("watcher")
            return None
        return notices

    def topic_rows(self, limit: int) -> dict[str, dict[str, TopicConfig]]:
        """Return the queues in the routes of the first topics by name, by topic and broker name."""
        return {topic: dict(self.tables.route(topic).queues) for topic in self.tables.topics()[:limit]}

    # -- settings -----------------------------------------------------------------------------------------

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises the errors of `KvConfig.put`."""
        await self._write(self.kv.put, namespace, key, value)

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a value. Raises the errors of `KvConfig.delete`."""
        await self._write(self.kv.delete, namespace, key)

    async def _write(self, work: Callable[..., Any], *arguments: str) -> None:
        async with self._kv_write:
            # Shielded, because the caller may disconnect while the next writer must still wait for this
            # write.
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(self._threads, work, *arguments)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.gather(writing, return_exceptions=True)
                raise
