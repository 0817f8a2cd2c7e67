"""The send-only port of a node (docs/remoting.md): sums over the names of a route count each message once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import decode
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.test_remoting_consumers import beat
from tests.node.local import until

ONE_SECOND_MS = 1_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 1, LISTEN) as cluster:
        await cluster.master()
        yield cluster


@pytest.fixture
async def ports(cluster: BrokerCluster) -> AsyncIterator[tuple[Asker, Asker]]:
    """One connection to each port of the master: the main one, the send-only one."""
    master = await cluster.master()
    async with asking(master.remoting.address) as main, asking(master.remoting.send_address) as send_only:
        yield main, send_only


async def filled(main: Asker) -> None:
    """Three messages in queue 0 of t, one of them consumed by g."""
    for n in range(3):
        await main.send("t", b"%d" % n, 0, KEYS="k")
    await main.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    await main.get(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=1
    )


async def test_sums_over_the_names_of_a_route_count_each_message_once(tmp_path: Path) -> None:
    """As a tool adds up: each broker name of the route, at its broker id 0."""
    async with name_server(tmp_path / "namesrv") as server:
        settings = {**LISTEN, "namesrv": [server.address]}
        async with brokers(tmp_path, 3, settings) as cluster, AsyncExitStack() as stack:
            master = await cluster.master()
            await filled(await stack.enter_async_context(asking(master.remoting.address)))
            await until(lambda: "t" in server.name_server.tables.topics())
            await until(lambda: len(server.info().brokers) == 3)
            names = await stack.enter_async_context(asking(server.address))
            route = await names.body(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t")
            addresses = [one["brokerAddrs"]["0"] for one in route["brokerDatas"]]
            askers = [await stack.enter_async_context(asking(address)) for address in addresses]
            assert len(askers) == 4
            found, behind, queues, put = 0, 0, 0, 0
            for asker in askers:
                answer = await asker.ask(RequestCode.QUERY_MESSAGE, topic="t", key="k", maxNum=32)
                found += _records(answer)
                stats = _json(await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))
                behind += sum(one["brokerOffset"] - one["consumerOffset"] for one in _rows(stats))
                stats = _json(await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t"))
                queues += sum(one["maxOffset"] - one["minOffset"] for one in _rows(stats))
                runtime = await asker.body(RequestCode.GET_BROKER_RUNTIME_INFO)
                put += int(runtime["table"]["msgPutTotalTodayNow"])
            assert (found, behind, queues, put) == (3, 2, 3, 3)


def _json(answer: RemotingCommand) -> Any:
    """Rows of tables whose keys are objects."""
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.body


def _rows(body: bytes) -> list[Mapping[str, int]]:
    """Values of the offset table, whose keys are objects and so no JSON."""
    text = body.decode().split('"offsetTable":')[1]
    return [json.loads("{" + part.split("}")[0] + "}") for part in text.split(":{")[1:]]


def _records(answer: RemotingCommand) -> int:
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return 0
    assert answer.code == ResponseCode.SUCCESS, answer
    count, at = 0, 0
    while at < len(answer.body):
        at += int.from_bytes(answer.body[at : at + 4])
        count += 1
    return count


async def test_a_send_only_port_has_queues_without_messages(ports: tuple[Asker, Asker]) -> None:
    main, send_only = ports
    await filled(main)
    queue = {"topic": "t", "queueId": 0}
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert (await send_only.get(code, **queue))["offset"] == "0"
    found = await send_only.get(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **queue, timestamp=1 << 50)
    assert found["offset"] == "0"
    assert (await send_only.get(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue))["timestamp"] == "-1"
    known = await send_only.get(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **queue)
    assert known["offset"] == "0"
    await send_only.get(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=3
    )
    assert (await main.get(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **queue))["offset"] == "1"
    pulled = await send_only.ask(
        RequestCode.PULL_MESSAGE, consumerGroup="g", **queue, queueOffset=2, maxMsgNums=32, sysFlag=4
    )
    assert (pulled.code, pulled.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")
    popped = await send_only.ask(RequestCode.POP_MESSAGE, consumerGroup="g", topic="t", pollTime=0)
    assert popped.code == ResponseCode.POLLING_TIMEOUT


async def test_a_pull_at_a_send_only_port_waits_as_long_as_its_client_asks(
    ports: tuple[Asker, Asker],
) -> None:
    """The client pulls again immediately: it would keep both ends busy."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    fields = {"consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0}
    await ports[1].ask(
        RequestCode.PULL_MESSAGE, **fields, sysFlag=6, suspendTimeoutMillis=ONE_SECOND_MS, subscription="*"
    )
    assert loop.time() - since >= 0.99


async def test_messages_sent_to_the_send_only_port_are_stored(ports: tuple[Asker, Asker]) -> None:
    main, send_only = ports
    sent = await send_only.get(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("t", 0))
    assert sent["queueOffset"] == "0"
    view = await main.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=int(sent["msgId"][-16:], 16))
    assert decode(view.body).body == b"x"
    await until_end(main, 1)


async def until_end(main: Asker, end: int) -> None:
    async with asyncio.timeout(30):
        while int((await main.get(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0))["offset"]) < end:
            pass


async def test_both_ports_know_each_client_once(ports: tuple[Asker, Asker], cluster: BrokerCluster) -> None:
    """Clients send heartbeats to each name of a route."""
    main, send_only = ports
    for asker in (main, send_only, main, send_only):
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    await send_only.get(RequestCode.HEART_BEAT, beat("c2", "g", "t"))
    for asker in (main, send_only):
        listed = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert sorted(listed["consumerIdList"]) == ["c1", "c2"]
        shown = await asker.body(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        assert sorted(one["clientId"] for one in shown["connectionSet"]) == ["c1", "c2"]


async def test_notices_go_through_the_main_port_if_the_client_has_a_connection_there(
    ports: tuple[Asker, Asker], cluster: BrokerCluster
) -> None:
    """Whichever of its connections spoke last. With the other one alone they go through that."""
    main, send_only = ports
    clients = (await cluster.master()).remoting_clients
    await send_only.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    (only,) = clients.connections("c1")
    assert clients.consumers["g"]["c1"].connection is only
    await main.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    preferred = clients.connections("c1")[0]
    assert preferred is not only and clients.consumers["g"]["c1"].connection is preferred
    await send_only.get(RequestCode.HEART_BEAT, beat("c1", "g", "u"))
    assert clients.connections("c1") == [preferred, only]
    member = clients.consumers["g"]["c1"]
    assert member.connection is preferred and [*member.data.subscriptions] == ["u"]
    main.connection.close("gone")
    await until(lambda: clients.consumers["g"]["c1"].connection is only)


@pytest.mark.parametrize("main_first", [True, False])
async def test_a_reset_that_comes_for_each_name_of_a_route_happens_once(
    ports: tuple[Asker, Asker], main_first: bool
) -> None:
    """mqadmin sends it to each name; what was committed meanwhile would be undone."""
    main, send_only = ports
    await filled(main)
    reset = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true"}
    first = await (main if main_first else send_only).ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
    queue = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    assert first.code == ResponseCode.SUCCESS
    assert (await main.get(RequestCode.QUERY_CONSUMER_OFFSET, **queue))["offset"] == "0"
    again = {**reset, "timestamp": 1 << 50}  # another one: to the end
    await main.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **again)
    second = await send_only.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
    assert (second.code, second.body) == (ResponseCode.SUCCESS, first.body)
    assert (await main.get(RequestCode.QUERY_CONSUMER_OFFSET, **queue))["offset"] == "3"
    await main.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)  # meant
    assert (await main.get(RequestCode.QUERY_CONSUMER_OFFSET, **queue))["offset"] == "0"


async def test_topics_can_be_changed_through_the_send_only_port(ports: tuple[Asker, Asker]) -> None:
    main, send_only = ports
    wanted = {
        "topic": "new",
        "readQueueNums": 3,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    await send_only.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted, defaultTopic="TBW102")
    assert (await main.body(RequestCode.GET_TOPIC_CONFIG, topic="new"))["writeQueueNums"] == 3


async def test_different_changes_through_the_send_only_port_all_take_effect(
    ports: tuple[Asker, Asker],
) -> None:
    """They differ in fields, or in the body alone."""
    main, send_only = ports
    for retries in (3, 5):
        group = json.dumps({"groupName": "g", "retryMaxTimes": retries}).encode()
        await send_only.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        shown = await main.body(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert shown["retryMaxTimes"] == retries
    await filled(main)
    queue = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    for timestamp, offset in ((0, "0"), (1 << 50, "3")):
        reset = {"topic": "t", "group": "g", "timestamp": timestamp, "isForce": "true"}
        answer = await send_only.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        assert answer.code == ResponseCode.SUCCESS
        assert (await main.get(RequestCode.QUERY_CONSUMER_OFFSET, **queue))["offset"] == offset


async def test_the_connections_of_an_address_have_one_quota_at_both_ports(tmp_path: Path) -> None:
    settings = {"remoting": {"listen": "127.0.0.1:0", "max_connections_per_address": 2}}
    async with brokers(tmp_path, 1, settings) as cluster, AsyncExitStack() as stack:
        remoting = (await cluster.master()).remoting
        assert remoting.server is not None
        for address in (remoting.address, remoting.send_address, remoting.send_address):
            asker = await stack.enter_async_context(asking(address))
            await asker.ask(9_999)
        await until(lambda: remoting.server is not None and len(remoting.server.connections) == 2)


async def test_the_send_only_port_has_a_vip_port(tmp_path: Path) -> None:
    from tests.process.cluster import free_ports

    (vip,) = free_ports(1)
    settings = {"remoting": {"listen": "127.0.0.1:0", "vip_listen": f"127.0.0.1:{vip}"}}
    async with brokers(tmp_path, 1, settings) as cluster:
        remoting = (await cluster.master()).remoting
        port = int(remoting.send_address.rpartition(":")[2])
        async with asking(f"127.0.0.1:{port - 2}") as asker, asking(f"127.0.0.1:{vip}") as main:
            assert (await asker.ask(RequestCode.QUERY_MESSAGE, topic="t", key="k")).code == (
                ResponseCode.QUERY_NOT_FOUND
            )
            assert (await main.ask(9_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
