"""The port of a node for the remoting protocol, and where clients are told that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import parse_settings
from broker_adapter.endpoints.v4.port import RemotingPort
from broker_adapter.errors import AnswerMissing, ResponseCode
from broker_adapter.namesrv.remoting_bodies import route_data
from broker_adapter.namesrv.values import PublishedRoute, SendName
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.server.broker_status import BrokerStatus
from dledger import ConfigError, TlsFiles
from dledger.infra.transport.tls import ClientTls
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.v4.asker import LISTEN
from tests.node.local import until
from tests.tls.world import TlsWorld


async def ask(address: str, code: int, **fields: str) -> RemotingCommand:
    connection = await connect(address, timeout_s=10)
    try:
        return await connection.invoke(RemotingCommand(code, fields), 10)
    finally:
        connection.close("asked")


async def test_clients_are_told_the_remoting_port_of_each_node(tmp_path: Path) -> None:
    async with name_server(tmp_path / "namesrv") as server:
        settings = {**LISTEN, "namesrv": [server.address]}
        async with brokers(tmp_path, 3, settings) as cluster:
            await send_to(await cluster.master(), "orders", [OutgoingMessage(b"x")])
            ours = {node_id: one.remoting.address for node_id, one in cluster.programs.items()}
            await until(lambda: {one.address for one in server.info().brokers} == {*ours.values()})
            await until(lambda: "orders" in server.name_server.tables.topics())
            route = await ask(server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
            told = {one["brokerName"]: one["brokerAddrs"] for one in json.loads(route.body)["brokerDatas"]}
            assert {*told["broker-a"].values()} == {*ours.values()}
            assert told["broker-a"]["0"] == (await cluster.master()).remoting.address
            for node_id, address in ours.items():
                assert told[f"broker-a-{node_id}"] == {"0": cluster.programs[node_id].remoting.send_address}
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


def shown(config: TopicConfig, *, single: bool = False) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    """Addresses by broker name, and (name, permission, queues to write to), of a broker with a master n1, a
    slave n2, and a member n3 that is down, beside one of RocketMQ's own."""
    route = PublishedRoute(
        "t",
        {"a": config, "java": TopicConfig("t", 8, 8)},
        {"a": {0: "h:1", 1: "h:2"}, "java": {0: "j:1"}},
        clusters={"a": "main", "java": "main"},
        send_names={
            "a": [
                SendName("a-n1", "s:1", is_writable=False),
                SendName("a-n2", "s:2", is_writable=True),
                SendName("a-n3", "s:1", is_writable=False),
            ]
        },
    )
    found = json.loads(route_data(route, None, single=single))
    addresses = {one["brokerName"]: one["brokerAddrs"] for one in found["brokerDatas"]}
    return addresses, [(one["brokerName"], one["perm"], one["writeQueueNums"]) for one in found["queueDatas"]]


def test_the_master_is_written_to_under_the_brokers_name_and_slaves_under_their_own() -> None:
    addresses, queues = shown(TopicConfig("t", 4, 3))
    assert addresses == {
        "a": {"0": "h:1", "1": "h:2"},
        "a-n1": {"0": "s:1"},
        "a-n2": {"0": "s:2"},
        "a-n3": {"0": "s:1"},
        "java": {"0": "j:1"},
    }
    assert queues == [("a", 6, 3), ("a-n2", 2, 3), ("java", 6, 8)]


def test_a_topic_that_takes_nothing_has_no_name_to_write_to() -> None:
    assert shown(TopicConfig("t", 4, 4, perm=4))[1] == [("a", 4, 4), ("java", 6, 8)]


def test_routes_can_have_the_brokers_name_only() -> None:
    addresses, queues = shown(TopicConfig("t", 4, 3), single=True)
    assert addresses == {"a": {"0": "h:1", "1": "h:2"}, "java": {"0": "j:1"}}
    assert queues == [("a", 6, 3), ("java", 6, 8)]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"remoting": {"listen": "h:1"}, "rocketmq_v2": {"enabled": False}}, "rocketmq_v2.enabled"),
        ({"remoting": {"listen": "nonsense"}}, "listen"),
        ({"remoting": {"client_auth": "require", "tls_mode": "permissive"}}, "enforcing"),
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


def test_certificates_of_clients_need_a_tls_section() -> None:
    settings = parse_settings({"remoting": {"listen": "127.0.0.1:0", "client_auth": "require"}}).remoting
    with pytest.raises(ConfigError, match="needs a \\[tls\\] section"):
        RemotingPort(settings, "10.0.0.1:1", Dispatch(), None, allow_plaintext=False)


@pytest.mark.parametrize(
    ("remoting", "section", "has_accounts", "is_required"),
    [
        ({}, {}, False, True),
        ({"client_auth": "none"}, {}, False, False),
        ({"tls_mode": "permissive"}, {}, False, False),
        ({}, {}, True, False),
        ({"client_auth": "require"}, {}, True, True),
        ({}, {"client_auth": "none"}, False, False),
        ({"client_auth": "require"}, {"client_auth": "none"}, False, True),
    ],
)
async def test_clients_need_a_certificate_where_certificates_decide_who_is_an_operator(
    tmp_path: Path, remoting: dict[str, Any], section: dict[str, Any], has_accounts: bool, is_required: bool
) -> None:
    """Under mutual TLS the port accepted clients without one, and answered half of the requests."""
    world = TlsWorld(tmp_path)
    settings: dict[str, Any] = {"remoting": {"listen": "127.0.0.1:0", **remoting}}
    if has_accounts:
        accounts = tmp_path / "accounts.toml"
        accounts.write_text('[[accounts]]\naccess_key = "app"\nsecret = "s"\n')
        accounts.chmod(0o600)
        settings["rocketmq_v2"] = {"access_control": str(accounts)}
    tls_of = {"n1": world.section(world.files("n1"), **section)}
    async with brokers(tmp_path, 1, settings, tls_of=tls_of) as cluster:
        program = await cluster.master()
        for address in (program.remoting.address, program.remoting.send_address):
            for files, is_answered in (
                (world.client_files(), True),
                (TlsFiles(world.ca), not is_required),
            ):
                try:
                    connection = await connect(address, timeout_s=20, tls=ClientTls(files).stream_context())
                    await connection.invoke(RemotingCommand(9999), 20)
                except AnswerMissing as error:
                    assert not is_answered and "require a certificate" in str(error)
                else:
                    assert is_answered
                    connection.close("done")
