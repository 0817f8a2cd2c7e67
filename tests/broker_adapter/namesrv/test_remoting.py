"""The NameServer in RocketMQ's remoting protocol, asked as brokers, clients and mqadmin of RocketMQ ask."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import NameServerBusy, NameServerRefused, ResponseCode
from broker_adapter.namesrv import remoting_bodies as bodies
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.remoting_bodies import DataVersion
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from tests.broker_adapter.v4.asker import pipelining

from .helpers import ORDERS, PAYMENTS, name_server, registration, until

JAVA = {
    "brokerName": "java-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "main",
    "brokerId": "0",
    "haServerAddr": "10.0.0.1:10912",
    "enableActingMaster": "false",
}
OURS = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.1.1:10911",
    "clusterName": "main",
    "brokerId": "0",
    "nodeId": "n1",
    "term": "5",
    "roleEpoch": "9",
}

FIRST = DataVersion(0, 1, 1)


class Asker:
    """One connection to the NameServer."""

    def __init__(self, connection: RemotingConnection) -> None:
        self.connection = connection

    async def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.connection.invoke(RemotingCommand(code, dict(fields or {}), body), 10)

    async def get(self, code: int, **fields: str) -> Any:
        """The body of an answer that is a success."""
        answer = await self.ask(code, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body) if answer.body else dict(answer.fields)

    async def register(
        self,
        fields: Mapping[str, str] = JAVA,
        topics: Sequence[TopicConfig] = (ORDERS,),
        version: DataVersion = FIRST,
        **changed: str,
    ) -> RemotingCommand:
        body = bodies.encode_register_body(topics, version)
        return await self.ask(
            RequestCode.REGISTER_BROKER,
            {**fields, "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), **changed},
            body,
        )

    async def route(self, topic: str) -> Any:
        return await self.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)


@asynccontextmanager
async def asking(process: NameServerProcess, local_host: str = "") -> AsyncIterator[Asker]:
    connection = await connect(process.address, timeout_s=10, local_host=local_host)
    try:
        yield Asker(connection)
    finally:
        connection.close("the test is over")


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    async with name_server(tmp_path) as process:
        yield process


@pytest.fixture
async def asker(process: NameServerProcess) -> AsyncIterator[Asker]:
    async with asking(process) as asker:
        yield asker


def compressed(topics: Sequence[TopicConfig], version: DataVersion = FIRST) -> bytes:
    """As RegisterBrokerBody.encode(true) writes it."""

    def piece(text: str) -> bytes:
        raw = text.encode()
        return len(raw).to_bytes(4) + raw

    lines = [f"{t.name} {t.read_queues} {t.write_queues} {t.perm} SINGLE_TAG {{}}" for t in topics]
    return zlib.compress(
        piece(json.dumps(version.to_json()))
        + len(lines).to_bytes(4)
        + b"".join(map(piece, lines))
        + piece('["10.0.0.9:1"]')
        + b"\0\0\0\0"
    )


async def test_a_broker_of_rocketmq_is_in_the_routes(asker: Asker) -> None:
    answer = await asker.register()
    assert (answer.code, answer.fields, json.loads(answer.body)) == (0, {}, {"table": {}})
    assert await asker.route("orders") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "java-a",
                "cluster": "main",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "java-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
        ],
    }


async def test_a_topic_without_route_is_told_in_rocketmqs_words(asker: Asker) -> None:
    answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: nowhere"


@pytest.mark.parametrize("said", ["true", "false"], ids=["said so", "denied, as RocketMQ 5.5 does"])
async def test_a_compressed_registration_is_read(asker: Asker, said: str) -> None:
    body = compressed([ORDERS, PAYMENTS])
    fields = {**JAVA, "compressed": said, "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
    assert (await asker.ask(RequestCode.REGISTER_BROKER, fields, body)).code == 0
    assert await asker.get(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {
        "topicList": ["orders", "payments"]
    }
    assert (await asker.route("orders"))["filterServerTable"] == {"10.0.0.1:10911": ["10.0.0.9:1"]}


def test_sums_have_no_top_bit() -> None:
    body = next(b'{"a":%d}' % i for i in range(100) if zlib.crc32(b'{"a":%d}' % i) >> 31)
    bodies.register_body(body, compressed=False, crc32=zlib.crc32(body) & 0x7FFFFFFF, max_topics=10)


async def test_a_slave_is_told_its_master_and_all_are_told_ordered_topics(asker: Asker) -> None:
    await asker.ask(
        RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "java-a:8"}
    )
    await asker.register()
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912"}
    answer = await asker.register(**slave)
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert json.loads(answer.body) == {"table": {"orders": "java-a:8"}}
    route = await asker.route("orders")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    assert route["orderTopicConf"] == "java-a:8"


async def test_a_topic_in_order_says_so_by_itself(asker: Asker) -> None:
    await asker.register(topics=[ORDERS._replace(order=True)])
    assert (await asker.route("orders"))["orderTopicConf"] == "java-a:8"


async def test_the_end_of_its_connection_unregisters_a_broker(
    process: NameServerProcess, asker: Asker
) -> None:
    async with asking(process) as broker:
        await broker.register()
        await broker.register(OURS)
        assert len(process.info().brokers) == 2
    await until(lambda: not process.info().brokers)
    assert process.info().sessions == 0
    assert (await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 17


async def test_a_broker_that_has_registered_anew_outlives_its_old_connection(
    process: NameServerProcess, asker: Asker
) -> None:
    async with asking(process) as broker:
        await broker.register()
        await asker.register()
    await until(lambda: process.info().sessions == 1)
    assert (await asker.route("orders"))["brokerDatas"]


async def test_a_broker_unregisters_itself_and_an_unknown_one_does_no_harm(asker: Asker) -> None:
    await asker.register()
    for _ in range(2):
        assert (await asker.ask(RequestCode.UNREGISTER_BROKER, JAVA)).code == 0
    assert await asker.get(RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }


async def test_of_two_masters_without_terms_the_newer_is_believed(asker: Asker) -> None:
    await asker.register()
    await asker.register(brokerAddr="10.0.0.7:10911")
    route = await asker.route("orders")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.7:10911"}


async def test_a_broker_without_terms_takes_nothing_from_one_with_them(asker: Asker) -> None:
    await asker.register(OURS)
    answer = await asker.register(brokerName="broker-a")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "783" in (answer.remark or "")
    assert (await asker.route("orders"))["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.1.1:10911"}


async def test_the_controllers_epoch_is_a_term(asker: Asker) -> None:
    await asker.register(version=DataVersion(3, 1, 1))
    old = await asker.register(brokerAddr="10.0.0.7:10911", version=DataVersion(2, 9, 9))
    assert old.code == ResponseCode.SYSTEM_ERROR
    assert (await asker.register(brokerAddr="10.0.0.7:10911", version=DataVersion(4, 1, 1))).code == 0


async def test_a_restarted_broker_counts_its_topics_from_the_beginning(asker: Asker) -> None:
    await asker.register(version=DataVersion(0, 1, 9))
    await asker.register(topics=[PAYMENTS], version=DataVersion(0, 2, 1))
    assert await asker.get(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["payments"]}


async def test_a_broker_asks_whether_it_has_to_register_anew(
    process: NameServerProcess, asker: Asker
) -> None:
    async def changed(version: DataVersion, **fields: str) -> str:
        body = bodies.dump(version.to_json())
        answer = await asker.ask(RequestCode.QUERY_DATA_VERSION, {**JAVA, **fields}, body)
        assert answer.code == 0
        return answer.fields["changed"]

    assert await changed(DataVersion(0, 1, 1)) == "true"  # it is not registered
    async with asking(process) as broker:
        await broker.register(version=DataVersion(0, 1, 1))
        assert await changed(DataVersion(0, 1, 1)) == "false"
        assert await changed(DataVersion(0, 1, 2)) == "true"
        assert await changed(DataVersion(0, 1, 1), brokerAddr="10.0.0.2:10911") == "true"
    await until(lambda: not process.info().brokers)
    assert await changed(DataVersion(0, 1, 1)) == "true"


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
async def test_who_asks_or_beats_lives(process: NameServerProcess, asker: Asker, code: int) -> None:
    await asker.register(version=DataVersion(0, 1, 1))
    tables = process.name_server.tables
    (row,) = tables.brokers(0)
    last_ms = -row.last_update_ms
    await until(lambda: process.name_server.brokers()[0].last_update_ms > 0)
    assert (await asker.ask(code, JAVA, bodies.dump(DataVersion(0, 1, 1).to_json()))).code == 0
    (row,) = tables.brokers(0)
    assert -row.last_update_ms > last_ms


async def test_write_permission_is_wiped_and_given_back(asker: Asker) -> None:
    await asker.register()
    wiped = await asker.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "java-a"})
    assert wiped.fields == {"wipeTopicCount": "1"}
    assert (await asker.route("orders"))["queueDatas"][0]["perm"] == 4
    back = await asker.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "java-a"})
    assert back.fields == {"addTopicCount": "1"}
    assert (await asker.route("orders"))["queueDatas"][0]["perm"] == 6


async def test_what_there_is_can_be_listed(asker: Asker) -> None:
    await asker.register()
    await asker.register(OURS, topics=[PAYMENTS], clusterName="other")
    assert await asker.get(RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": "10.0.1.1:10911"},
                "brokerName": "broker-a",
                "cluster": "other",
                "enableActingMaster": False,
            },
            "java-a": {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "java-a",
                "cluster": "main",
                "enableActingMaster": False,
            },
        },
        "clusterAddrTable": {"main": ["java-a"], "other": ["broker-a"]},
    }
    for cluster, topics in (("main", ["orders"]), ("other", ["payments"]), ("none", [])):
        found = await asker.get(RequestCode.GET_TOPICS_BY_CLUSTER, cluster=cluster)
        assert found == {"topicList": topics}
    system = await asker.get(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert system["topicList"] == ["broker-a", "java-a", "main", "other"]
    assert system["brokerAddr"] in {"10.0.0.1:10911", "10.0.1.1:10911"}
    config = await asker.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert b"listenPort=" in config.body


async def test_a_deleted_topic_has_no_route_until_a_broker_has_it_again(asker: Asker) -> None:
    await asker.register()
    assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})).code == 0
    assert (await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 17
    await asker.register()
    assert (await asker.route("orders"))["queueDatas"]


async def test_settings_are_put_read_listed_and_deleted(asker: Asker) -> None:
    key = {"namespace": "space", "key": "k"}
    assert (await asker.ask(RequestCode.GET_KV_CONFIG, key)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await asker.ask(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})).code == 0
    assert (await asker.ask(RequestCode.GET_KV_CONFIG, key)).fields == {"value": "v"}
    assert await asker.get(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="space") == {"table": {"k": "v"}}
    for _ in range(2):
        assert (await asker.ask(RequestCode.DELETE_KV_CONFIG, key)).code == 0
    answer = await asker.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "space"})
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


REFUSED: dict[str, dict[str, str]] = {
    "no broker id": {"brokerId": ""},
    "a broker id that is no number": {"brokerId": "١"},
    "a broker id of 20 digits": {"brokerId": "1" * 20},
    "a broker id of more than 64 bits": {"brokerId": str(1 << 63)},
    "no address": {"brokerAddr": "nowhere"},
    "an HA address that is none": {"haServerAddr": "nowhere"},
    "another sum": {"bodyCrc32": "1"},
    "a body that is not compressed": {"compressed": "true"},
    "a term that no elections lead to": {"term": str((1 << 62) + 1)},
    "a name with a space": {"brokerName": "a b"},
}


@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED)
async def test_a_wrong_registration_is_refused_and_takes_nothing(
    process: NameServerProcess, asker: Asker, changed: dict[str, str]
) -> None:
    answer = await asker.register(**changed)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert process.info().sessions == 0
    assert (await asker.register()).code == 0


BODIES: dict[str, bytes] = {
    "no JSON": b"{",
    "a list": b"[]",
    "deep JSON": b'{"a":' * 100_000,
    "a wrapper that is none": b'{"topicConfigSerializeWrapper":1}',
    "topics that are a list": b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
    "queues of text": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"readQueueNums":"4"}}}}',
    "a version of text": b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"4"}}}',
    "filter servers that are text": b'{"filterServerList":"x"}',
    "no zlib": b"x",
    "zlib of nothing": zlib.compress(b""),
    "a bomb": zlib.compress(bytes(64 << 20)),
    "a piece that ends too early": zlib.compress(b"\0\0\0\x02{"),
    "a line of three words": zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x05t 4 4"),
    "a line of words": zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x07t a b c"),
    "a large body": b"{" + bytes(8 << 20),
    "a bomb of objects": zlib.compress(b"\0\x1e\x84\x82[" + b"{}," * 666_666 + b"{}]"),
    "as many objects as text": b'{"topicConfigSerializeWrapper":{"a":[' + b"{}," * 500_000 + b"{}]}}",
    "a version that no 64 bits hold": b'{"topicConfigSerializeWrapper":{"dataVersion":{"timestamp":1%s}}}'
    % (b"0" * 19),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(NameServerRefused):
        bodies.register_body(body, compressed=False, crc32=0, max_topics=10)


MANY_TOPICS = {
    "counted before they are read": zlib.compress(b"\0\0\0\x02{}\xff\xff\xff\xff"),
    "as JSON": json.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": {f"t{i}": {} for i in range(11)}}}
    ).encode(),
}


@pytest.mark.parametrize("body", MANY_TOPICS.values(), ids=MANY_TOPICS)
def test_no_more_topics_are_read_than_there_may_be(body: bytes) -> None:
    with pytest.raises(NameServerBusy, match="topics; the limit is 10"):
        bodies.register_body(body, compressed=False, crc32=0, max_topics=10)


POISON = {
    "a flag of 41 bits": {"topicSysFlag": 1 << 40},
    "a negative flag": {"topicSysFlag": -1},
    "half a character": {"attributes": {"message.type": "\ud800"}},
    "a long word": {"attributes": {"message.type": "N" * 65}},
}


@pytest.mark.parametrize("config", POISON.values(), ids=POISON)
async def test_no_registration_takes_a_topics_route_away(
    process: NameServerProcess, asker: Asker, config: dict[str, Any]
) -> None:
    """It would go into routes that nobody can read."""
    assert (await asker.register()).code == 0
    topic = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, **config}
    wrapper = {"dataVersion": FIRST.to_json(), "topicConfigTable": {ORDERS.name: topic}}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    fields = {**JAVA, "brokerName": "evil", "brokerAddr": "10.0.0.66:10911"}
    answer = await asker.ask(RequestCode.REGISTER_BROKER, fields, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "785" in (answer.remark or "")
    async with NameServerClient([process.address]) as client:
        assert [one.broker_name for one in (await client.route(ORDERS.name)).queues] == ["java-a"]


async def test_who_may_not_register_has_no_body_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameServerProcess, "_callers", lambda _: Callers(["n1"], ["ops"]))
    async with (
        name_server(tmp_path) as process,
        asking(process) as asker,
    ):
        answer = await asker.ask(RequestCode.REGISTER_BROKER, JAVA, BODIES["a bomb"])
        assert answer.code == ResponseCode.NO_PERMISSION and "793" in (answer.remark or "")


async def test_what_only_brokers_answer_is_not_supported(asker: Asker) -> None:
    answer = await asker.ask(RequestCode.SEND_MESSAGE_V2)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_one_address_does_not_take_all_names(tmp_path: Path) -> None:
    limits = {"max_names_per_address": 2}
    async with (
        name_server(tmp_path, limits=limits) as process,
        asking(process) as asker,
    ):
        process.name_server.register(registration("n1", name="first"), origin="127.0.0.1")
        assert (await asker.register(brokerName="second")).code == 0
        refused = await asker.register(brokerName="third")
        assert refused.code == ResponseCode.SYSTEM_BUSY and "781" in (refused.remark or "")


async def test_a_full_queue_is_counted(process: NameServerProcess, asker: Asker) -> None:
    routes = process.name_server.routes
    while routes.admit() is None:
        pass
    before = process.info().limits_hit["route"]
    answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert process.info().limits_hit["route"] == before + 1
    assert (await asker.register()).code == 0  # a queue of its own


async def test_a_connection_that_pipelines_leaves_routes_to_others(process: NameServerProcess) -> None:
    """It stopped the routes for all clients until it ended."""
    process.name_server.register(registration("n1"), origin="127.0.0.3")
    query = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    async with (
        pipelining(process.address, 1, query) as sent,
        asking(process, "127.0.0.2") as asker,
    ):
        await until(lambda: sent[0] >= 4)
        for _ in range(20):
            assert (await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 0
