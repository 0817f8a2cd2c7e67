"""Routes of topics: asked from NameServers, kept, and asked for again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from broker_adapter.client.connections import Connections
from broker_adapter.client.core import requests
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import TopicRoute, parse_route
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    NameServerUnavailable,
    PutRefused,
    ResponseCode,
    Status,
    TopicRefused,
)
from broker_adapter.remoting.command import RemotingCommand

_log = logging.getLogger(__name__)

#: After a failure a route is asked for again at once, but not more often.
_MIN_AGE_S = 0.5
#: Routes of which a NameServer says that they have changed are asked for at once, but not more often; less
#: often while nobody answers.
_NOTICED_S, _NOTICED_AGAIN_S = 0.2, 1.0


class NameServers:
    """Asks one NameServer as long as it answers, then the next one."""

    def __init__(
        self, addresses: Sequence[str] | str, connections: Connections, options: ClientOptions
    ) -> None:
        """`addresses`: host:port each, or one text with `;` between them as in RocketMQ's settings."""
        given = addresses.split(";") if isinstance(addresses, str) else addresses
        self.addresses = [one.strip() for one in given if one.strip()]
        if not self.addresses:
            raise ValueError("a client needs the address of a NameServer")
        self._connections = connections
        self._options = options
        self._current = 0

    async def invoke(self, request: RemotingCommand) -> RemotingCommand:
        """The answer of the first that answers. NameServerUnavailable (NAMESRV_UNREACHABLE)."""
        problems = []
        for _ in self.addresses:
            address = self.addresses[self._current % len(self.addresses)]
            try:
                return await self._connections.invoke(address, request, self._options.request_timeout_s)
            except (PutRefused, AnswerMissing) as error:
                problems.append(error.message)
                self._current += 1
        raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, "; ".join(problems))


class RouteCache:
    """On one event loop; `run` and `follow` renew what is kept until they are cancelled."""

    def __init__(self, name_servers: NameServers, options: ClientOptions) -> None:
        self._name_servers = name_servers
        self._options = options
        self._routes: dict[str, tuple[TopicRoute, float]] = {}  # with its age; least recently used first
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._stale: dict[str, None] = {}  # routes that have changed
        self._noticed = asyncio.Event()
        self.min_age_s = _MIN_AGE_S
        #: Called with a topic whose route is another one than before.
        self.on_change: Callable[[str], None] = lambda topic: None

    @property
    def known(self) -> dict[str, TopicRoute]:
        return {topic: route for topic, (route, _) in self._routes.items()}

    async def get(self, topic: str) -> TopicRoute:
        """TopicRefused (TOPIC_UNKNOWN), NameServerUnavailable (NAMESRV_UNREACHABLE)."""
        kept = self._routes.pop(topic, None)
        if kept is None:
            return await self.ask(topic)
        self._routes[topic] = kept
        return kept[0]

    async def renewed(self, topic: str) -> TopicRoute:
        """The route after a failure: asked for again unless that was just done. The old one if nobody
        answers."""
        kept = self._routes.get(topic)
        if kept is not None and asyncio.get_running_loop().time() - kept[1] < self.min_age_s:
            # Programs that try again at once would keep the loop from all else, their own answers included.
            await asyncio.sleep(0)
            return kept[0]
        try:
            return await self.ask(topic)
        except NameServerUnavailable:
            if kept is None:
                raise
            return kept[0]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_name_server_s)
            for topic in list(self._routes):
                try:
                    await self.ask(topic)
                except BrokerError as error:
                    _log.info("a route is not renewed: topic %s, %s", topic, error)

    def changed(self, topics: Iterable[str]) -> None:
        """A NameServer says so: `follow` asks for those of them that are kept."""
        self._stale.update(dict.fromkeys(topic for topic in topics if topic in self._routes))
        if self._stale:
            self._noticed.set()

    async def follow(self) -> None:
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            stale, self._stale = self._stale, {}
            left = [topic for topic in stale if not await self._is_renewed(topic)]
            await asyncio.sleep(_NOTICED_AGAIN_S if left else _NOTICED_S)
            self.changed(left)

    async def _is_renewed(self, topic: str) -> bool:
        """False: nobody has answered, so ask again."""
        try:
            await self.ask(topic)
        except TopicRefused:
            return True  # it is not kept any more
        except BrokerError as error:
            _log.info("a route has changed and is not renewed: topic %s, %s", topic, error)
            return False
        return True

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def ask(self, topic: str) -> TopicRoute:
        """The route as a NameServer has it now; one question at a time for each topic. Errors as of `get`."""
        asking = self._asking.get(topic)
        if asking is None or asking.done():
            asking = asyncio.get_running_loop().create_task(self._question(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda _: self._forget(topic, asking))
        return await asyncio.shield(asking)

    def _forget(self, topic: str, asked: asyncio.Task[TopicRoute]) -> None:
        if self._asking.get(topic) is asked:
            del self._asking[topic]
        _ = asked.cancelled() or asked.exception()  # who asked may have gone

    async def _question(self, topic: str) -> TopicRoute:
        answer = await self._name_servers.invoke(requests.route_of(topic))
        if answer.code != ResponseCode.SUCCESS:
            error = error_of(answer, f"route of {topic}")
            if isinstance(error, TopicRefused):
                self._routes.pop(topic, None)
            raise error
        route = parse_route(answer.body)
        before = self._routes.pop(topic, None)
        while len(self._routes) >= self._options.max_topics:
            self._routes.pop(next(iter(self._routes)))
        self._routes[topic] = route, asyncio.get_running_loop().time()
        if before is not None and before[0] != route:
            self.on_change(topic)
        return route
