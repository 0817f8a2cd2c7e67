"""A NameServer says that a route has changed, and the client asks for it at once; others are polled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker_adapter.client import Admin, ClientOptions, Message, MessageQueue, Producer, PushConsumer
from broker_adapter.client.instance import ClientInstance
from broker_adapter.errors import TopicRefused
from broker_adapter.remoting.codes import WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server, registration, until

from .scripted import ScriptedServer, route_body_of, serving

#: Routes are asked for when something happens, and never because time has passed.
NEVER = ClientOptions(timeout=60.0, request_timeout=30.0, poll_name_server_s=1e9)


@asynccontextmanager
async def client(names: str, options: ClientOptions = NEVER) -> AsyncIterator[ClientInstance]:
    instance = ClientInstance(names, options)
    instance.start()
    try:
        yield instance
    finally:
        await instance.close()


def master(instance: ClientInstance) -> str | None:
    return instance.routes.known["orders"].master("broker-a")


async def test_the_route_follows_each_change_of_the_master(tmp_path: Path) -> None:
    async with name_server(tmp_path) as process:
        server = process.name_server
        server.register(registration("n1"))
        async with client(process.address) as instance:
            await instance.routes.get("orders")
            for term, node in enumerate(("n2", "n1", "n2"), 2):
                server.register(registration(node, term=term))
                await until(lambda node=node: master(instance) == f"host-broker-a-{node}:1")


async def test_a_name_server_without_brokers_is_named_as_the_cause(tmp_path: Path) -> None:
    async with name_server(tmp_path) as process, client(process.address) as instance:
        with pytest.raises(TopicRefused, match="no broker is registered with the NameServer"):
            await instance.routes.get("orders")
        process.name_server.register(registration("n1"))
        with pytest.raises(TopicRefused) as error:
            await instance.routes.get("others")
        assert "registered" not in error.value.message


async def test_a_master_that_dies_leaves_the_route_and_the_next_one_comes_into_it(tmp_path: Path) -> None:
    """Brokers, a NameServer, and a client that sends nothing meanwhile."""
    async with name_server(tmp_path / "namesrv") as server:
        settings = {"remoting": {"listen": "127.0.0.1:0"}, "namesrv": [server.address]}
        async with (
            brokers(tmp_path, 3, settings) as cluster,
            Producer("p", server.address) as sender,
        ):
            await until(lambda: bool(server.name_server.tables.topics()))  # the master has registered
            await sender.send(Message("orders", b"x"))
            async with client(server.address) as instance:
                await instance.routes.get("orders")
                first = await cluster.master()
                await until(lambda: master(instance) == first.remoting.address)
                await cluster.stop(first.config.node_id)
                second = await cluster.master()
                await until(lambda: master(instance) == second.remoting.address)


async def test_a_push_consumer_takes_new_queues_when_it_is_told_of_them(tmp_path: Path) -> None:
    async with name_server(tmp_path / "namesrv") as server:
        settings = {"remoting": {"listen": "127.0.0.1:0"}, "namesrv": [server.address]}
        async with brokers(tmp_path, 1, settings), Admin(server.address) as admin:
            await until(lambda: bool(server.name_server.tables.topics()))
            await admin.create_topic("orders", queues=2)
            consumer = PushConsumer("g", server.address, lambda messages: None, options=NEVER)
            consumer.subscribe("orders")
            async with consumer:
                await until(lambda: len(_of_orders(consumer)) == 2)
                await admin.create_topic("orders", queues=6)
                await until(lambda: len(_of_orders(consumer)) == 6)


def _of_orders(consumer: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in consumer.assigned if queue.topic == "orders"]


class Names:
    """A NameServer's answers: `address` of the master of `a`; or none, while it is None."""

    def __init__(self) -> None:
        self.address: str | None = "host:1"

    def __call__(self, request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.answer(3, "request type not supported")
        if self.address is None:
            return request.answer(2, "system busy")
        return request.answer(0, body=route_body_of({"a": self.address}, queues=1))


def tell(server: ScriptedServer, body: bytes = b'{"topicList":["orders"]}') -> None:
    (connection,) = server.connections
    connection.notify(RemotingCommand.oneway(RequestCode.ROUTES_CHANGED, body=body))


def asked(server: ScriptedServer) -> int:
    return len(server.seen_of(RequestCode.GET_ROUTEINFO_BY_TOPIC))


async def test_a_name_server_that_tells_nothing_is_asked_now_and_then() -> None:
    """As RocketMQ's: it passes over the field."""
    names = Names()
    async with (
        serving(names) as (server,),
        client(server.server.address, replace(NEVER, poll_name_server_s=0.05)) as instance,
    ):
        assert (await instance.routes.get("orders")).master("a") == "host:1"
        assert server.seen[0].fields[WATCH_ROUTE] == "true"
        names.address = "host:2"
        await until(lambda: instance.routes.known["orders"].master("a") == "host:2")


async def test_a_notice_that_nobody_answers_is_not_forgotten() -> None:
    names = Names()
    async with serving(names) as (server,), client(server.server.address) as instance:
        await instance.routes.get("orders")
        names.address = None
        tell(server)
        await until(lambda: asked(server) >= 2)
        names.address = "host:2"
        await until(lambda: instance.routes.known["orders"].master("a") == "host:2")


async def test_notices_that_say_nothing_ask_nothing() -> None:
    names = Names()
    async with serving(names) as (server,), client(server.server.address) as instance:
        await instance.routes.get("orders")
        for body in (b"", b"{}", b'{"topicList":7}', b'{"topicList":[7]}', b'{"topicList":["others"]}'):
            tell(server, body)
        names.address = "host:2"
        tell(server)
        await until(lambda: instance.routes.known["orders"].master("a") == "host:2")
        assert [one.fields["topic"] for one in server.seen] == ["orders", "orders"]


async def test_a_flood_of_notices_is_no_flood_of_questions() -> None:
    names = Names()
    async with serving(names) as (server,), client(server.server.address) as instance:
        await instance.routes.get("orders")
        for _ in range(50):
            tell(server)
        names.address = "host:2"
        tell(server)
        await until(lambda: instance.routes.known["orders"].master("a") == "host:2")
        assert asked(server) < 25
