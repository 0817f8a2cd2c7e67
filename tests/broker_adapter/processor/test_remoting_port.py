"""The port of a node for the remoting protocol, and where clients are told that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import parse_settings
from broker_adapter.errors import AnswerMissing, ResponseCode
from broker_adapter.namesrv.remoting_bodies import route_data
from broker_adapter.namesrv.values import RemotingNode, Route
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting_door.port import RemotingPort
from broker_adapter.server.broker_status import BrokerStatus
from dledger import ConfigError
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.processor.asker import LISTEN
from tests.node.local import until


async def ask(address: str, code: int, **fields: str) -> RemotingCommand:
    connection = await connect(address, timeout_s=10)
    try:
        return await connection.invoke(RemotingCommand(code, fields), 10)
    finally:
        connection.close("asked")


async def test_clients_are_told_the_remoting_port_of_each_node(tmp_path: Path) -> None:
    async with name_server(tmp_path / "namesrv", remoting_listen="127.0.0.1:0") as server:
        settings = {**LISTEN, "namesrv": [server.address]}
        async with brokers(tmp_path, 3, settings) as cluster:
            await (await cluster.master()).broker.send("orders", [OutgoingMessage(b"x")])
            ours = {node_id: one.remoting.address for node_id, one in cluster.programs.items()}
            await until(lambda: {one.remoting_address for one in server.info().brokers} == {*ours.values()})
            await until(lambda: "orders" in server.name_server.tables.topics())
            route = await ask(server.remoting_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
            told = {one["brokerName"]: one["brokerAddrs"] for one in json.loads(route.body)["brokerDatas"]}
            assert {*told["broker-a"].values()} == {*ours.values()}
            assert told["broker-a"]["0"] == (await cluster.master()).remoting.address
            for node_id, address in ours.items():
                assert told[f"broker-a-{node_id}"] == {"0": address}
                assert (await ask(address, 9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            lines = [
                f"{sample.name} {sample.labels} {sample.value:g}"
                for family in BrokerStatus(cluster.programs["n1"]).metrics()
                for sample in family.samples
            ]
            assert "broker_remoting_requests_total {'code': '-1', 'answer': '3'} 1" in lines
            await cluster.stop("n1")
            with pytest.raises(AnswerMissing):
                await ask(ours["n1"], 9999)


def test_one_name_is_read_and_one_of_each_node_is_written_to() -> None:
    nodes = [RemotingNode("n1", 0, "h:1"), RemotingNode("n2", 1, "h:2")]
    route = Route(
        "t",
        {"a": TopicConfig("t", 4, 3), "java": TopicConfig("t", 8, 8)},
        {"a": {0: "g:1", 1: "g:2"}, "java": {0: "j:1"}},
        clusters={"a": "main", "java": "main"},
        remoting={"a": nodes},
    )
    found = json.loads(route_data(route, None))
    assert {one["brokerName"]: one["brokerAddrs"] for one in found["brokerDatas"]} == {
        "a": {"0": "h:1", "1": "h:2"},
        "a-n1": {"0": "h:1"},
        "a-n2": {"0": "h:2"},
        "java": {"0": "j:1"},
    }
    assert [(one["brokerName"], one["perm"], one["writeQueueNums"]) for one in found["queueDatas"]] == [
        ("a", 4, 3),
        ("a-n1", 2, 3),
        ("a-n2", 2, 3),
        ("java", 6, 8),
    ]


def test_a_topic_that_takes_nothing_has_no_name_to_write_to() -> None:
    nodes = [RemotingNode("n1", 0, "h:1")]
    config = TopicConfig("t", perm=4)
    route = Route("t", {"a": config}, {"a": {0: "g:1"}}, clusters={"a": "main"}, remoting={"a": nodes})
    assert [one["perm"] for one in json.loads(route_data(route, None))["queueDatas"]] == [4, 0]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"remoting": {"listen": "h:1"}, "rocketmq_v2": {"enabled": False}}, "rocketmq_v2.enabled"),
        ({"remoting": {"listen": "nonsense"}}, "listen"),
    ],
)
def test_what_would_not_be_safe_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_settings(settings)


def test_plain_text_beyond_this_machine_has_to_be_allowed() -> None:
    settings = parse_settings({"remoting": {"listen": "0.0.0.0:10911"}}).remoting
    with pytest.raises(ConfigError, match="allow_plaintext"):
        RemotingPort(settings, "10.0.0.1:1", Dispatch(), None, allow_plaintext=False)
    assert RemotingPort(settings, "10.0.0.1:1", Dispatch(), None, allow_plaintext=True).address == ""


async def test_clients_are_told_the_members_host_or_what_is_advertised() -> None:
    for advertise, told in (("", "10.0.0.1"), ("broker.example:9", "broker.example:9")):
        settings = parse_settings({"remoting": {"listen": "127.0.0.1:0", "advertise": advertise}}).remoting
        port = RemotingPort(settings, "10.0.0.1:1", Dispatch(), None, allow_plaintext=False)
        assert port.advertised == ""
        await port.start()
        assert port.advertised == (told if advertise else f"{told}:{port.address.rpartition(':')[2]}")
        await port.stop()
