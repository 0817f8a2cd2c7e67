"""One NameServer without its network: tables, watchers, settings, what has happened. One event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor as ThreadExecutor
from typing import Any, NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, Status, TopicRefused
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.namesrv.admission import CallExecutor
from broker_adapter.namesrv.kv_config import KvConfig
from broker_adapter.namesrv.tables import NO_SESSION, NodeKey, RouteTables
from broker_adapter.namesrv.values import (
    BrokerEntry,
    Registration,
    RegistrationAnswer,
    Route,
    TableLimits,
)
from broker_adapter.namesrv.watching import RouteNotices, Watcher, Watchers
from dledger.platform import SharedPlaces, get_logger

_log = get_logger("namesrv")

_KEPT_EVENTS = 100


class ServerLimits(NamedTuple):
    """Past these: NAMESRV_BUSY (calls) or NAMESRV_LIMIT (streams)."""

    max_sessions: int = 1024
    max_watchers: int = 1024
    max_watched_topics: int = 1024  # by one watcher that names them
    max_waiting_registrations: int = 1024
    max_waiting_routes: int = 4096
    max_waiting_config: int = 64


class Event(NamedTuple):
    """Something that an operator may want to know of."""

    unix_ms: int
    what: str  # registered, role-changed, un-registered, connection-lost, expired, refused
    broker_name: str
    node_id: str
    text: str


class NameServer:
    """What a NameServer does, for whoever serves it."""

    def __init__(
        self,
        kv: KvConfig,
        threads: ThreadExecutor,
        *,
        now_ms: Callable[[], int],
        unix_ms: Callable[[], int],
        table_limits: TableLimits | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """`now_ms` is monotonic. Settings are written on `threads`."""
        self.limits = limits or ServerLimits()
        self.tables = RouteTables(table_limits)
        self.kv = kv
        self.limits_hit: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # of events, by what happened
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self.sessions: dict[int, str] = {}  # and whose share the place of each is
        self._session_places = SharedPlaces(
            self.limits.max_sessions,
            "streams of registrations are open",
            "end those of programs that are no brokers, or raise limits.max_sessions",
        )
        self.watchers = Watchers(self.limits.max_watchers)
        self._threads = threads
        self._now_ms, self._unix_ms = now_ms, unix_ms
        self._session_ids = itertools.count(NO_SESSION + 1)
        self._kv_write = asyncio.Lock()
        # A broker with 20,000 topics takes tenths of a second to be read, checked and entered.
        self.registrations = self._executor(
            "registration", 4, self.limits.max_waiting_registrations, is_expensive=True
        )
        self.routes = self._executor("route", 8, self.limits.max_waiting_routes)
        self.config = self._executor("config", 4, self.limits.max_waiting_config)

    def _executor(self, name: str, running: int, waiting: int, *, is_expensive: bool = False) -> CallExecutor:
        return CallExecutor(
            name, running=running, waiting=waiting, on_refused=self.limit_hit, is_expensive=is_expensive
        )

    def limit_hit(self, name: str) -> None:
        self.limits_hit[name] += 1

    # -- brokers ------------------------------------------------------------------------------------------

    def open_session(self, client: str = "") -> int:
        """A number for a stream of registrations, from an address. NameServerBusy (NAMESRV_LIMIT)."""
        if (refusal := self._session_places.refusal(client)) is not None:
            self.limit_hit("session")
            raise NameServerBusy(Status.NAMESRV_LIMIT, refusal)
        self._session_places.take(client)
        session = next(self._session_ids)
        self.sessions[session] = client
        return session

    def close_session(self, session: int, key: NodeKey | None) -> None:
        """The stream of a node has ended."""
        if (client := self.sessions.pop(session, None)) is not None:
            self._session_places.give_back(client)
        if key is None:
            return
        changed = self.tables.end_session(session, key, self._now_ms())
        if changed is not None:
            self._happened("connection-lost", key, "un-registered, as its connection has ended")
            self._tell(changed)

    def register(
        self, given: Registration, session: int = NO_SESSION, origin: str = ""
    ) -> RegistrationAnswer:
        """`origin`: the address that it came from. Errors as RouteTables.register."""
        key = (given.broker_name, given.node_id)
        before = self.tables.entry(key, self._now_ms())
        try:
            changed = self.tables.register(given, self._now_ms(), session, origin)
        except BrokerError as error:
            if error.status is Status.NAMESRV_INVALID:
                self.counts["refused"] += 1  # who sends nonsense has no name to be remembered by
            else:
                self._happened("refused", key, str(error))
            raise
        self.counts["accepted"] += 1
        if before is None:
            self._happened(
                "registered", key, f"as id {given.broker_id} at {given.address}, term {given.term}"
            )
        elif (before.broker_id, before.address) != (given.broker_id, given.address):
            self._happened("role-changed", key, f"id {given.broker_id} at {given.address}, term {given.term}")
        self._tell(changed)
        return self.tables.answer(given.broker_name)

    def unregister(self, broker_name: str, node_id: str, role_epoch: int) -> None:
        """Errors as RouteTables.unregister."""
        changed = self.tables.unregister(broker_name, node_id, role_epoch, self._now_ms())
        self._happened("un-registered", (broker_name, node_id), "on request")
        self._tell(changed)

    def renew(self, broker_name: str, node_id: str) -> bool:
        """It lives, and has nothing new to say. False: it is not registered."""
        return self.tables.renew((broker_name, node_id), self._now_ms())

    def drop_topic(self, topic: str) -> None:
        """Until a broker registers with it again."""
        self._tell(self.tables.drop_topic(topic))

    def scan(self) -> None:
        """Forget brokers that have not registered in time."""
        late, changed = self.tables.expire(self._now_ms())
        for key in late:
            self._happened("expired", key, "it has not registered in time")
        self._tell(changed)

    def wipe_write_permission(self, broker_name: str, *, give_back: bool) -> int:
        """How many topics are concerned. NameServerRefused (NAMESRV_BROKER_UNKNOWN)."""
        changed = self.tables.wipe_write_permission(broker_name, give_back=give_back)
        self._tell(changed)
        return len(changed)

    def entry(self, key: NodeKey) -> BrokerEntry | None:
        """One row of the brokerLiveTable."""
        return self.tables.entry(key, self._now_ms())

    def brokers(self) -> list[BrokerEntry]:
        return self.tables.brokers(self._now_ms())

    def _tell(self, topics: Collection[str]) -> None:
        if topics:
            self.watchers.mark(topics)

    def _happened(self, what: str, key: NodeKey, text: str) -> None:
        name, node_id = key
        self.counts[what] += 1
        self.events.append(Event(self._unix_ms(), what, name, node_id, text))
        write = _log.info if what in ("registered", "role-changed", "un-registered") else _log.warning
        write(what, broker=name, node=node_id, detail=text)

    # -- routes -------------------------------------------------------------------------------------------

    def route(self, topic: str) -> Route:
        """IllegalMessage (no name of a topic); TopicRefused (TOPIC_UNKNOWN)."""
        check_topic_name(topic)
        route = self.tables.route(topic)
        if not route.queues:
            raise TopicRefused(Status.TOPIC_UNKNOWN, f"no registered broker has topic {topic}")
        return route

    def watch(self, topics: Collection[str], client: str = "") -> Watcher:
        """Of these topics, or of all if none is named, for a client at an address. IllegalMessage;
        NameServerBusy (NAMESRV_LIMIT)."""
        if len(topics) > self.limits.max_watched_topics:
            raise NameServerBusy(
                Status.NAMESRV_LIMIT,
                f"{len(topics)} topics; one watcher may name {self.limits.max_watched_topics}, or none: all",
            )
        for topic in topics:
            check_topic_name(topic)
        try:
            return self.watchers.add(topics or None, self.tables.topics(), client)
        except NameServerBusy:
            self.limit_hit("watcher")
            raise

    def notify(self, tell: Callable[[Collection[str]], None], client: str) -> RouteNotices | None:
        """Who calls `tell` when routes change that are asked for from now on. None: there are too many."""
        notices = RouteNotices(self.limits.max_watched_topics, tell)
        try:
            self.watchers.admit(notices, client)
        except NameServerBusy:
            self.limit_hit("watcher")
            return None
        return notices

    def topic_rows(self, most: int) -> dict[str, dict[str, TopicConfig]]:
        """topic -> broker name -> queues, as routes show them; the first ones by name."""
        return {topic: dict(self.tables.route(topic).queues) for topic in self.tables.topics()[:most]}

    # -- settings -----------------------------------------------------------------------------------------

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Errors as KvConfig.put."""
        await self._write(self.kv.put, namespace, key, value)

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Errors as KvConfig.delete."""
        await self._write(self.kv.delete, namespace, key)

    async def _write(self, work: Callable[..., Any], *arguments: str) -> None:
        async with self._kv_write:
            # Shielded: who asked may hang up, and the next writer must still wait for this one to end.
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(self._threads, work, *arguments)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.gather(writing, return_exceptions=True)
                raise


def _who(given: Registration) -> str:
    return f"id {given.broker_id} at {given.address}, term {given.term}"
