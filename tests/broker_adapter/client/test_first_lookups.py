"""The first thing that a client asks for may not be known yet: it asks again, for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.client import Admin, Consumer, Producer, PullConsumer
from broker_adapter.client.routes import Route, StaticRoutes
from broker_adapter.errors import BrokerError, Status, TopicRefused
from broker_adapter.rpc.broker_client import NotConnected
from tests.broker_adapter.client.helpers import routes_to
from tests.broker_adapter.memory_broker import MemoryBrokers


class LateSource:
    """Knows nothing, for so many questions, and says so with `error`; None: says there is no broker."""

    def __init__(self, routes: StaticRoutes, error: BrokerError | None, times: int) -> None:
        self.asked = 0
        self._routes = routes
        self._error = error
        self._times = times

    async def route(self, topic: str) -> Route:
        self._count()
        return await self._routes.route(topic)

    async def brokers(self) -> Mapping[str, Mapping[int, str]]:
        self._count()
        return {} if self._error is None and self.asked <= self._times else await self._routes.brokers()

    async def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        async for route in self._routes.watch(topics):
            yield route

    def _count(self) -> None:
        self.asked += 1
        if self.asked <= self._times and self._error is not None:
            raise self._error


NOBODY = NotConnected("nobody answers")
UNHEARD = TopicRefused(Status.TOPIC_UNKNOWN, "there is no such topic")
FOR_EVER = 1 << 30


async def test_consumers_ask_for_their_first_route_until_somebody_answers() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        source = LateSource(routes, NOBODY, 3)
        async with PullConsumer(source) as puller:
            assert (await puller.pull("t", 0, 0)).messages == []
        assert source.asked >= 4
        source = LateSource(routes, NOBODY, 3)
        async with Consumer(source, "g", "t") as consumer:
            assert consumer.generations == [1]
        assert source.asked >= 4


async def test_a_first_route_that_nobody_tells_in_time_is_the_last_error() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        source = LateSource(routes, NOBODY, FOR_EVER)
        async with PullConsumer(source, timeout=0.2) as puller:
            with pytest.raises(NotConnected, match="nobody answers"):
                await puller.pull("t", 0, 0)
        assert source.asked > 1


async def test_admin_asks_for_the_brokers_until_somebody_answers() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        async with Admin(LateSource(routes, NOBODY, 3)) as admin:
            await admin.put_topic(TopicConfig("t"))
        async with Admin(LateSource(routes, NOBODY, FOR_EVER), timeout=0.2) as admin:
            with pytest.raises(NotConnected, match="nobody answers"):
                await admin.topics()


async def test_admin_asks_until_a_nameserver_knows_a_broker() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        source = LateSource(routes, None, 3)
        async with Admin(source) as admin:
            await admin.put_topic(TopicConfig("t"))
        assert source.asked >= 4
        async with Admin(LateSource(routes, None, FOR_EVER), timeout=0.2) as admin:
            with pytest.raises(NotConnected, match="no broker is known"):
                await admin.topics()


async def test_a_topic_that_a_nameserver_has_yet_to_hear_of_is_sent_to() -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        async with Producer(LateSource(routes, UNHEARD, 4)) as producer:
            assert (await producer.send("t", b"x")).queue_offset == 0


@pytest.mark.parametrize("timeout", [0.3, 10])
async def test_a_topic_that_stays_unknown_is_refused_well_before_the_deadline(timeout: float) -> None:
    async with MemoryBrokers() as brokers, routes_to(brokers) as routes:
        source = LateSource(routes, UNHEARD, FOR_EVER)
        async with Producer(source) as producer:
            with pytest.raises(TopicRefused) as refused:
                await producer.send("t", b"x", timeout=timeout)
            assert refused.value.status is Status.TOPIC_UNKNOWN
        assert source.asked > 1
