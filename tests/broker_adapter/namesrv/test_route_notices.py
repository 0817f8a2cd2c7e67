"""Connections that ask for routes and want to be told of their next change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker_adapter.api import TopicConfig
from broker_adapter.errors import ResponseCode
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.watching import RouteNotices, Watchers
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor

from .helpers import ORDERS, PAYMENTS, name_server, registration, until


class Client:
    """One connection, and the topics of each notice that came by it."""

    def __init__(self, connection: RemotingConnection, notices: list[list[str]]) -> None:
        self._connection = connection
        self.notices = notices

    async def ask(self, topic: str, *, watch: bool = True) -> RemotingCommand:
        fields = {"topic": topic} | ({WATCH_ROUTE: "true"} if watch else {})
        return await self._connection.invoke(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields), 30)

    async def watches(self, topic: str) -> bool:
        """Ask, and say whether the next change will be told."""
        return (await self.ask(topic)).fields.get(WATCH_ROUTE) == "true"

    async def is_told_of_nothing(self) -> bool:
        """Whatever was told before this answer has come before it."""
        before = len(self.notices)
        await self.ask("any", watch=False)
        return len(self.notices) == before


@asynccontextmanager
async def client(process: NameServerProcess) -> AsyncIterator[Client]:
    notices: list[list[str]] = []

    async def told(_: RemotingConnection, request: RemotingCommand) -> None:
        assert request.is_oneway
        notices.append(json.loads(request.body)["topicList"])

    dispatch = Dispatch()
    dispatch.register([RequestCode.ROUTES_CHANGED], told, Executor("notices", 100, 100))
    connection = await connect(process.address, timeout_s=30, dispatch=dispatch)
    try:
        yield Client(connection, notices)
    finally:
        connection.close("the test is over")


async def test_a_change_is_told_once_until_the_route_is_asked_for_again(tmp_path: Path) -> None:
    async with name_server(tmp_path) as process, client(process) as asker:
        server = process.name_server
        server.register(registration("n1", topics=[ORDERS, PAYMENTS]))
        assert await asker.watches("orders")
        server.register(registration("n2", term=2, topics=[ORDERS, PAYMENTS]))  # another master
        await until(lambda: asker.notices == [["orders"]])
        server.register(registration("n1", term=3, topics=[ORDERS, PAYMENTS]))
        assert await asker.is_told_of_nothing()
        assert await asker.watches("orders") and await asker.watches("payments")
        server.unregister("broker-a", "n1", 1)
        await until(lambda: len(asker.notices) == 2)
        assert sorted(asker.notices[1]) == ["orders", "payments"]


async def test_changes_of_one_moment_are_one_notice(tmp_path: Path) -> None:
    topics = [TopicConfig(f"t{number}") for number in range(50)]
    async with name_server(tmp_path) as process, client(process) as asker:
        server = process.name_server
        server.register(registration("n1", topics=topics))
        assert all([await asker.watches(topic.name) for topic in topics])
        for term in range(2, 10):
            server.register(registration(f"n{term}", term=term, topics=topics))
        await until(lambda: bool(asker.notices))
        assert await asker.is_told_of_nothing()
        (notice,) = asker.notices
        assert sorted(notice) == sorted(topic.name for topic in topics)


async def test_who_does_not_ask_for_it_is_told_nothing(tmp_path: Path) -> None:
    async with name_server(tmp_path) as process, client(process) as asker:
        process.name_server.register(registration("n1"))
        answer = await asker.ask("orders", watch=False)
        assert answer.code == ResponseCode.SUCCESS and WATCH_ROUTE not in answer.fields
        process.name_server.register(registration("n2", term=2))
        assert await asker.is_told_of_nothing() and not len(process.name_server.watchers)


async def test_a_topic_without_a_route_is_not_watched(tmp_path: Path) -> None:
    """Else clients could make the server keep any number of names."""
    async with name_server(tmp_path) as process, client(process) as asker:
        assert (await asker.ask("orders")).code == ResponseCode.TOPIC_NOT_EXIST
        assert not len(process.name_server.watchers)
        process.name_server.register(registration("n1"))
        assert await asker.is_told_of_nothing()


async def test_a_connection_watches_so_many_topics_and_is_answered_all_the_same(tmp_path: Path) -> None:
    settings = {"limits": {"max_watched_topics": 1}}
    async with (
        name_server(tmp_path, **settings) as process,
        client(process) as asker,
    ):
        process.name_server.register(registration("n1", topics=[ORDERS, PAYMENTS]))
        assert await asker.watches("orders")
        answer = await asker.ask("payments")
        assert answer.code == ResponseCode.SUCCESS and answer.body and WATCH_ROUTE not in answer.fields
        assert await asker.watches("orders")  # again
        process.name_server.register(registration("n2", term=2, topics=[ORDERS, PAYMENTS]))
        await until(lambda: asker.notices == [["orders"]])
        assert await asker.watches("payments")  # there is room again


async def test_so_many_connections_watch_and_give_their_place_back(tmp_path: Path) -> None:
    settings = {"limits": {"max_watchers": 1}}
    async with name_server(tmp_path, **settings) as process:
        process.name_server.register(registration("n1"))
        async with client(process) as first, client(process) as second:
            assert await first.watches("orders")
            assert (await second.ask("orders")).code == ResponseCode.SUCCESS
            assert not await second.watches("orders")
            assert process.name_server.limits_hit["watcher"] == 2
        await until(lambda: not len(process.name_server.watchers))
        async with client(process) as third:
            assert await third.watches("orders")


async def test_what_changes_while_many_watchers_are_told_is_told_to_each_of_them() -> None:
    watchers, told = Watchers(100), Counter[str]()
    for _ in range(50):
        one = RouteNotices(10, told.update)
        for topic in "abc":
            one.watch(topic)
        assert watchers.add(one)
    for topic in "abc":
        watchers.mark([topic])
    await until(lambda: told == Counter("abc" * 50))
