"""Transactions of remoting producers, and what administrators ask."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.cli.connect.target import Target
from broker_adapter.client.core.requests import create_topic
from broker_adapter.config.settings import parse_settings
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import admin_bodies as bodies
from broker_adapter.endpoints.v4.bodies import QueueName
from broker_adapter.endpoints.v4.calls import NodeClients
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.node import make_executors
from broker_adapter.endpoints.v4.node_queries import NodeReport
from broker_adapter.endpoints.v4.port import RemotingPort
from broker_adapter.endpoints.v4.replies import ReplyProcessor
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.requests import TABLE
from broker_adapter.endpoints.v4.serving import (
    CheckOperator,
    NodeTopics,
    OperatorRules,
    node_processors,
    processors_of,
    register,
)
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import IllegalMessage, ResponseCode, Status, error_for
from broker_adapter.namesrv.remoting_bodies import DataVersion, encode_register_body
from broker_adapter.remoting import json_bodies
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import FrameReader, RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.wire.message import decode
from dledger import InvalidRequest
from dledger.infra.addresses import split_address
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import SUBSCRIPTION, SUSPEND, beat, pull, records
from tests.node.local import until
from tests.tls.world import TlsWorld

COMMIT, ROLLBACK = 8, 12
SENDS = [row.code for row in TABLE if row.kind.appends]
#: Requests that wait for messages.
WAITING = [row.code for row in TABLE if row.executor == "pulls"]
ADMIN_QUERIES = [row.code for row in TABLE if row.kind.is_admin_query]
OTHER_CHANGES = [row.code for row in TABLE if row.executor == "changes"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    settings = {**LISTEN, "delivery": {"check_first_ms": 50, "check_again_ms": 50}}
    async with brokers(tmp_path, 2, settings) as cluster:
        await cluster.master()
        yield cluster


def slave(cluster: BrokerCluster) -> str:
    return next(one for one in cluster.programs.values() if one.writer.expected is None).remoting.address


async def test_a_half_message_is_seen_when_it_is_committed(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        ids = []
        for body in (b"rolled back", b"committed"):
            sent = await asker.send("t", body, 0, TRAN_MSG="true", PGROUP="p", UNIQ_KEY=body.decode())
            ids.append(sent["transactionId"])
        await asker.get(RequestCode.END_TRANSACTION, transactionId=ids[0], commitOrRollback=ROLLBACK)
        await asker.get(RequestCode.END_TRANSACTION, transactionId=ids[1], commitOrRollback=COMMIT)
        found = await pull(asker, "t", 0, sysFlag=SUSPEND | SUBSCRIPTION)
        assert [one.body for one in records(found.body)] == [b"committed"]
        for wrong in ("x", "x@t"):
            answer = await asker.ask(
                RequestCode.END_TRANSACTION, transactionId=wrong, commitOrRollback=COMMIT
            )
            assert answer.code != ResponseCode.SUCCESS


async def test_a_producer_of_the_group_is_asked(cluster: BrokerCluster) -> None:
    asked: list[RemotingCommand] = []

    async def check(connection: RemotingConnection, request: RemotingCommand) -> None:
        asked.append(request)

    dispatch = Dispatch()
    dispatch.register([RequestCode.CHECK_TRANSACTION_STATE], check, Executor("all", 9, 9))
    addresses = [program.remoting.address for program in cluster.programs.values()]
    askers = [Asker(await connect(one, timeout_s=10, dispatch=dispatch)) for one in addresses]
    said = {"clientID": "c1", "producerDataSet": [{"groupName": "p"}]}
    for asker in askers:  # as clients do
        await asker.get(RequestCode.HEART_BEAT, json.dumps(said).encode())
    sent = await asker.send("t", b"x", 0, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u1")
    await until(lambda: len(asked) > 1)
    assert asked[0].fields["transactionId"] == sent["transactionId"]
    assert asked[0].fields["msgId"] == "u1"
    assert decode(asked[0].body).body == b"x"
    ends = {
        "transactionId": sent["transactionId"],
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": "true",
    }
    await asker.get(RequestCode.END_TRANSACTION, **ends)
    found = await pull(asker, "t", 0, sysFlag=SUSPEND | SUBSCRIPTION)
    assert [one.body for one in records(found.body)] == [b"x"]
    for asker in askers:
        asker.connection.close("done")


async def test_topics_and_groups_are_made_listed_and_deleted(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        fields = {"topic": "orders", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, attributes="+message.type=FIFO", **fields)
        table = (await asker.body(RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
        assert table["orders"]["readQueueNums"] == 3
        config = await asker.body(RequestCode.GET_TOPIC_CONFIG, topic="orders")
        assert config["attributes"] == {"message.type": "FIFO"}
        group = json.dumps({"groupName": "g", "retryMaxTimes": 3, "consumeMessageOrderly": True}).encode()
        await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        groups = (await asker.body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
        assert groups["g"]["retryMaxTimes"] == 3
        shown = await asker.body(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert shown["consumeMessageOrderly"] is True
        for _ in range(2):  # what is not there is deleted, too
            await asker.get(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
            await asker.get(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        program = await cluster.master()
        assert program.metadata.topic("orders") is None
        assert program.metadata.group("g") is None


@pytest.mark.parametrize("has_group", [True, False])
async def test_the_lag_of_a_group_without_an_offset_is_the_whole_queue(
    cluster: BrokerCluster, has_group: bool
) -> None:
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"m", 0)
        if has_group:
            await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        stats = await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="t")
        assert b'"queueId":0,"topic":"t"}:{"brokerOffset":1,"consumerOffset":0,"pullOffset":0,' in stats.body
        everything = await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
        assert everything.code == ResponseCode.SUCCESS and b'"offsetTable":{}' in everything.body


async def test_progress_of_a_group_and_its_reset(cluster: BrokerCluster) -> None:
    told: list[RemotingCommand] = []

    async def reset(connection: RemotingConnection, request: RemotingCommand) -> None:
        told.append(request)

    dispatch = Dispatch()
    dispatch.register([RequestCode.RESET_CONSUMER_CLIENT_OFFSET], reset, Executor("all", 9, 9))
    asker = Asker(await connect(slave(cluster), timeout_s=10, dispatch=dispatch))
    for n in range(4):
        await asker.send("t", b"%d" % n, 0)
    body = beat("c1", "g", "t").replace(b"CLUSTERING", b"BROADCASTING")
    await asker.get(RequestCode.HEART_BEAT, body)
    of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=3, **of)
    stats = await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"t"}'
    assert queue + b':{"brokerOffset":4,"consumerOffset":3,"pullOffset":3,"lastTimestamp":' in stats.body
    topic = await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    assert topic.body.startswith(b'{"offsetTable":{' + queue + b':{"lastUpdateTimestamp":')
    by_whom = await asker.body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
    assert by_whom == {"groupList": ["g"]}
    wanted = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true"}
    answer = await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **wanted)
    assert queue + b":0" in answer.body
    await until(lambda: len(told) == 1)
    assert told[0].body == answer.body
    assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "0"
    one = {"topic": "t", "group": "g", "timestamp": -1, "queueId": 0, "offset": 2}
    answer = await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **one)
    assert answer.body == b'{"offsetTable":{' + queue + b":2}}"
    assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "2"
    asker.connection.close("done")


@pytest.mark.parametrize(("timestamp", "offset"), [(-1, 4), (-2, 4), (0, 0), (1 << 50, 4)])
async def test_a_reset_without_force_goes_forward_too(
    cluster: BrokerCluster, timestamp: int, offset: int
) -> None:
    """As in RocketMQ 5, which has left the flag to the members that broadcast."""
    async with asking(slave(cluster)) as asker:
        for n in range(4):
            await asker.send("t", b"%d" % n, 0)
        of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **of)
        reset = {"topic": "t", "group": "g", "timestamp": timestamp, "isForce": "false"}
        await asker.get(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == str(offset)


async def test_traffic_of_topics_and_groups_and_progress_of_all(cluster: BrokerCluster) -> None:
    """Each node tells its own: what came by a slave is told by the master, which stored it."""
    address = (await cluster.master()).remoting.address
    async with asking(slave(cluster)) as at_slave, asking(address) as asker:
        for n in range(3):
            await at_slave.send("t", b"%d" % n, 0)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        assert len(records((await pull(asker, "t", 0)).body)) == 3
        of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=2, **of)
        put = await asker.body(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="t")
        assert {window["sum"] for window in put.values()} == {3}
        assert put["statsMinute"]["tps"] > 0
        got = await asker.body(RequestCode.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="t@g")
        assert got["statsDay"] == {"avgpt": 3.0, "sum": 3, "tps": got["statsDay"]["tps"]}
        none = await asker.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="x")
        assert none.code == ResponseCode.SYSTEM_ERROR and "not exist" in (none.remark or "")
        info = (await asker.body(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert int(info["msgPutTotalTodayNow"]) >= 3 and int(info["msgGetTotalTodayNow"]) == 3
        assert len(info["putTps"].split()) == 3 and float(info["putTps"].split()[0]) > 0
        every = await asker.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        queue = b'{"brokerName":"broker-a","queueId":0,"topic":"t"}'
        assert b'"consumeStatsList":[{"g":[{"consumeTps":' in every.body
        assert b'"totalDiff":1,"totalInflightDiff":1,' in every.body
        assert queue + b':{"brokerOffset":3,"consumerOffset":2,"pullOffset":3,"lastTimestamp":' in every.body
        reset = {"topic": "t", "group": "g", "timestamp": -1, "queueId": 0, "offset": 0}
        await asker.get(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        stats = await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
        assert queue + b':{"brokerOffset":3,"consumerOffset":0,"pullOffset":0,"lastTimestamp":' in stats.body
        orderly = await asker.body(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
        assert orderly["consumeStatsList"] == []


async def test_a_node_shows_its_connections_and_settings(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        nobody = await asker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "a || b"))
        shown = await asker.body(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        assert [one["clientId"] for one in shown["connectionSet"]] == ["c1"]
        assert shown["subscriptionTable"]["t"]["tagsSet"] == ["a", "b"]
        assert shown["subscriptionTable"]["t"]["codeSet"] == [97, 98], "the hash codes of the tags"
        by_whom = await asker.body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
        assert by_whom == {"groupList": ["g"]}, "it has no offset yet"
    async with asking(slave(cluster)) as asker, asking(slave(cluster)) as other:
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "mixed", "v"))
        await other.get(RequestCode.HEART_BEAT, beat("c2", "mixed", "t"))
        by_whom = await asker.body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
        assert by_whom == {"groupList": ["mixed"]}, "only its second member subscribes to the topic"
    async with asking(slave(cluster)) as asker:
        said = {"clientID": "c1", "producerDataSet": [{"groupName": "p"}]}
        await asker.get(RequestCode.HEART_BEAT, json.dumps(said).encode())
        producers = await asker.body(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert [one["clientId"] for one in producers["connectionSet"]] == ["c1"]
        config = await asker.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"brokerName=broker-a\n" in config.body
        info = await asker.body(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert info["table"]["brokerVersionDesc"]


def test_objects_are_keys_of_objects() -> None:
    rows = [(QueueName("t", "b", n), n) for n in range(2)]
    assert bodies.reset_offsets(rows) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:0,'
        b'{"brokerName":"b","queueId":1,"topic":"t"}:1}}'
    )


def test_what_is_no_topic_or_group_is_refused() -> None:
    with pytest.raises(IllegalMessage, match=r"message\.type"):
        bodies.changed_topic({"topic": "t", "attributes": "+message.type=x"}, None)
    for body in (b"x", b"[]", b"{}", b'{"groupName":"g","retryMaxTimes":"x"}'):
        with pytest.raises(IllegalMessage):
            bodies.changed_group(body, None)


class NoMaster:
    async def unary(self, request: Request, context: CallContext) -> bytes:
        return request.refused(error_for(Status.NOT_MASTER, "nobody"))


@asynccontextmanager
async def open_port(
    master: Any, dispatch: Dispatch, check_operator: CheckOperator | None = None
) -> AsyncIterator[RemotingPort]:
    """A node's port without anything behind it but `master`, and a command that always succeeds."""

    async def left(group: str, client_id: str) -> None:
        """Nobody holds a lock here."""

    async def done(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS)

    settings, clients = parse_settings({"remoting": {"listen": "127.0.0.1:0"}}), RemotingClients()
    node_clients = NodeClients(clients, ReplyProcessor(clients, lambda: "", lambda: 0), left)
    rules = OperatorRules(commands={RequestCode.CHANGE_BROKER_ROLE: done})
    report = NodeReport(settings, lambda: 0, Traffic(lambda: 0.0, lambda: 0), dict, dict)
    executors, topics = make_executors(settings.remoting), NodeTopics(Mock(Directory), AsyncMock())
    elsewhere = NodeSends({}, lambda: False, lambda calls: None, timeout_s=5.0)
    node = node_processors(settings, master, topics, node_clients, rules, report, executors, elsewhere)
    wait_s = settings.remoting.send_queue_wait_ms / 1000
    register(
        dispatch,
        processors_of(node, check_operator),
        executors,
        most_send_wait_s=wait_s,
        together=node.forwarding.store_together,
    )
    port = RemotingPort(settings.remoting, "127.0.0.1:1", dispatch, None, allow_plaintext=False)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


async def test_sends_and_nothing_else_are_refused_when_their_turn_comes_late() -> None:
    """Whoever sent one may have given up, and sent it to another broker."""
    clock_s = count(step=2)
    dispatch = Dispatch(now=lambda: next(clock_s))  # two seconds from arrival to turn
    async with open_port(NoMaster(), dispatch) as port, asking(port.address) as asker:
        for send in SENDS:
            answer = await asker.ask(send)
            assert answer.code == ResponseCode.SYSTEM_BUSY and "808" in (answer.remark or "")
        for other in (*OTHER_CHANGES, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION, ADMIN_QUERIES[0]):
            assert (await asker.ask(other)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        # Of requests that go on to the master, too, one-way ones have no answer.
        reader, writer = await asyncio.open_connection(*split_address(port.address))
        writer.write(encode(RemotingCommand.oneway(RequestCode.UPDATE_CONSUMER_OFFSET)))
        writer.write(encode(RemotingCommand(ADMIN_QUERIES[0], opaque=7)))
        frames, answer = FrameReader(), None
        while answer is None:
            frames.feed(await reader.read(1000))
            answer = frames.next()
        assert (answer.opaque, frames.buffered) == (7, 0)
        writer.close()


async def test_what_waits_for_messages_ends_with_its_connection_and_a_send_does_not() -> None:
    """What comes next is for a consumer that is there."""
    begun, ended = list[int](), list[int]()

    class Waiting:
        async def unary(self, request: RemotingRequest, context: CallContext) -> bytes:
            code = request.command.code
            begun.append(code)
            try:
                await asyncio.Future()
            finally:
                ended.append(code)
            return b""

    dispatch = Dispatch()
    codes = (*WAITING, SENDS[0])
    async with open_port(Waiting(), dispatch) as port:
        async with asking(port.address) as asker:
            for code in codes:
                asker.connection.notify(RemotingCommand.oneway(code, {"sysFlag": str(SUBSCRIPTION)}))
            await until(lambda: sorted(begun) == sorted(codes))
        await until(lambda: sorted(ended) == sorted(WAITING))
        await dispatch.stop()
        assert ended[-1] == SENDS[0]


async def test_changes_need_an_operator_where_nodes_know_operators() -> None:
    def refuse(names: Mapping[str, Iterable[bytes]]) -> None:
        assert names == {}, "it has shown none"
        raise InvalidRequest("no operator")

    for check, code in ((refuse, ResponseCode.NO_PERMISSION), (None, ResponseCode.SERVICE_NOT_AVAILABLE)):
        async with (
            open_port(NoMaster(), Dispatch(), check) as port,
            asking(port.address) as asker,
        ):
            changed = (await asker.ask(RequestCode.CHANGE_BROKER_ROLE)).code
            assert changed == (ResponseCode.SUCCESS if check is None else code), "what this node does"
            for row in TABLE:
                if row.for_operators and row.handler is not None:
                    assert (await asker.ask(row.code)).code == code
            assert (await asker.ask(ADMIN_QUERIES[0])).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_member_is_asked_what_it_does(cluster: BrokerCluster) -> None:
    asked: list[RemotingCommand] = []

    async def running(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        asked.append(request)
        return request.answer(0, body=b"{busy}")

    dispatch = Dispatch()
    dispatch.register([RequestCode.GET_CONSUMER_RUNNING_INFO], running, Executor("all", 9, 9))
    member = Asker(await connect(slave(cluster), timeout_s=10, dispatch=dispatch))
    await member.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    of = {"consumerGroup": "g", "jstackEnable": "true"}
    async with asking(slave(cluster)) as asker:
        answer = await asker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="c1", **of)
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"{busy}")
        assert asked[0].fields == {"clientId": "c1", **of}
        gone = await asker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="c2", **of)
        assert (gone.code, "not online" in (gone.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    member.connection.close("done")


async def test_a_member_is_given_a_message_out_of_turn(cluster: BrokerCluster) -> None:
    """Connected to a slave, which asks the master for the message."""
    given: list[RemotingCommand] = []

    async def consume(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        given.append(request)
        return request.answer(0, "well", body=b"{consumed}")

    dispatch = Dispatch()
    dispatch.register([RequestCode.CONSUME_MESSAGE_DIRECTLY], consume, Executor("all", 9, 9))
    member = Asker(await connect(slave(cluster), timeout_s=10, dispatch=dispatch))
    await member.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    async with asking(slave(cluster)) as asker:
        sent = await asker.send("t", b"again", 0)
        of = {"consumerGroup": "g", "clientId": "c1", "msgId": sent["msgId"]}

        async def told(**fields: object) -> tuple[int, str | None, bytes]:
            answer = await asker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **(of | fields))
            return answer.code, answer.remark, answer.body

        assert await told() == (ResponseCode.SUCCESS, "well", b"{consumed}")
        assert given[0].fields == of | {"brokerName": "broker-a"}
        found = decode(given[0].body)
        assert (found.topic, found.body, found.queue_offset) == ("t", b"again", 0)
        for fields, code, problem in (
            ({"clientId": "c2"}, ResponseCode.SYSTEM_ERROR, "The Consumer <g> <c2> not online"),
            ({"msgId": "7"}, ResponseCode.MESSAGE_ILLEGAL, "736 MESSAGE_ID_INVALID"),
            (
                {"msgId": sent["msgId"][:16] + f"{1 << 40:016X}"},
                ResponseCode.QUERY_NOT_FOUND,
                "742 MESSAGE_NOT_FOUND",
            ),
        ):
            ended, remark, _ = await told(**fields)
            assert (ended, problem in (remark or "")) == (code, True), (fields, remark)
        assert len(given) == 1
    member.connection.close("done")


@pytest.mark.parametrize("names", [{}, {"admin_names": ["ops"]}])
async def test_at_a_broker_that_names_no_operators_only_members_change(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    world = TlsWorld(tmp_path)
    section = world.section(world.files("n1"), **names)
    async with brokers(tmp_path, 1, LISTEN, tls_of={"n1": section}) as cluster:
        program = await cluster.master()
        for who, may in (("app", False), ("ops", bool(names)), ("n1", True)):
            files = world.files(who, hosts=(who, "127.0.0.1") if who == "n1" else (), folder="clients")
            context = Target([], [], files, 1.0).client_tls
            connection = await connect(program.remoting.address, timeout_s=20, tls=context)
            made = create_topic(TopicConfig(f"of-{who}", 1, 1))
            answer = await connection.invoke(made, 40)
            nobody = {"consumerGroup": "g", "clientId": "c", "msgId": "7F00000100002A9F" + "0" * 16}
            given = await connection.invoke(RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, nobody), 40)
            assert (given.code == ResponseCode.NO_PERMISSION) is not may, given.remark
            connection.close("done")
            assert answer.code == (ResponseCode.SUCCESS if may else ResponseCode.NO_PERMISSION), who
            assert (program.metadata.topic(f"of-{who}") is not None) is may, who


_LONG = ("all_topics", "all_groups", "topic_stats", "consume_stats", "all_consume_stats", "all_offsets")


async def test_texts_of_long_answers_are_made_beside_the_event_loop(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, bool] = {}

    def watched(name: str) -> Callable[..., bytes]:
        make = getattr(bodies, name)

        def made_by(*args: Any) -> bytes:
            made[name] = threading.current_thread() is threading.main_thread()
            return make(*args)

        return made_by

    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **of)
        for name in _LONG:
            monkeypatch.setattr(bodies, name, watched(name))
        await asker.body(RequestCode.GET_ALL_TOPIC_CONFIG)
        await asker.body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t")
        await asker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
        await asker.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        await asker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert made == dict.fromkeys(_LONG, False)


def test_long_tables_are_encoded_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single call of the encoder keeps all threads waiting, that of the event loop among them."""
    longest = 0

    def dumps(value: object, **options: Any) -> str:
        nonlocal longest
        text = encode(value, **options)
        longest = max(longest, len(text))
        return text

    encode = json.dumps
    topics = [TopicConfig(f"t{n}", read_queues=8, write_queues=8) for n in range(500)]
    stats = [QueueStats("t", n, 0, 1, 2) for n in range(500)]
    monkeypatch.setattr(json_bodies.json, "dumps", dumps)
    tables = [
        bodies.all_topics(topics, 1),
        bodies.all_groups((GroupConfig(f"g{n}") for n in range(500)), 1),
        bodies.topic_stats("b", stats),
        bodies.consume_stats([bodies.Progress(QueueName("t", "b", n), 1, 1, 1, 1) for n in range(500)], 0.0),
        encode_register_body(topics, DataVersion()),
    ]
    assert min(map(len, tables)) > 10_000
    assert longest < 1_000
