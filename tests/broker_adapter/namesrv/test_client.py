"""The client: any NameServer will do, and one that is gone stops nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from broker_adapter.errors import BrokerError, NameServerUnavailable, Status, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import ClusterInfo
from tests.broker_adapter.namesrv.helpers import ORDERS, address_of, name_server, registration, until

NOBODY = "127.0.0.1:1"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[list[NameServerProcess]]:
    async with name_server(tmp_path / "one") as one, name_server(tmp_path / "two") as other:
        yield [one, other]


async def test_a_dead_server_is_passed_over(two: list[NameServerProcess]) -> None:
    two[0].name_server.register(registration("n1", 0))
    async with NameServerClient([NOBODY, two[0].address]) as client:
        assert (await client.route("orders")).queues == {"broker-a": ORDERS}
        assert await client.list_topics() == ["orders"]
        assert len((await client.cluster_info()).brokers) == 1


async def test_a_server_that_knows_nothing_yet_is_not_the_last_word(two: list[NameServerProcess]) -> None:
    two[1].name_server.register(registration("n1", 0))
    async with NameServerClient([server.address for server in two]) as client:
        assert (await client.route("orders")).queues
        with pytest.raises(TopicRefused):
            await client.route("unknown")


async def test_a_topic_that_one_does_not_know_while_another_is_silent_is_unknown(
    two: list[NameServerProcess],
) -> None:
    async with NameServerClient([NOBODY, two[0].address]) as client:
        with pytest.raises(TopicRefused):
            await client.route("unknown")


async def test_changes_go_to_every_server(two: list[NameServerProcess]) -> None:
    async with NameServerClient([server.address for server in two]) as client:
        await client.register(registration("n1", 0))
        await client.kv_put("ns", "k", "v")
        assert await client.wipe_write_permission("broker-a") == 1
        for server in two:
            assert server.name_server.kv.get("ns", "k") == "v"
            assert server.info().write_wiped == ["broker-a"]
        await client.kv_delete("ns", "k")
        await client.unregister("broker-a", "n1")
        assert [len(server.name_server.kv) for server in two] == [0, 0]
        assert [server.name_server.brokers() for server in two] == [[], []]


async def test_a_change_that_reached_only_some_is_an_error(two: list[NameServerProcess]) -> None:
    async with NameServerClient([two[0].address, NOBODY]) as client:
        with pytest.raises(NameServerUnavailable) as caught:
            await client.kv_put("ns", "k", "v")
        assert caught.value.status is Status.NAMESRV_UNREACHABLE
    assert two[0].name_server.kv.get("ns", "k") == "v"


async def test_each_server_is_asked_how_it_is(two: list[NameServerProcess]) -> None:
    async with NameServerClient([two[0].address, NOBODY]) as client:
        infos = await client.cluster_infos()
    assert isinstance(infos[two[0].address], ClusterInfo)
    assert isinstance(infos[NOBODY], BrokerError)


async def test_a_watch_outlives_the_server_it_began_on(tmp_path: Path) -> None:
    async with name_server(tmp_path / "two") as other:
        async with name_server(tmp_path / "one") as one:
            for server in (one, other):
                server.name_server.register(registration("n1", 0, term=1))
            client = NameServerClient([one.address, other.address])
            routes = client.watch(["orders"])
            assert (await anext(routes)).brokers == {"broker-a": {0: address_of("n1")}}
        # The first is gone. What the second knows is the same: it is no news.
        other.name_server.register(registration("n2", 0, term=2))
        assert (await anext(routes)).brokers == {"broker-a": {0: address_of("n2")}}
        await routes.aclose()
        await client.close()


async def test_what_a_new_server_does_not_know_yet_is_no_change(tmp_path: Path) -> None:
    async with name_server(tmp_path / "two") as other:
        async with name_server(tmp_path / "one") as one:
            one.name_server.register(registration("n1", 0, term=1))
            client = NameServerClient([one.address, other.address])
            routes = client.watch(["orders"])
            assert (await anext(routes)).queues
        # The second has never heard of the topic; it is not told that it is gone, only what comes.
        news = asyncio.ensure_future(routes.__anext__())
        # It has told all it knew when nothing is left to tell.
        await until(lambda: [w.is_behind for w in other.name_server.watchers] == [False])
        await client.list_topics()  # an answer that comes after it on the same connection
        other.name_server.register(registration("n3", 0, term=3))
        assert (await news).brokers == {"broker-a": {0: address_of("n3")}}
        other.name_server.unregister("broker-a", "n3", -1)
        assert (await anext(routes)).queues == {}
        await routes.aclose()
        await client.close()


async def test_a_watch_waits_for_a_server_to_come(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        address = server.address
    async with NameServerClient([address]) as client, aclosing(client.watch(["orders"])) as routes:
        first = routes.__anext__()
        async with name_server(tmp_path, listen=address):
            assert (await first).queues == {}


async def test_a_watch_of_nonsense_is_an_error(two: list[NameServerProcess]) -> None:
    async with NameServerClient([two[0].address]) as client, aclosing(client.watch(["a/b"])) as routes:
        with pytest.raises(BrokerError) as caught:
            await anext(routes)
    assert caught.value.status is Status.TOPIC_NAME_INVALID


def test_a_client_needs_an_address() -> None:
    with pytest.raises(ValueError, match="address"):
        NameServerClient([])
