"""The Java clients of RocketMQ 4.9 and 5.5, unmodified, with three nodes of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.client import BlockingAdmin
from dledger.cli.local.local_cluster import LocalCluster

from . import genuine, ours
from .ours import master

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    with ours.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["4.9", "5.5"])
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> genuine.Client:
    genuine.require()
    return genuine.java_client(request.param, tmp_path_factory.mktemp("java"))


def servers(cluster: LocalCluster) -> str:
    return cluster.plan.companions[0].address


def got(lines: list[str]) -> list[list[str]]:
    """Body, queue, offset, tag, times, id and a property of each message that a consumer has got."""
    return [line.split()[1:] for line in lines if line.startswith("got ")]


def test_each_kind_of_message(cluster: LocalCluster, java: genuine.Client) -> None:
    topic, server = f"kinds{java.slug}", servers(cluster)
    said = dict(line.split(" ", 1) for line in java.run("kinds", server, topic))
    assert said["compressed"] == said["batch"] == said["delayed"] == "SEND_OK"
    consumed = got(java.run("push", server, topic, f"all{java.slug}", "*", "11"))
    bodies = Counter(one[0] for one in consumed)
    wanted = ["plain", "large20000", "b0", "b1", "b2", "oneway", "late", "o0", "o1", "o2", "o3"]
    assert set(bodies) == set(wanted)
    (plain,) = [one for one in consumed if one[0] == "plain"]
    assert plain[3:] == ["a", "0", said["plain"].split()[0], "blue"]
    ordered = [one for one in consumed if one[0].startswith("o") and one[0] != "oneway"]
    assert len({one[1] for one in ordered}) == 1
    assert [one[0] for one in sorted(ordered, key=lambda one: int(one[2]))] == ["o0", "o1", "o2", "o3"]
    tagged = got(java.run("push", server, topic, f"tagged{java.slug}", "batch || late", "4"))
    assert {one[0] for one in tagged} == {"b0", "b1", "b2", "late"}
    sql = got(java.run("push", server, topic, f"sql{java.slug}", "sql:colour = 'blue'", "1"))
    assert [one[0] for one in sql] == ["plain"]
    inorder = got(java.run("orderly", server, topic, f"orderly{java.slug}", "*", "11"))
    mine = [one[0] for one in inorder if one[0].startswith("o") and one[0] != "oneway"]
    assert mine == ["o0", "o1", "o2", "o3"]
    lite = got(java.run("lite", server, topic, f"lite{java.slug}", "11"))
    assert {one[0] for one in lite} == set(wanted)


def test_a_message_that_fails_comes_again(cluster: LocalCluster, java: genuine.Client) -> None:
    topic, server = f"retry{java.slug}", servers(cluster)
    java.run("send", server, topic, "1", "1")
    consumed = got(java.run("retry", server, topic, f"retry{java.slug}"))
    assert [(one[0], one[4]) for one in consumed] == [("0", "0"), ("0", "1"), ("0", "2")]
    dead = got(java.run("push", server, f"%DLQ%retry{java.slug}", f"dead{java.slug}", "*", "1"))
    assert [one[0] for one in dead] == ["0"]


def test_a_message_that_fails_in_order_becomes_a_dead_letter(
    cluster: LocalCluster, java: genuine.Client
) -> None:
    """The client sends it to the retry topic with the maximum of its tries, and does not exceed that."""
    server, topic, group = servers(cluster), f"inorder{java.slug}", f"ordered{java.slug}"
    with BlockingAdmin(server) as admin:
        admin.create_topic(topic, queues=1)
    java.run("send", server, topic, "2", "1")
    assert [one[0] for one in got(java.run("orderly-retry", server, topic, group))] == ["0", "0", "1"]
    dead = got(java.run("push", server, f"%DLQ%{group}", f"dead{group}", "*", "1"))
    assert [one[0] for one in dead] == ["0"]


def test_transactions_end_as_their_producer_says(cluster: LocalCluster, java: genuine.Client) -> None:
    topic, server = f"transactions{java.slug}", servers(cluster)
    said = java.run("transactions", server, topic)
    assert said.count("half SEND_OK") == 3
    assert [line.split()[1] for line in said if line.startswith("asked")] == ["UNKNOW"]
    consumed = got(java.run("push", server, topic, f"transactions{java.slug}", "*", "2"))
    assert {one[0] for one in consumed} == {"COMMIT_MESSAGE", "UNKNOW"}


def test_mqadmin(cluster: LocalCluster, java: genuine.Client, tmp_path: Path) -> None:
    topic, group, server = f"admin{java.slug}", f"admin{java.slug}", servers(cluster)
    address = master(cluster).remoting_address

    def admin(*arguments: str) -> str:
        return genuine.mqadmin(tmp_path, server, *arguments)

    assert address in admin("clusterList")
    assert "success" in admin("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    assert topic in admin("topicList").split()
    assert "broker-a-n1" in admin("topicRoute", "-t", topic)
    assert "success" in admin("updateSubGroup", "-c", "DefaultCluster", "-g", group, "-r", "3")
    said = [line.split() for line in java.run("send", server, topic, "5", "1")]
    sent = {words[1]: words[3] for words in said if words[0] == "sent"}
    java.run("push", server, topic, group, "*", "5")
    assert len(sent) == 5
    assert admin("topicStatus", "-t", topic).count("broker-a") == 2
    progress = admin("consumerProgress", "-g", group)
    assert topic in progress
    assert "Consume Diff Total: 0" in progress or "Diff Total: 0" in progress, progress
    assert sent["3"] in admin("queryMsgByKey", "-t", topic, "-k", "key3")
    assert "reset" in admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0").lower()
    assert "success" in admin("deleteSubGroup", "-c", "DefaultCluster", "-g", group)
    assert "success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", topic)
