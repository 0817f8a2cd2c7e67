"""Nodes that register with NameServers of ours: newer ones, and older ones, which are as RocketMQ's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from broker_adapter.api import PERM_READ, PERM_WRITE
from broker_adapter.config.settings import parse_settings
from broker_adapter.errors import (
    NameServerRefused,
    NameServerUnavailable,
    ResponseCode,
)
from broker_adapter.namesrv import registration as registration_module
from broker_adapter.namesrv.registration import Registrar, RemotingRegistrationSession
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import Registration
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.server import RemotingServer
from dledger import ConfigError

from .helpers import PAYMENTS, OlderNameServer, name_server, registration, until
from .test_remoting import asking

CLIENTS_AT, SENDS_AT = "10.0.0.1:10911", "10.0.0.1:10921"
PERM_BOTH = PERM_READ | PERM_WRITE


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    async with name_server(tmp_path) as process:
        yield process


@pytest.fixture
async def older(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    async with name_server(tmp_path / "older", OlderNameServer) as process:
        yield process


@asynccontextmanager
async def registrar(process: NameServerProcess, every_s: float = 30.0) -> AsyncIterator[Registrar]:
    found = Registrar([process.address], every_s=every_s, jitter=lambda: 0.0)
    try:
        yield found
    finally:
        await found.stop()


def is_registered(found: Registrar) -> bool:
    return all(status.registered for status in found.status().values())


def names(process: NameServerProcess) -> dict[tuple[str, int], str]:
    return {(entry.broker_name, entry.broker_id): entry.address for entry in process.name_server.brokers()}


def of_node(number: int, broker_id: int, **more: Any) -> Registration:
    return registration(
        f"n{number}",
        broker_id,
        address=f"10.0.0.{number}:10911",
        send_address=f"10.0.0.{number}:10921",
        members=("n1", "n2"),
        **more,
    )


async def test_a_newer_name_server_gets_one_registration_and_makes_the_names_itself(
    process: NameServerProcess,
) -> None:
    async with registrar(process) as found, registrar(process) as slave:
        found.update(of_node(1, 0, term=4, role_epoch=7))
        await until(lambda: is_registered(found))
        slave.update(of_node(2, 1, term=4))
        await until(lambda: is_registered(slave))
        assert names(process) == {("broker-a", 0): CLIENTS_AT, ("broker-a", 1): "10.0.0.2:10911"}
        async with asking(process) as asker:
            route = await asker.route("orders")
        perms = {queues["brokerName"]: queues["perm"] for queues in route["queueDatas"]}
        assert perms == {"broker-a": PERM_BOTH, "broker-a-n2": PERM_WRITE}
        addresses = {broker["brokerName"]: broker["brokerAddrs"] for broker in route["brokerDatas"]}
        assert addresses["broker-a-n1"] == {"0": SENDS_AT}
        for one in (found, slave):
            (status,) = one.status().values()
            assert (status.master_address, status.master_term) == (CLIENTS_AT, 4)
    assert names(process) == {}


async def test_an_older_and_a_newer_name_server_serve_one_cluster(
    process: NameServerProcess, older: NameServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both name the same master after each change, refuse the deposed one, and lead to the same ports."""

    async def shown(server: NameServerProcess) -> tuple[dict[str, Any], set[str]]:
        async with asking(server) as asker:
            route = await asker.route("orders")
        places = {broker["brokerName"]: broker["brokerAddrs"] for broker in route["brokerDatas"]}
        writable = {queues["brokerName"] for queues in route["queueDatas"] if queues["perm"] & PERM_WRITE}
        return places, writable

    said: dict[str, bool] = {}

    def info(event: str, server: str, *, ours: bool | None = None, **_: object) -> None:
        if ours is not None:
            said[server] = ours

    log = SimpleNamespace(info=info, warning=info, exception=info)
    monkeypatch.setattr(registration_module, "_log", log)
    addresses = [process.address, older.address]
    one, two = (Registrar(addresses, jitter=lambda: 0.0) for _ in range(2))
    one.update(of_node(1, 0, term=4))
    two.update(of_node(2, 2, term=4))
    await until(lambda: is_registered(one) and is_registered(two))
    assert await shown(process) == await shown(older)
    assert (await shown(older))[0]["broker-a"] == {"0": CLIENTS_AT, "2": "10.0.0.2:10911"}
    assert said == {process.address: True, older.address: False}

    two.update(of_node(2, 0, term=5, role_epoch=2))
    await until(lambda: is_registered(two))
    one.update(of_node(1, 0, term=4, role_epoch=2))  # it has not heard of its successor
    await until(lambda: all("783" in status.last_error for status in one.status().values()))
    one.update(of_node(1, 1, term=5, role_epoch=3))
    await until(lambda: is_registered(one))
    assert await shown(process) == await shown(older)
    assert (await shown(older))[0]["broker-a"] == {"0": "10.0.0.2:10911", "1": CLIENTS_AT}
    for found in (one, two):
        await found.stop()
    assert names(process) == names(older) == {}


async def test_at_an_older_one_a_master_is_written_to_under_the_brokers_name_and_a_slave_under_its_own(
    older: NameServerProcess,
) -> None:
    process = older
    async with registrar(process) as found:
        found.update(of_node(1, 0, term=4, role_epoch=7))
        await until(lambda: is_registered(found))
        assert names(process) == {("broker-a", 0): CLIENTS_AT, ("broker-a-n1", 0): SENDS_AT}
        assert {(one.term, one.role_epoch) for one in process.name_server.brokers()} == {(4, 7)}
        async with asking(process) as asker:
            route = await asker.route("orders")
        perms = {queues["brokerName"]: queues["perm"] for queues in route["queueDatas"]}
        assert perms == {"broker-a": PERM_BOTH, "broker-a-n1": 0}
        (status,) = found.status().values()
        assert status.master_address == CLIENTS_AT
        async with registrar(process) as slave:
            slave.update(of_node(2, 1, term=4))
            await until(lambda: is_registered(slave))
            async with asking(process) as asker:
                route = await asker.route("orders")
            perms = {queues["brokerName"]: queues["perm"] for queues in route["queueDatas"]}
            assert perms == {"broker-a": PERM_BOTH, "broker-a-n1": 0, "broker-a-n2": PERM_WRITE}
    assert names(process) == {}  # the end of the registrar has un-registered it


async def test_each_name_that_a_route_has_is_found_in_the_cluster(process: NameServerProcess) -> None:
    """rocketmq-exporter looks up the address of each, and gives up all topics for one that is not there."""
    process.name_server.register(of_node(1, 0, term=4))
    process.name_server.register(of_node(2, 2, term=4))
    async with asking(process) as asker:
        route, cluster = await asker.route("orders"), await asker.get(RequestCode.GET_BROKER_CLUSTER_INFO)
    table = {name: data["brokerAddrs"] for name, data in cluster["brokerAddrTable"].items()}
    assert table == {one["brokerName"]: one["brokerAddrs"] for one in route["brokerDatas"]}
    assert table["broker-a-n2"] == {"0": "10.0.0.2:10921"}
    assert list(cluster["clusterAddrTable"].values()) == [["broker-a"]], "what tools change goes to it alone"


async def test_roles_and_topics_follow_elections(older: NameServerProcess) -> None:
    process = older
    async with registrar(process) as one, registrar(process) as two:
        one.update(of_node(1, 0, term=4))
        two.update(of_node(2, 2, term=4))
        await until(lambda: is_registered(one) and is_registered(two))
        await until(lambda: len(names(process)) == 4)
        two.update(of_node(2, 0, term=5, role_epoch=2, topics=[PAYMENTS]))
        await until(lambda: names(process)["broker-a", 0] == "10.0.0.2:10911")
        one.update(of_node(1, 1, term=5, role_epoch=2))
        await until(lambda: ("broker-a", 1) in names(process) and is_registered(one))
        async with asking(process) as asker:
            assert {data["brokerName"] for data in (await asker.route("payments"))["queueDatas"]} >= {
                "broker-a",
                "broker-a-n2",
            }
        (status,) = one.status().values()
        assert status.master_address == "10.0.0.2:10911"


async def test_a_node_that_was_forgotten_registers_anew(older: NameServerProcess) -> None:
    process = older
    async with registrar(process, every_s=0.01) as found:
        found.update(of_node(1, 0))
        await until(lambda: is_registered(found))
        registered = process.name_server.counts["registered"]
        process.name_server.unregister("broker-a", "n1", -1)
        await until(lambda: len(names(process)) == 2)
        assert process.name_server.counts["registered"] > registered


async def test_a_node_whose_registration_has_expired_registers_at_once(tmp_path: Path) -> None:
    """As one that was paused does: its interval of 30 s is not waited for."""
    expiry = {"scan_ms": 1, "min_ms": 1, "default_ms": 1, "max_ms": 1}
    async with (
        name_server(tmp_path, expiry=expiry) as process,
        registrar(process) as found,
    ):
        found.update(of_node(1, 0))
        await until(lambda: process.name_server.counts["registered"] >= 3)
        assert process.name_server.counts["expired"] >= 2


class Scripted(NamedTuple):
    address: str
    asked: list[RemotingCommand]
    connections: list[RemotingConnection]


@asynccontextmanager
async def scripted(answers: dict[int, int]) -> AsyncIterator[Scripted]:
    """A server that answers each request code with that code, else 0; and what it was asked."""
    found = Scripted("", [], [])

    async def answer(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        found.asked.append(request)
        if connection not in found.connections:
            found.connections.append(connection)
        return request.answer(answers.get(request.code, ResponseCode.SUCCESS), "as scripted")

    dispatch = Dispatch()
    codes = (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    )
    dispatch.register(codes, answer, Executor("scripted", 8, 8))
    server = RemotingServer(dispatch)
    await server.start("127.0.0.1:0")
    try:
        yield found._replace(address=server.address)
    finally:
        await server.stop(0)


async def test_a_heartbeat_that_nobody_knows_is_no_failure() -> None:
    """NameServers of RocketMQ 4.9 do not know it."""
    unknown = {RequestCode.BROKER_HEARTBEAT: ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    async with scripted(unknown) as server:
        session = RemotingRegistrationSession(server.address, beat_s=0)
        await session.register(of_node(1, 0))
        ended = session.ended()
        await until(lambda: sum(one.code == RequestCode.BROKER_HEARTBEAT for one in server.asked) >= 4)
        assert not ended.done()
        await session.finish()
        await session.close()
    assert [
        one.fields["brokerName"] for one in server.asked if one.code == RequestCode.UNREGISTER_BROKER
    ] == [
        "broker-a",
        "broker-a-n1",
    ]
    assert len({(one.fields["clusterName"], one.fields["brokerAddr"]) for one in server.asked}) == 2


async def test_a_node_registers_again_when_its_connection_has_ended() -> None:
    async with scripted({}) as server:
        found = Registrar([server.address], jitter=lambda: 0.0)
        found.update(of_node(1, 0))
        await until(lambda: is_registered(found))
        server.connections[0].close("the network has failed")
        await until(lambda: len(server.connections) == 2 and is_registered(found))
        await found.stop()


async def test_a_refusal_is_told() -> None:
    async with scripted({RequestCode.REGISTER_BROKER: ResponseCode.SYSTEM_ERROR}) as server:
        session = RemotingRegistrationSession(server.address, beat_s=5)
        with pytest.raises(NameServerRefused, match="1: as scripted"):
            await session.register(of_node(1, 0))
        await session.close()


async def test_nobody_is_there() -> None:
    session = RemotingRegistrationSession("127.0.0.1:1", beat_s=5)
    with pytest.raises(NameServerUnavailable, match=r"127\.0\.0\.1:1"):
        await session.register(of_node(1, 0))
    await session.close()


def test_who_registers_has_to_listen() -> None:
    with pytest.raises(ConfigError, match=r"namesrv requires remoting\.listen"):
        parse_settings({"namesrv": ["10.0.0.1:9876"]})


async def test_a_slave_that_registers_again_hears_of_another_master(process: NameServerProcess) -> None:
    """Nothing else tells it whose log it is to follow."""
    slave, master = of_node(2, 1, ha_address="h:2"), of_node(1, 0, ha_address="h:1")
    session = RemotingRegistrationSession(process.address, 1_000.0)
    other = RemotingRegistrationSession(process.address, 1_000.0)
    try:
        assert (await session.register(slave)).master_ha_address == ""
        await other.register(master)
        answer = await session.register(slave)
        assert (answer.master_address, answer.master_ha_address) == (master.address, "h:1")
    finally:
        await session.close()
        await other.close()
