"""Connections, routes and broker calls shared by producers, consumers and admin (MQClientInstance)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from broker_adapter.client.core import requests
from broker_adapter.client.core.checks import check_type
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import TopicRoute, parse_clusters, parse_route, parse_topic_list
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    Busy,
    NameServerUnavailable,
    PutRefused,
    ReadFailed,
    ResponseCode,
    Status,
    TopicRefused,
    error_for,
)
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.signing import sign
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.unique_keys import UniqueKeys
from dledger.infra.addresses import is_address
from dledger.infra.port_kinds import PortHints, PortKind
from dledger.infra.quotas import FairQueue


def now_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


class ClientInstance:
    """Connections, routes and background tasks of one client.

    Call `start` once and `close` once, on one event loop.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        check_type("options", self.options, ClientOptions)
        self.dispatch = Dispatch()
        self.connections = Connections(self.options, self.dispatch, tls)
        self.name_servers = NameServers(
            name_servers, self.connections, self.options, PortHints(PortKind.NAME_SERVER, lambda: tls)
        )
        self.routes = RouteCache(self.name_servers, self.options)
        self.keys = UniqueKeys(now_ms)
        #: Identifies a member of a group, so each client needs a different id.
        self.client_id = f"{os.getpid()}@{secrets.token_hex(6)}"
        self._tasks: list[asyncio.Task[None]] = []
        self.dispatch.register([RequestCode.ROUTES_CHANGED], self._routes_changed, Executor("routes", 8, 64))

    def start(self) -> None:
        """Start to refresh routes."""
        self.run(self.routes.run())
        self.run(self.routes.follow())

    async def _routes_changed(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        self.routes.changed(parse_topic_list(request.body))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until it ends or the client is closed."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop_tasks(self) -> None:
        """Cancel background tasks. Calls remain possible."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel background tasks and disconnect. May be called again."""
        await self.stop_tasks()
        await self.routes.close()
        await self.connections.close()

    async def master_of(self, topic: str, broker_name: str) -> str:
        """Return the address of the master.

        Raises TopicRefused (QUEUE_UNKNOWN) if the route has no master, even after a refresh.
        """
        address = (await self.routes.get(topic)).master(broker_name)
        if address is None:
            address = (await self.routes.renewed(topic)).master(broker_name)
        if address is None:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"{topic}: no master of broker {broker_name} is known")
        return address

    async def reader_of(self, topic: str, broker_name: str) -> str:
        """Return the master's address, or a slave's if no master is known.

        Raises the errors of `master_of`.
        """
        try:
            return await self.master_of(topic, broker_name)
        except TopicRefused as error:
            slave = (await self.routes.get(topic)).reader(broker_name, MASTER_ID + 1)
            if error.status is not Status.QUEUE_UNKNOWN or slave is None:
                raise
            return slave

    async def call(
        self, address: str, request: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Send a request and return its successful response.

        Raises BrokerError for an error response, and AnswerMissing (ANSWER_MISSING) if there is no response.
        """
        answer = await self.connections.invoke(address, request, timeout_s or self.options.request_timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, f"{address}: request {request.code}")
        return answer

    async def call_name_server(self, request: RemotingCommand) -> RemotingCommand:
        """Like `call`, but sends the request to NameServers in turn until one responds."""
        answer = await self.name_servers.invoke(request)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, f"NameServer: request {request.code}")
        return answer


def is_absent(error: Exception) -> bool:
    """Return True if the error means that the requested object does not exist."""
    return isinstance(error, ReadFailed) and error.status is Status.MESSAGE_NOT_FOUND


class RemotingClient:
    """The base class of clients. Use `async with`, or `start` and `close`."""

    _client: ClientInstance

    async def start(self) -> None:
        """Start refreshing routes. Connections are opened on demand."""
        self._client.start()

    async def close(self) -> None:
        """Disconnect. Calls in progress fail. The outcome of requests that were already sent is unknown."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            with suppress(BrokerError):
                await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_log = logging.getLogger(__name__)

#: After a failure, a route is refreshed immediately, but not more than once in this time (seconds).
_MIN_AGE_S = 0.5
#: Minimum interval between refreshes of routes that a NameServer has reported as changed, and the interval
#: while no NameServer responds (seconds).
_NOTICE_S, _NOTICE_RETRY_S = 0.2, 1.0


class NameServers:
    """Sends requests to one NameServer until that one fails, and then to the next one."""

    def __init__(
        self,
        addresses: Sequence[str] | str,
        connections: Connections,
        options: ClientOptions,
        hints: PortHints,
    ) -> None:
        """`addresses`: host:port each, or one string with `;` as separator, as in RocketMQ's settings."""
        given = addresses.split(";") if isinstance(addresses, str) else addresses
        self.addresses = [one.strip() for one in given if one.strip()]
        if not self.addresses:
            raise ValueError("a client needs at least one NameServer address")
        for one in self.addresses:
            if not is_address(one):
                raise ValueError(f"{one!r} is not an address of the form host:port; separate several by `;`")
        self._connections = connections
        self._options = options
        self._hints = hints
        self._current = 0

    async def invoke(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request and return the first response.

        Raises NameServerUnavailable (NAMESRV_UNREACHABLE).
        """
        problems = {}
        for _ in self.addresses:
            address = self.addresses[self._current % len(self.addresses)]
            try:
                answer = await self._connections.invoke(address, request, self._options.request_timeout)
            except (PutRefused, AnswerMissing) as error:
                problems[address] = error.message
            else:
                is_unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if not (is_unknown and (hint := await self._hints.hint(address))):
                    return answer
                problems[address] = hint
            self._current += 1
        hints = await asyncio.gather(*map(self._hints.hint, problems))
        texts = (hint or text for hint, text in zip(hints, problems.values(), strict=True))
        raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, "; ".join(texts))


class RouteCache:
    """A cache of routes, for one event loop. `run` and `follow` refresh it until they are canceled."""

    def __init__(self, name_servers: NameServers, options: ClientOptions) -> None:
        self._name_servers = name_servers
        self._options = options
        # with the time of its refresh; least recently used first
        self._routes: dict[str, tuple[TopicRoute, float]] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._is_closed = False
        self._stale: dict[str, None] = {}  # changed routes
        self._noticed = asyncio.Event()
        self.min_age_s = _MIN_AGE_S
        #: Called with a topic whose route has changed.
        self.on_change: Callable[[str], None] = lambda topic: None

    @property
    def known(self) -> dict[str, TopicRoute]:
        return {topic: route for topic, (route, _) in self._routes.items()}

    async def get(self, topic: str) -> TopicRoute:
        """Return the route from the cache, or fetch it. Raises TopicRefused (TOPIC_UNKNOWN) or
        NameServerUnavailable (NAMESRV_UNREACHABLE).
        """
        kept = self._routes.pop(topic, None)
        if kept is None:
            return await self.refresh(topic)
        self._routes[topic] = kept
        return kept[0]

    async def renewed(self, topic: str) -> TopicRoute:
        """Return the route to use after a failed call.

        Refreshes the route, unless it has just been refreshed. Returns the old route if no NameServer
        responds.
        """
        kept = self._routes.get(topic)
        if kept is not None and asyncio.get_running_loop().time() - kept[1] < self.min_age_s:
            # Otherwise programs that retry immediately would starve the event loop, which also reads their
            # responses.
            await asyncio.sleep(0)
            return kept[0]
        try:
            return await self.refresh(topic)
        except NameServerUnavailable:
            if kept is None:
                raise
            return kept[0]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_name_server_s)
            for topic in list(self._routes):
                try:
                    await self.refresh(topic)
                except BrokerError as error:
                    _log.info("a route was not refreshed: topic %s, %s", topic, error)

    def changed(self, topics: Iterable[str]) -> None:
        """Mark routes as changed after a notice from a NameServer. `follow` refreshes those in the cache."""
        self._stale.update(dict.fromkeys(topic for topic in topics if topic in self._routes))
        if self._stale:
            self._noticed.set()

    async def follow(self) -> None:
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            stale, self._stale = self._stale, {}
            remaining = [topic for topic in stale if not await self._is_renewed(topic)]
            await asyncio.sleep(_NOTICE_RETRY_S if remaining else _NOTICE_S)
            self.changed(remaining)

    async def _is_renewed(self, topic: str) -> bool:
        """Refresh a changed route.

        Return False if this failed and the caller should try again, for example because no NameServer
        responded.
        """
        try:
            await self.refresh(topic)
        except TopicRefused:
            return True  # no longer in the cache
        except BrokerError as error:
            _log.info("a changed route was not refreshed: topic %s, %s", topic, error)
            return False
        return True

    async def close(self) -> None:
        """Cancel requests for routes. Calls that wait for one raise NameServerUnavailable."""
        self._is_closed = True
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)

    async def refresh(self, topic: str) -> TopicRoute:
        """Fetch the route from a NameServer, with at most one request in flight per topic.

        Raises the errors of `get`.
        """
        fetching = self._fetching.get(topic)
        if fetching is None or fetching.done():
            fetching = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._fetching[topic] = fetching
            fetching.add_done_callback(lambda _: self._forget(topic, fetching))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            if self._is_closed and fetching.cancelled():
                raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, "the client is closed") from None
            raise

    def _forget(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        if self._fetching.get(topic) is task:
            del self._fetching[topic]
        _ = task.cancelled() or task.exception()  # the caller may have been cancelled

    async def _fetch(self, topic: str) -> TopicRoute:
        answer = await self._name_servers.invoke(requests.route_of(topic))
        if answer.code != ResponseCode.SUCCESS:
            error = error_of(answer, f"route of {topic}")
            if isinstance(error, TopicRefused):
                self._routes.pop(topic, None)
                if not await self._has_brokers():
                    text = f"{error.message}: no broker is registered with the NameServer"
                    raise error_for(error.status, text)
            raise error
        route = parse_route(answer.body)
        before = self._routes.pop(topic, None)
        while len(self._routes) >= self._options.max_topics:
            self._routes.pop(next(iter(self._routes)))
        self._routes[topic] = route, asyncio.get_running_loop().time()
        if before is not None and before[0] != route:
            self.on_change(topic)
        return route

    async def _has_brokers(self) -> bool:
        answer = await self._name_servers.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return answer.code != ResponseCode.SUCCESS or any(parse_clusters(answer.body).values())


class Connections:
    """Connections by address, opened on demand and reopened after they end. For one event loop."""

    def __init__(self, options: ClientOptions, dispatch: Dispatch, tls: ssl.SSLContext | None) -> None:
        self._options = options
        self._dispatch = dispatch
        self._tls = tls
        self._open: dict[str, RemotingConnection] = {}  # least recently used first
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._in_flight = asyncio.Semaphore(options.max_in_flight)
        self._bytes = FairQueue(options.max_in_flight_bytes)
        self._is_closed = False

    async def invoke(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Return the response, whatever its code. Waits while too many requests are in flight.

        If nothing was sent, raises PutRefused (NOT_CONNECTED), or Busy (TOO_MANY_CALLS) if too many requests
        were in flight until the timeout. Raises AnswerMissing (ANSWER_MISSING) if the request was sent but no
        response arrived in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        size = len(request.body)
        try:
            async with asyncio.timeout_at(deadline):
                await self._in_flight.acquire()
                try:
                    await self._bytes.acquire(size=size)
                except BaseException:
                    self._in_flight.release()
                    raise
        except TimeoutError:
            raise Busy(
                Status.TOO_MANY_CALLS,
                f"{address}: too many requests were in flight for {timeout_s:g} s; nothing was sent",
            ) from None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.get(address)
            except TimeoutError:
                text = f"{address}: not connected within {timeout_s:g} s"
                raise PutRefused(Status.NOT_CONNECTED, text) from None
            left = deadline - asyncio.get_running_loop().time()
            return await connection.invoke(self._signed(request), left)
        finally:
            self._in_flight.release()
            self._bytes.release(size=size)

    async def invoke_long(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Like `invoke`, for requests that brokers hold, such as pulls.

        These requests do not count as in flight, because they would block all others. The caller must limit
        their number.
        """
        return await (await self.get(address)).invoke(self._signed(request), timeout_s)

    async def notify(self, address: str, request: RemotingCommand) -> None:
        """Send a one-way request. Raises PutRefused (NOT_CONNECTED) or Busy (TOO_MANY_PENDING_BYTES)."""
        connection = await self.get(address)
        # Yield to the event loop. Otherwise it could not transmit the requests of a program that only sends
        # one-way requests.
        await asyncio.sleep(0)
        if connection.unsent_bytes > self._options.max_in_flight_bytes // 2:
            raise Busy(Status.TOO_MANY_PENDING_BYTES, f"{address}: the server does not read its requests")
        connection.notify(self._signed(request))

    async def get(self, address: str) -> RemotingConnection:
        """Return an open connection. Raises PutRefused (NOT_CONNECTED) if it cannot be opened in time."""
        connection = self._open.pop(address, None)
        if connection is not None and not connection.is_closed:
            self._open[address] = connection
            return connection
        if self._is_closed:
            await asyncio.sleep(0)  # the program may retry immediately
            raise PutRefused(Status.NOT_CONNECTED, "the client is closed")
        opening = self._opening.get(address)
        if opening is None or opening.done():
            opening = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda _: self._forget(address, opening))
        try:
            return await asyncio.shield(opening)  # other callers may wait for the same connection
        except AnswerMissing as error:
            raise PutRefused(Status.NOT_CONNECTED, error.message) from None
        except asyncio.CancelledError:
            if self._is_closed and opening.cancelled():
                raise PutRefused(Status.NOT_CONNECTED, "the client is closed") from None
            raise

    def _forget(self, address: str, opened: asyncio.Task[RemotingConnection]) -> None:
        if self._opening.get(address) is opened:
            del self._opening[address]
        _ = opened.cancelled() or opened.exception()  # the caller may have been cancelled

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in list(self._open.values()):
            connection.close("the client is closed")
        await self._dispatch.stop()

    def _signed(self, request: RemotingCommand) -> RemotingCommand:
        if self._options.credentials is not None:
            sign(request, self._options.credentials)
        return request

    async def _connect(self, address: str) -> RemotingConnection:
        connection = await connect(
            address, timeout_s=self._options.connect_timeout, dispatch=self._dispatch, tls=self._tls
        )
        try:
            self._evict_idle()
        except AnswerMissing:
            connection.close("too many connections")
            raise
        self._open[address] = connection
        return connection

    def _evict_idle(self) -> None:
        """Close the least recently used idle connection, so that a new one can be opened.

        Raises AnswerMissing (ANSWER_MISSING) if all connections are in use.
        """
        self._open = {address: one for address, one in self._open.items() if not one.is_closed}
        for address, one in list(self._open.items()):
            if len(self._open) < self._options.max_connections:
                return
            if one.is_idle:
                self._open.pop(address).close("least recently used")
        if len(self._open) >= self._options.max_connections:
            raise AnswerMissing(
                Status.ANSWER_MISSING, f"all {len(self._open)} connections of the client are in use"
            )
