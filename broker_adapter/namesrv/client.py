"""The client of NameServers: asks them in turn, and goes on with the next where one is silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar

from broker_adapter.errors import (
    BrokerError,
    NameServerBusy,
    NameServerUnavailable,
    Status,
    TopicRefused,
)
from broker_adapter.namesrv.rpc_client import NameServerLink
from broker_adapter.namesrv.values import ANY_EPOCH, ClusterInfo, Registration, RegistrationAnswer, Route
from dledger import TlsFiles
from dledger.platform import ClientTls

T = TypeVar("T")

#: Seconds for one NameServer to answer.
TIMEOUT_S = 3.0
_PAUSE_S = (0.05, 0.1)
_PAUSE_LATER_S = (0.5, 1.0)
#: gRPC delivers the last events of cancelled calls from its own thread a moment later, in seconds. An event
#: loop that is closed by then would have them printed as errors.
_SETTLE_S = 0.01


class NameServerClient:
    """Use it on one event loop: `async with NameServerClient(["127.0.0.1:9876"]) as client: ...`

    Questions go to one NameServer at a time, beginning with the one that answered last. What changes
    something (`kv_put`, `kv_delete`, `wipe_write_permission`, `register`, `unregister`) goes to all of them,
    as they do not know of each other.
    """

    def __init__(
        self, addresses: Sequence[str], tls: TlsFiles | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`tls` None: plain text. ConfigError if its files are no good; ValueError without an address."""
        self.addresses = tuple(dict.fromkeys(addresses))
        if not self.addresses:
            raise ValueError("at least one address of a NameServer is needed")
        self._security = None if tls is None else ClientTls(tls)
        self._timeout_s = timeout_s
        self._links: dict[str, NameServerLink] = {}
        self._retired: list[NameServerLink] = []
        self._current = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for link in (*self._links.values(), *self._retired):
            await link.close()
        self._links.clear()
        self._retired.clear()
        await asyncio.sleep(_SETTLE_S)

    # -- questions ----------------------------------------------------------------------------------------

    async def route(self, topic: str) -> Route:
        """Where the topic is. TopicRefused (TOPIC_UNKNOWN) if no NameServer knows it, IllegalMessage,
        NameServerUnavailable."""
        # One that has just been started may not know what others know.
        return await self._ask(lambda link: link.route(topic, self._timeout_s), go_on=(TopicRefused,))

    async def watch(self, topics: Iterable[str] = ()) -> AsyncGenerator[Route]:
        """Routes of these topics (none named: of all), now and at every change; without queues: nowhere.

        It outlives NameServers: when one is gone it goes on with the next, and tries again and again if
        none is there. What a new one does not know (yet) is not told as a change. Close the generator
        (`contextlib.aclosing`) when done. IllegalMessage, NameServerRefused.
        """
        wanted = list(topics)
        told: dict[str, Route] = {}
        failures = 0
        while True:
            link = self._link(self._current)
            try:
                async with aclosing(link.watch(wanted)) as stream:
                    is_first = True
                    async for routes, complete in stream:
                        failures = 0
                        for route in routes:
                            known = told.get(route.topic)
                            if route == known or (is_first and known is not None and not route.queues):
                                continue
                            told[route.topic] = route
                            yield route
                        is_first = is_first and not complete
            except (NameServerUnavailable, NameServerBusy):
                self._current += 1
                failures += 1
                # All were asked once, without a pause: then they are given time.
                if failures % len(self.addresses) == 0:
                    later = failures > 10 * len(self.addresses)
                    await asyncio.sleep(random.uniform(*(_PAUSE_LATER_S if later else _PAUSE_S)))

    async def cluster_info(self) -> ClusterInfo:
        """What the first NameServer that answers knows. NameServerUnavailable."""
        return await self._ask(lambda link: link.cluster_info(self._timeout_s))

    async def cluster_infos(self) -> dict[str, ClusterInfo | BrokerError]:
        """address -> what each one knows, or why it says nothing."""
        return await self._ask_each(lambda link: link.cluster_info(self._timeout_s))

    async def list_topics(self) -> list[str]:
        """NameServerUnavailable."""
        return await self._ask(lambda link: link.topics(self._timeout_s))

    async def kv_get(self, namespace: str, key: str) -> str:
        """NameServerRefused (NAMESRV_CONFIG_UNKNOWN), NameServerUnavailable."""
        return await self._ask(lambda link: link.kv_get(namespace, key, self._timeout_s))

    async def kv_list(self, namespace: str = "") -> dict[str, str]:
        """All of a namespace; without one: the namespaces, as keys. NameServerUnavailable."""
        return await self._ask(lambda link: link.kv_list(namespace, self._timeout_s))

    # -- changes ------------------------------------------------------------------------------------------

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """On every NameServer. The first error of any; the others may have done it."""
        await self._tell_all(lambda link: link.kv_put(namespace, key, value, self._timeout_s))

    async def kv_delete(self, namespace: str, key: str) -> None:
        """As kv_put. NameServerRefused (NAMESRV_CONFIG_UNKNOWN) from where there is no such key."""
        await self._tell_all(lambda link: link.kv_delete(namespace, key, self._timeout_s))

    async def wipe_write_permission(self, broker_name: str, *, give_back: bool = False) -> int:
        """How many topics are concerned. As kv_put; NameServerRefused (NAMESRV_BROKER_UNKNOWN)."""
        counts = await self._tell_all(
            lambda link: link.wipe_write_permission(broker_name, give_back, self._timeout_s)
        )
        return max(counts)

    async def register(self, given: Registration) -> list[RegistrationAnswer]:
        """Once, for tools; brokers use a Registrar. As kv_put; errors as RouteTables.register."""
        return await self._tell_all(lambda link: link.register(given, self._timeout_s))

    async def unregister(self, broker_name: str, node_id: str, role_epoch: int = ANY_EPOCH) -> None:
        """As kv_put; errors as RouteTables.unregister."""
        await self._tell_all(lambda link: link.unregister(broker_name, node_id, role_epoch, self._timeout_s))

    # -- how they are asked -------------------------------------------------------------------------------

    def _link(self, number: int) -> NameServerLink:
        address = self.addresses[number % len(self.addresses)]
        security = self._security() if self._security is not None else None
        link = self._links.get(address)
        if link is not None and link.security is not security:
            # The certificate was renewed; calls that are under way on the old connection may end there.
            self._retired.append(link)
            link = None
        if link is None:
            link = self._links[address] = NameServerLink(address, security)
        return link

    async def _ask(
        self, question: Callable[[NameServerLink], Awaitable[T]], *, go_on: tuple[type[BrokerError], ...] = ()
    ) -> T:
        """The first answer. If there is none: the last of the errors in `go_on`, else why nobody answers."""
        silent: list[str] = []
        negative: BrokerError | None = None
        first = self._current
        for number in range(first, first + len(self.addresses)):
            try:
                answer = await question(self._link(number))
            except (NameServerUnavailable, NameServerBusy) as error:
                silent.append(error.message)
            except go_on as error:
                negative = error
            else:
                self._current = number
                return answer
        if negative is not None:
            raise negative
        raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, f"no NameServer answers: {'; '.join(silent)}")

    async def _ask_each(
        self, question: Callable[[NameServerLink], Awaitable[T]]
    ) -> dict[str, T | BrokerError]:
        async def ask(number: int) -> T | BrokerError:
            try:
                return await question(self._link(number))
            except BrokerError as error:
                return error

        answers = await asyncio.gather(*map(ask, range(len(self.addresses))))
        return dict(zip(self.addresses, answers, strict=True))

    async def _tell_all(self, question: Callable[[NameServerLink], Awaitable[T]]) -> list[T]:
        answers = await self._ask_each(question)
        for answer in answers.values():
            if isinstance(answer, BrokerError):
                raise answer
        return [answer for answer in answers.values() if not isinstance(answer, BrokerError)]
