"""Consumers of the remoting protocol, at any node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from broker_adapter.api import QueueStats
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4.bodies import HeartbeatData, heartbeat
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.offsets import OffsetProcessor
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.wire.delay_levels import DELAYS
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import replaced, split_properties
from tests.broker_adapter.cluster import BrokerCluster, brokers, in_step
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.node.local import until

SUSPEND, SUBSCRIPTION = 2, 4


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        await cluster.master()
        yield cluster


def slave(cluster: BrokerCluster) -> str:
    return next(one for one in cluster.programs.values() if one.writer.expected is None).remoting.address


def beat(
    client_id: str, group: str, topic: str, expression: str = "*", kind: str = "TAG", *, version: int = 1
) -> bytes:
    subscription = {"topic": topic, "subString": expression, "expressionType": kind, "subVersion": version}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}).encode()


def records(body: bytes) -> list[MessageRecord]:
    found = []
    while body:
        size = int.from_bytes(body[:4])
        found.append(decode(body[:size]))
        body = body[size:]
    return found


async def pull(asker: Asker, topic: str, offset: int, group: str = "g", **more: object) -> RemotingCommand:
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        **more,
    }
    return await asker.ask(RequestCode.PULL_MESSAGE, **fields)


async def test_what_was_sent_is_pulled_with_all_that_it_had(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        sent = [await asker.send("t", b"%d" % n, 0, TAGS=f"t{n % 2}", mine="x") for n in range(4)]
        answer = await pull(asker, "t", 1)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "4",
            "minOffset": "0",
            "maxOffset": "4",
        }
        found = records(answer.body)
        assert [(one.body, one.queue_offset) for one in found] == [(b"1", 1), (b"2", 2), (b"3", 3)]
        assert split_properties(found[0].properties) == {"TAGS": "t1", "mine": "x"}
        assert found[0].offset_id == sent[1]["msgId"]
        tagged = await pull(asker, "t", 0, subscription="t1 || other")
        assert [one.body for one in records(tagged.body)] == [b"1", b"3"]
        sql = await pull(asker, "t", 0, subscription="mine = 'x' AND TAGS = 't0'", expressionType="SQL92")
        assert [one.body for one in records(sql.body)] == [b"0", b"2"]
        assert (await pull(asker, "t", 4)).code == ResponseCode.PULL_NOT_FOUND
        moved = await pull(asker, "t", 40)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "4")
        none = await pull(asker, "t", 0, subscription="mine = 'y'", expressionType="SQL92")
        assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")
        broken = await pull(asker, "t", 0, subscription="mine = =", expressionType="SQL92")
        assert broken.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (await pull(asker, "none", 0)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_pull_waits_for_what_comes(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker, asking(slave(cluster)) as producer:
        await producer.send("t", b"0", 0)
        waiting = asyncio.create_task(pull(asker, "t", 1, sysFlag=SUSPEND | SUBSCRIPTION))
        nodes = list(map(BrokerStatus, cluster.programs.values()))  # whoever is master by then
        await until(lambda: sum(node.shown()["held_pulls"] for node in nodes) == 1)
        await producer.send("t", b"1", 0)
        assert [one.body for one in records((await waiting).body)] == [b"1"]


async def test_what_a_client_wants_is_known_from_its_heartbeat(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0, TAGS="a")
        await asker.send("t", b"1", 0, TAGS="b")
        unknown = await pull(asker, "t", 0, sysFlag=0, subscription="")
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "b"))
        answer = await pull(asker, "t", 0, sysFlag=0, subscription="")
        assert [one.body for one in records(answer.body)] == [b"1"]
        listed = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert listed == {"consumerIdList": ["c1"]}
        program = await cluster.master()
        assert program.metadata.topic("%RETRY%g") is not None
        assert program.metadata.group("g") is not None
        await asker.get(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="g", producerGroup="")
        gone = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert gone.code == ResponseCode.SYSTEM_ERROR


async def test_a_pull_by_a_newer_subscription_than_the_heartbeats_is_refused(cluster: BrokerCluster) -> None:
    """By the older one, messages would be passed over that the client wants."""
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0, TAGS="blue")
        await asker.send("t", b"1", 0, TAGS="red")
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "red", version=100))
        early = await pull(asker, "t", 0, sysFlag=0, subscription="", subVersion=200)
        assert early.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "*", version=200))
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "red", version=100))
        answer = await pull(asker, "t", 0, sysFlag=0, subscription="", subVersion=200)
        assert [one.body for one in records(answer.body)] == [b"0", b"1"]


async def test_a_heartbeat_changes_the_expression_of_a_pull_that_waits(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "red", version=100))
        waiting = asyncio.create_task(pull(asker, "t", 1, sysFlag=SUSPEND, subscription="", subVersion=100))
        nodes = list(map(BrokerStatus, cluster.programs.values()))
        await until(lambda: sum(node.shown()["held_pulls"] for node in nodes) == 1)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", "*", version=200))
        await asker.send("t", b"1", 0, TAGS="blue")
        await asker.send("t", b"2", 0, TAGS="red")
        assert [one.body for one in records((await waiting).body)] == [b"1", b"2"]


@pytest.mark.parametrize("change", ["group", "topic"])
async def test_a_pull_that_waits_gives_nothing_that_is_forbidden_meanwhile(
    cluster: BrokerCluster, change: str
) -> None:
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0)
        await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
        waiting = asyncio.create_task(pull(asker, "t", 1, sysFlag=SUSPEND | SUBSCRIPTION))
        nodes = list(map(BrokerStatus, cluster.programs.values()))
        await until(lambda: sum(node.shown()["held_pulls"] for node in nodes) == 1)
        if change == "group":
            body = b'{"groupName":"g","consumeEnable":false}'
            await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        else:
            fields = {"topic": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 2}
            await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        await asker.get(RequestCode.SEND_MESSAGE_V2, b"1", **send_fields("t", 0))
        assert (await waiting).code == ResponseCode.NO_PERMISSION


async def test_a_member_that_broadcasts_pulls_only_if_its_group_may(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"0", 0)
        said = beat("c1", "g", "t").replace(b"CLUSTERING", b"BROADCASTING")
        await asker.get(RequestCode.HEART_BEAT, said)
        assert (await pull(asker, "t", 0, sysFlag=0)).code == ResponseCode.SUCCESS
        body = b'{"groupName":"g","consumeBroadcastEnable":false}'
        await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        await in_step(*cluster.programs.values())
        assert (await pull(asker, "t", 0, sysFlag=0)).code == ResponseCode.NO_PERMISSION
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        assert (await pull(asker, "t", 0, sysFlag=0)).code == ResponseCode.SUCCESS


async def test_a_retry_topic_has_as_many_queues_as_its_group_names(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        body = b'{"groupName":"g","retryQueueNums":3}'
        await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        await asker.get(RequestCode.HEART_BEAT, beat("c2", "other", "t"))
        topics = (await cluster.master()).metadata.topics
        queues = {name: (one.read_queues, one.write_queues) for name, one in topics.items()}
        assert queues == {"%RETRY%g": (3, 3), "%RETRY%other": (1, 1)}


async def test_members_are_told_of_others(cluster: BrokerCluster) -> None:
    address, told = slave(cluster), []

    async def notified(connection: RemotingConnection, request: RemotingCommand) -> None:
        told.append(request.fields["consumerGroup"])

    dispatch = Dispatch()
    dispatch.register([RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], notified, Executor("all", 9, 9))
    first = Asker(await connect(address, timeout_s=10, dispatch=dispatch))
    await first.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    await until(lambda: told == ["g"])
    async with asking(address) as second:
        await second.get(RequestCode.HEART_BEAT, beat("c2", "g", "t"))
        await until(lambda: told == ["g", "g"])
        await second.get(RequestCode.HEART_BEAT, beat("c2", "g", "t"))  # nothing new
        listed = await first.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert listed == {"consumerIdList": ["c1", "c2"]}
    await until(lambda: told == ["g", "g", "g"])
    first.connection.close("done")


async def test_offsets_of_groups_and_queues(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        for n in range(3):
            await asker.send("t", b"%d" % n, 0)
        where: dict[str, object] = {"topic": "t", "queueId": 0}
        assert (await asker.get(RequestCode.GET_MAX_OFFSET, **where))["offset"] == "3"
        assert (await asker.get(RequestCode.GET_MIN_OFFSET, **where))["offset"] == "0"
        assert (await asker.get(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0, **where))[
            "offset"
        ] == "0"
        assert int((await asker.get(RequestCode.GET_EARLIEST_MSG_STORETIME, **where))["timestamp"]) > 0
        of = {"consumerGroup": "g", **where}
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "0", "a new queue"
        unknown = await asker.ask(RequestCode.QUERY_CONSUMER_OFFSET, setZeroIfNotFound="false", **of)
        assert unknown.code == ResponseCode.QUERY_NOT_FOUND
        await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=2, **of)
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "2"
        await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **of)
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "2", "never back"
        beyond = await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=4, **of)
        assert beyond.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_group_starts_with_the_first_message_of_a_recreated_topic(cluster: BrokerCluster) -> None:
    """RocketMQ starts at 0 there. Answered 22, clients with default settings start at the end."""
    master = await cluster.master()
    async with asking(slave(cluster)) as asker:
        for n in range(3):
            await asker.send("t", b"%d" % n, 0)
        await asker.get(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        await asker.send("t", b"new", 0)
        of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "3"
        await asker.send("t", b"newer", 0)
        assert (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"] == "3"
        queue = master.dispatcher.queues.get("t", 0)
        assert queue is not None
        (unit,) = queue.read(4, 1)
        master.dispatcher.purge_below(unit.physical_offset)
        purged = await asker.ask(RequestCode.QUERY_CONSUMER_OFFSET, **of)
        assert purged.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_group_starts_by_its_own_settings_in_a_queue_that_was_imported_without_its_begin(
    cluster: BrokerCluster,
) -> None:
    async with asking(slave(cluster)) as asker:
        fields = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        await asker.get(RequestCode.BEGIN_QUEUE, topic="t", queueId=0, offset=7)
        await asker.send("t", b"7", 0)
        of = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        unknown = await asker.ask(RequestCode.QUERY_CONSUMER_OFFSET, **of)
        assert unknown.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("least", "end", "first", "is_new"),
    [
        (0, 9, 0, True),
        (1, 9, 0, False),
        (0, 100_001, 0, False),
        (5, 9, 5, True),
        (5, 5, 5, True),
        (6, 9, 5, False),
        (5, 9, None, False),
        (5, 200_000, 5, True),
    ],
)
async def test_a_group_begins_with_the_first_message_of_a_queue_that_is_new(
    least: int, end: int, first: int | None, is_new: bool
) -> None:
    broker = Mock()
    broker.offset = AsyncMock(return_value=None)
    broker.queue_stats = AsyncMock(return_value=QueueStats("t", 0, least, end, 0, first))
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
    request = RemotingRequest(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    answer = await OffsetProcessor(broker).query(request, CallContext("c"))
    assert answer.code == (ResponseCode.SUCCESS if is_new else ResponseCode.QUERY_NOT_FOUND)
    assert answer.fields.get("offset") == (str(least) if is_new else None)


async def test_messages_are_found_by_id_and_key(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        sent = await asker.send("t", b"x", 0, KEYS="k1 k2", UNIQ_KEY="u1")
        offset = int(sent["msgId"][-16:], 16)
        answer = await asker.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        assert records(answer.body)[0].body == b"x"
        await in_step(*cluster.programs.values())
        for key in ("k2", "u1"):
            found = await asker.ask(RequestCode.QUERY_MESSAGE, topic="t", key=key, maxNum=8)
            assert [one.body for one in records(found.body)] == [b"x"]
        none = await asker.ask(RequestCode.QUERY_MESSAGE, topic="t", key="other", maxNum=8)
        assert none.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_queue_has_one_owner(cluster: BrokerCluster) -> None:
    def wanted(client_id: str, *queue_ids: int) -> bytes:
        queues = [{"topic": "t", "brokerName": "broker-a", "queueId": one} for one in queue_ids]
        return json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": queues}).encode()

    async def lock(client_id: str, *queue_ids: int) -> list[Any]:
        found = await asker.body(RequestCode.LOCK_BATCH_MQ, wanted(client_id, *queue_ids))
        return [queue["queueId"] for queue in found["lockOKMQSet"]]

    async with asking(slave(cluster)) as asker:
        assert await lock("c1", 0, 1) == [0, 1]
        assert await lock("c2", 1, 2) == [2]
        assert await lock("c1", 1) == [1]
        await asker.get(RequestCode.UNLOCK_BATCH_MQ, wanted("c2", 1))
        assert await lock("c2", 1) == [], "not its own"
        await asker.get(RequestCode.UNLOCK_BATCH_MQ, wanted("c1", 1))
        assert await lock("c2", 1) == [1]


async def test_what_is_sent_back_comes_again_and_is_a_dead_letter_in_the_end(cluster: BrokerCluster) -> None:
    async with asking(slave(cluster)) as asker:
        sent = await asker.send("t", b"x", 0, TAGS="a", UNIQ_KEY="u1", DELAY="1")
        assert sent["recallHandle"]
        message = records((await pull(asker, "t", 0, sysFlag=SUSPEND | SUBSCRIPTION)).body)[0]
        back: dict[str, object] = {"group": "g", "delayLevel": 1, "maxReconsumeTimes": 2}
        for times in (1, 2):
            await asker.get(RequestCode.CONSUMER_SEND_MSG_BACK, offset=message.physical_offset, **back)
            again = await pull(asker, "%RETRY%g", times - 1, sysFlag=SUSPEND | SUBSCRIPTION)
            message = records(again.body)[0]
            assert (message.body, message.reconsume_times) == (b"x", times)
            assert split_properties(message.properties) == {
                "TAGS": "a",
                "UNIQ_KEY": "u1",
                "RETRY_TOPIC": "t",
                "ORIGIN_MESSAGE_ID": "u1",
                "RECONSUME_TIME": str(times),
            }
        await asker.get(RequestCode.CONSUMER_SEND_MSG_BACK, offset=message.physical_offset, **back)
        dead = records((await pull(asker, "%DLQ%g", 0, sysFlag=SUSPEND | SUBSCRIPTION)).body)[0]
        assert split_properties(dead.properties)["DLQ_ORIGIN_TOPIC"] == "t"
        # Clients that are not told that it is back send it there themselves, under its one id each time.
        own = [await asker.send("%RETRY%g", b"x", 0, UNIQ_KEY="u1") for _ in range(2)]
        assert [one["queueOffset"] for one in own] == ["2", "3"]


def test_clients_in_c_plus_plus_write_numbers() -> None:
    found = heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":1,'
        b'"consumeFromWhere":0,"subscriptionDataSet":[{"topic":"t","subString":"a","subVersion":"7"}]}]}\n'
    )
    (data,) = found.consumers
    assert data[1:4] == ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
    assert data.subscriptions["t"].version == 7
    assert not data.subscriptions["t"].is_sql


@pytest.mark.parametrize("version", [1 << 63, 10**19 - 1, str(1 << 63), -1, "9" * 5000, "٣"])
def test_a_version_of_a_subscription_is_a_long(version: object) -> None:
    subscription = {"topic": "t", "subString": "a", "subVersion": version}
    data = {"groupName": "g", "subscriptionDataSet": [subscription]}
    found = heartbeat(json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode())
    assert found.consumers[0].subscriptions["t"].version == 0


def test_properties_that_are_replaced_leave_others_as_they_are() -> None:
    text = "a\x01b\x01c\x02DELAY\x013\x02x\x01old"
    assert replaced(text, {"x": "new"}, without=DELAYS) == "a\x01b\x01c\x02x\x01new\x02"


class Connection:
    """To a client: `told` which groups have changed."""

    peer = "h:1"

    def __init__(self) -> None:
        self.told: list[str] = []

    def notify(self, command: RemotingCommand) -> None:
        self.told.append(command.fields["consumerGroup"])


def test_what_a_connection_has_said_ends_with_it() -> None:
    clients: Any = RemotingClients()
    one, two = Connection(), Connection()
    said = heartbeat(beat("c1", "g", "t"))
    clients.heard_of(one, said)
    clients.heard_of(two, said)
    clients.channel_closed(one, "gone")
    assert list(clients.consumers["g"]) == ["c1"], "it has come back over another one"
    clients.channel_closed(two, "gone")
    assert not clients.consumers


@pytest.mark.parametrize("by_its_word", [True, False])
def test_whoever_takes_the_id_of_a_member_and_goes_leaves_it_its_place(by_its_word: bool) -> None:
    """Also producers. It was away until its next heartbeat, and others consumed its queues, too."""
    clients: Any = RemotingClients()
    member, others = Connection(), [Connection(), Connection()]
    own = HeartbeatData("c1", ["p"], heartbeat(beat("c1", "g", "t", "a")).consumers)
    clients.heard_of(member, own)
    for other in others:
        for _ in range(2):
            clients.heard_of(
                other, HeartbeatData("c1", ["p"], heartbeat(beat("c1", "g", "t", "b")).consumers)
            )
    for other in reversed(others):
        assert clients.consumers["g"]["c1"].connection is other is clients.producers["p"]["c1"]
        if by_its_word:
            clients.gone(other, "g", "c1", consumes=True)
            clients.gone(other, "p", "c1", consumes=False)
        else:
            clients.channel_closed(other, "gone")
    assert clients.consumers["g"]["c1"].connection is member is clients.producers["p"]["c1"]
    assert clients.subscription(member, "g", "t").expression == "a"
    clients.channel_closed(member, "gone")
    assert not clients.consumers and not clients.producers


def test_heartbeats_in_any_order_leave_the_newest_subscription() -> None:
    """Also over two connections of one client, and of members that have said nothing of the topic."""
    clients: Any = RemotingClients()
    main, second, other = Connection(), Connection(), Connection()
    clients.heard_of(main, heartbeat(beat("c1", "g", "t", "new", version=2)))
    clients.heard_of(main, heartbeat(beat("c1", "g", "t", "old", version=1)))
    clients.heard_of(second, heartbeat(beat("c1", "g", "t", "old", version=1)))
    for one in (main, second):
        assert clients.subscription(one, "g", "t").expression == "new"
    clients.heard_of(other, heartbeat(beat("c2", "g", "other", version=9)))
    assert clients.subscription(other, "g", "t") is not None
    clients.channel_closed(main, "gone")
    assert clients.subscription(second, "g", "t").expression == "old", "a connection's words end with it"


def test_a_send_only_connection_does_not_replace_what_the_main_one_said() -> None:
    clients: Any = RemotingClients()
    main, send_only = Connection(), Connection()
    clients.add_send_only(send_only)
    clients.heard_of(main, heartbeat(beat("c1", "g", "t", "new", version=2)))
    clients.heard_of(send_only, heartbeat(beat("c1", "g", "t", "old", version=1)))
    assert clients.subscription(main, "g", "t").expression == "new"


def test_a_member_that_goes_first_does_not_come_back_for_another_of_its_id() -> None:
    clients: Any = RemotingClients()
    member, other = Connection(), Connection()
    for one in (member, other):
        clients.heard_of(one, HeartbeatData("c1", ["p"], heartbeat(beat("c1", "g", "t")).consumers))
    clients.channel_closed(member, "gone")
    clients.channel_closed(other, "gone")
    assert not clients.consumers and not clients.producers


def test_an_answer_goes_to_those_of_an_id_that_spoke_last() -> None:
    """Not to those of before, which may be dead or another's."""
    clients: Any = RemotingClients()
    said = HeartbeatData("c1", ["p"], [])
    connections = [Connection() for _ in range(6)]
    for one in (*connections, connections[0]):
        clients.heard_of(one, said)
    assert clients.connections("c1") == [connections[0], *connections[:2:-1]]
    clients.channel_closed(connections[0], "gone")
    assert clients.connections("c1") == connections[:1:-1]


def test_the_account_of_a_connection_is_that_of_its_last_heartbeat() -> None:
    """Whoever may end no transactions is shown none: an account may change."""
    clients: Any = RemotingClients()
    connection = Connection()
    for account in ("old", "new", ""):
        clients.heard_of(connection, HeartbeatData("c1", ["p"], []), account=account)
        assert clients.account(connection) == account


async def test_numbers_that_no_queue_or_record_has_are_refused(cluster: BrokerCluster) -> None:
    """As errors of the request, with a number of ours, and not as a mistake of the broker."""
    nowhere: dict[str, object] = {"topic": "t", "queueId": -1, "consumerGroup": "g"}
    first = {**nowhere, "queueId": 0}
    topic: dict[str, object] = {"topic": "u", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    half: dict[str, object] = {
        "topic": "t",
        "transactionId": "",
        "tranStateTableOffset": 0,
        "commitLogOffset": 0,
        "commitOrRollback": 8,
    }
    asked: list[tuple[int, dict[str, object], str]] = [
        (RequestCode.GET_MAX_OFFSET, nowhere, "QUEUE_UNKNOWN"),
        (RequestCode.GET_MIN_OFFSET, nowhere, "QUEUE_UNKNOWN"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**nowhere, "timestamp": 0}, "QUEUE_UNKNOWN"),
        (RequestCode.QUERY_CONSUMER_OFFSET, nowhere, "QUEUE_UNKNOWN"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {**nowhere, "commitOffset": 1}, "OFFSET_OUT_OF_RANGE"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {**first, "commitOffset": 1 << 70}, "FIELD_OUT_OF_RANGE"),
        (RequestCode.END_TRANSACTION, {**half, "tranStateTableOffset": 1 << 63}, "FIELD_OUT_OF_RANGE"),
        (RequestCode.END_TRANSACTION, {**half, "commitLogOffset": 1 << 63}, "FIELD_OUT_OF_RANGE"),
        (RequestCode.END_TRANSACTION, {**half, "commitLogOffset": (1 << 63) - 1}, "TRANSACTION_UNKNOWN"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": -1}, "MESSAGE_NOT_FOUND"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 77}, "MESSAGE_NOT_FOUND"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "readQueueNums": -1}, "FIELD_OUT_OF_RANGE"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "perm": 8}, "FIELD_OUT_OF_RANGE"),
        (RequestCode.SEND_MESSAGE_V2, send_fields("t", 1 << 20), "FIELD_OUT_OF_RANGE"),
    ]
    async with asking(slave(cluster)) as asker:
        await asker.send("t", b"x", 0)
        for code, fields, status in asked:
            answer = await asker.ask(code, **fields)
            assert answer.code != ResponseCode.SUCCESS and status in (answer.remark or ""), (code, answer)
        assert "FIELD_OUT_OF_RANGE" in ((await pull(asker, "t", 0, queueId=-1)).remark or "")
