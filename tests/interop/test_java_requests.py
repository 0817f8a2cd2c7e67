"""Request and reply, and POP, of Java clients, unmodified, with three nodes of ours."""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from broker_adapter.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from dledger.cli.local.local_cluster import LocalCluster
from tests.node.local import until
from tests.process.cluster import free_ports

from . import genuine, ours
from .test_java_clients import got, java, servers

__all__ = ["java"]

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    with ours.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_request_is_answered(cluster: LocalCluster, java: genuine.Client) -> None:
    topic, server = f"requests{java.slug}", servers(cluster)
    java.run("send", server, topic, "1", "1")  # the topic is there
    with java.begin("reply", server, topic, f"repliers{java.slug}") as replying:
        replying.wait_for("ready")
        assert "answer re: how" in java.run("request", server, topic, "how")
        assert "replied SEND_OK" in replying.finish()


def test_an_operator_has_a_message_consumed_out_of_turn(
    cluster: LocalCluster, java: genuine.Client, tmp_path: Path
) -> None:
    topic, group, server = f"direct{java.slug}", f"directly{java.slug}", servers(cluster)
    java.run("send", server, topic, "1", "1")
    with java.begin("push", server, topic, group, "*", "2") as consuming:
        consuming.wait_for("got ")
        said = genuine.mqadmin(tmp_path, server, "consumerConnection", "-g", group)
        client_id = re.findall(r"^(\S+) +127", said, re.MULTILINE)[0]
        consumed = consume_directly(tmp_path, server, topic, group, client_id)
        assert "consumeResult=CR_SUCCESS" in consumed, consumed
        consuming.finish()


def consume_directly(home: Path, server: str, topic: str, group: str, client_id: str) -> str:
    """The first message of a topic, by mqadmin."""
    for queue in range(4):
        found = genuine.mqadmin(
            home, server, "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", str(queue), "-o", "0"
        )
        if offset_ids := re.findall(r"^OffsetID: +(\S+)", found, re.MULTILINE):
            of = ("-i", offset_ids[0], "-g", group, "-d", client_id, "-t", topic)
            return genuine.mqadmin(home, server, "queryMsgById", *of)
    raise AssertionError(f"nothing in {topic}")


async def test_an_operator_asks_a_consumer_in_python(cluster: LocalCluster, tmp_path: Path) -> None:
    server = servers(cluster)
    listened: list[bytes] = []

    def listen(messages: Sequence[MessageExt]) -> None:
        listened.extend(one.body for one in messages)

    async with Producer("p", server) as producer:
        await producer.send(Message("asked-python", b"x"))
    consumer = PushConsumer("python", server, listen, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("asked-python")
    async with consumer:
        await until(lambda: listened == [b"x"])
        client_id = consumer.client_id
        said = await to_thread(consume_directly, tmp_path, server, "asked-python", "python", client_id)
        assert "consumeResult=CR_SUCCESS" in said
        assert listened == [b"x", b"x"]
        asked = ("consumerStatus", "-g", "python", "-i", client_id)
        said = await to_thread(genuine.mqadmin, tmp_path, server, *asked)
    assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", said), said
    assert re.search(r"asked-python +broker-a ", said), said


def test_a_consumer_pops_and_what_failed_comes_again(cluster: LocalCluster, tmp_path: Path) -> None:
    client = genuine.java_client("5.5", tmp_path)
    server = servers(cluster)
    client.run("send", server, "popped", "8", "1")
    lines = got(client.run("pop", server, "popped", "popping", "8"))
    assert {(one[0], one[-1]) for one in lines} == {(str(number), "true") for number in range(8)}
    assert [one[4] for one in lines if one[0] == "0"] == ["0", "1"]
    assert len(lines) == 9


def test_what_a_proxy_asks_about_pops_ends_as_with_rocketmq_itself(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    client = genuine.java_client("5.5", tmp_path, "Pops")
    (admin := tmp_path / "admin").mkdir()
    names, port, *_ = free_ports(4)
    at, address = f"127.0.0.1:{names}", f"127.0.0.1:{port}"
    own = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}

    def said(server: str, broker: str) -> list[str]:
        genuine.mqadmin(admin, server, "updateTopic", "-b", broker, "-t", "asked", "-r", "1", "-w", "1")
        genuine.mqadmin(admin, server, "updateSubGroup", "-b", broker, "-g", "asking")
        return client.run(server, broker, "asked", "asking")

    with genuine.name_server(tmp_path / "names", names), genuine.broker(tmp_path / "b", at, port, **own):
        genuine.until_registered(admin, at, address)
        theirs = said(at, address)
    assert said(servers(cluster), ours.master(cluster).remoting_address) == theirs
    assert theirs == [
        "notified true",
        "peeked 0 FOUND 8",
        "acknowledged OK",
        "popped [0, 1, 2, 3, 4, 5, 6, 7]",
        "peeked 19 NO_MESSAGE_IN_QUEUE 0",
        "notified false",
        "waiting 0",
        "waiting 1",
        "popped late 1",
    ]
