"""Routes and masters as one client knows them, and its connections to brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, cast

import tenacity

from broker_adapter.client.routes import MASTER_ID, Route, RouteSource, StaticRoutes, names_with_master
from broker_adapter.errors import (
    BrokerError,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from broker_adapter.rpc.broker_client import BrokerClient, NoAnswer, NotConnected
from dledger import TlsFiles
from dledger.platform import ClientTls

T = TypeVar("T")

#: So many redirections without a success in between are a circle; then ask for the route.
_MAX_REDIRECTIONS = 2
#: Between attempts: at once to where a redirection points, then with pauses (seconds).
RETRY_PAUSE = tenacity.wait_chain(
    *[tenacity.wait_none()] * 2,
    *[tenacity.wait_random(0.01, 0.03)] * 10,
    tenacity.wait_random(0.05, 0.15),
)
_WATCH_AGAIN = 0.5
#: gRPC delivers the last events of cancelled calls from its own thread a moment later, in seconds.
_SETTLE = 0.01

#: What a master says that is none any more, or soon will be none.
_GONE = (Status.SHUTTING_DOWN, Status.NOT_CONFIRMED)

#: Errors after which a call that may be repeated is repeated.
REPEATABLE = (PutRefused, PutIndeterminate)


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row, for loops of their own."""
    return 0.0 if failures <= 1 else random.uniform(0.01, 0.03 if failures < 10 else 0.15)


def _is_worth_repeating(error: BaseException, repeat: tuple[type[BrokerError], ...]) -> bool:
    """A master that cannot confirm that it is one may have a successor already."""
    if isinstance(error, BrokerError) and error.status is Status.NOT_CONFIRMED:
        return True
    return isinstance(error, repeat)


class Directory:
    """Belongs to one event loop. `close` ends every call."""

    def __init__(self, source: RouteSource, tls: TlsFiles | None = None) -> None:
        self._source = source
        self._tls = tls
        self._security = None if tls is None else ClientTls(tls)
        self._clients: dict[str, BrokerClient] = {}
        self._routes: dict[str, Route] = {}
        self._masters: dict[str, str] = {}  # broker name -> address
        self._seen: dict[str, dict[int, str]] = {}  # broker name -> broker id -> who had it last
        self._redirections: dict[str, int] = {}
        #: Of the masters that routes have shown: a route of a lower one is old.
        self._terms: dict[str, int] = {}
        self._watched: set[str] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._retired: list[BrokerClient] = []
        self._closed = False

    # -- routes

    def known_route(self, topic: str) -> Route | None:
        """The route of a topic as remembered."""
        return self._routes.get(topic)

    async def route(self, topic: str) -> Route:
        """The route of a topic, as remembered or asked for. Raises what the source does."""
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for the route again. One without queues is not remembered: the topic may be created now.

        NotConnected if no broker has a master at the moment: nobody can tell then what topics there are.
        """
        self._check_open()
        try:
            route = await self._source.route(topic)
        except (TopicRefused, IllegalMessage, *REPEATABLE):
            raise
        except BrokerError as error:  # no NameServer can tell at the moment
            told = await self._route_from_brokers(topic)
            if told is None:
                raise NotConnected(f"no route of topic {topic!r}: {error}") from None
            route = told
        self._learn(route)
        if not route.queues and not names_with_master(route):
            raise NotConnected(f"no master is there to tell whether there is a topic {topic!r}")
        return route

    async def _route_from_brokers(self, topic: str) -> Route | None:
        """What the brokers that earlier routes have shown say themselves; None if none of them answers."""
        addresses = {address for ids in self._seen.values() for address in ids.values()}
        if not addresses:
            return None
        brokers = StaticRoutes(addresses, tls=self._tls)
        try:
            return await brokers.route(topic)
        except BrokerError:
            return None
        finally:
            await brokers.close()

    async def existing(self, topic: str) -> Route:
        """The route of a topic that has queues. TopicRefused (TOPIC_UNKNOWN) otherwise."""
        route = await self.route(topic)
        if not route.queues:
            raise TopicRefused(Status.TOPIC_UNKNOWN, f"there is no topic {topic!r}")
        return route

    async def find(self, topic: str, seconds: float) -> Route:
        """As `existing`, asked again for so long as nobody can tell; then the last error."""
        return await self.repeated(lambda: self.existing(topic), seconds, f"route of topic {topic!r}")

    async def repeated(
        self,
        ask: Callable[[], Awaitable[T]],
        seconds: float,
        what: str,
        repeat: tuple[type[BrokerError], ...] = REPEATABLE,
    ) -> T:
        """What `ask` gives, which is called again after an error of `repeat`; the last error when `seconds`
        have passed, NoAnswer if there was none."""
        last: BrokerError | None = None

        async def once() -> T:
            nonlocal last
            try:
                return await ask()
            except BrokerError as error:
                last = error
                raise

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: _is_worth_repeating(e, repeat) and not self._closed),
            wait=RETRY_PAUSE,
            reraise=True,
        )
        try:
            async with asyncio.timeout(seconds):
                return await retrying(once)
        except TimeoutError:
            raise last or NoAnswer(f"{what}: no answer within {seconds:g} s") from None

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)

    # -- masters

    async def master(self, broker: str, topic: str) -> BrokerClient:
        """The master of a broker name. NotMaster if the route of the topic shows none at the moment."""
        self._check_open()
        address = self._masters.get(broker)
        if address is None:
            await self.refresh(topic)
            address = self._masters.get(broker)
        if address is None:
            raise NotMaster(f"{broker} has no master at the moment")
        return self._client(address)

    def failed(self, broker: str, client: BrokerClient, error: BrokerError) -> None:
        """`client` was asked as the master and answered `error`: what that says about who is."""
        if isinstance(error, NotMaster):
            self._redirected(broker, client.address, error.master_address)
        elif isinstance(error, NotConnected | PutIndeterminate) or error.status in _GONE:
            self._redirected(broker, client.address, None)

    def confirmed(self, broker: str) -> None:
        """The master did what a master does."""
        self._redirections.pop(broker, None)

    def _redirected(self, broker: str, address: str, to: str | None) -> None:
        if self._masters.get(broker) not in (None, address):
            return  # something newer is known already
        self._masters.pop(broker, None)
        count = self._redirections.get(broker, 0)
        if to and to != address and count < _MAX_REDIRECTIONS:
            self._redirections[broker] = count + 1
            self._masters[broker] = to
        else:
            self._redirections.pop(broker, None)

    async def on_master(
        self,
        broker: str,
        topic: str,
        ask: Callable[[BrokerClient], Awaitable[T]],
        seconds: float,
        repeat: tuple[type[BrokerError], ...] = REPEATABLE,
    ) -> T:
        """Ask the master, again where it moved to; the last error when `seconds` have passed."""

        async def once() -> T:
            client = await self.master(broker, topic)
            try:
                answer = await ask(client)
            except BrokerError as error:
                self.failed(broker, client, error)
                raise
            self.confirmed(broker)
            return answer

        return await self.repeated(once, seconds, broker, repeat)

    # -- watching

    def watch(self, topic: str) -> None:
        """Hear of every change of a topic's route from now on."""
        if topic in self._watched:
            return
        self._watched.add(topic)
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = asyncio.create_task(self._watch(frozenset(self._watched)))

    async def _watch(self, topics: frozenset[str]) -> None:
        while True:
            routes = self._source.watch(topics)
            try:
                async for route in routes:
                    self._learn(route)
            except BrokerError:
                pass  # nobody to ask: calls go on with what is known, and find out themselves
            finally:
                if hasattr(routes, "aclose"):
                    await cast("AsyncGenerator[Route, None]", routes).aclose()
            await asyncio.sleep(_WATCH_AGAIN)

    def _learn(self, route: Route) -> None:
        if route.queues:
            self._routes[route.topic] = route
        else:
            self._routes.pop(route.topic, None)
        for broker, ids in route.brokers.items():
            self._seen.setdefault(broker, {}).update(ids)
            address, term = ids.get(MASTER_ID), route.master_terms.get(broker, 0)
            known, known_term = self._masters.get(broker), self._terms.get(broker, -1)
            if address is None or term < known_term:
                continue
            self._terms[broker] = term
            # Of the same term a route tells nothing that a redirection since may not have corrected.
            if address == known or (known is not None and term == known_term):
                continue
            self._masters[broker] = address
            if known is not None and (client := self._clients.get(known)) is not None:
                client.break_off()  # it will not answer as the master any more

    # -- life

    def _client(self, address: str) -> BrokerClient:
        security = None if self._security is None else self._security()
        client = self._clients.get(address)
        if client is not None and client.security is not security:
            # The certificate was renewed. What is under way on the old connection may end there.
            self._retired.append(client)
            client = None
        if client is None:
            client = self._clients[address] = BrokerClient(address, security)
        return client

    def _check_open(self) -> None:
        if self._closed:
            raise PutRefused(Status.SHUTTING_DOWN, "the client is closed")

    async def close(self) -> None:
        """End every call and the watching. The source is its owner's to close."""
        self._closed = True
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        await asyncio.gather(*(client.close() for client in (*self._clients.values(), *self._retired)))
        await asyncio.sleep(_SETTLE)
