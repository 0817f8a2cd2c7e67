"""The Java clients of RocketMQ 4.9 and 5.5, unmodified, with three nodes of ours."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.cli.local_broker import BROKER_KIND, is_writable_master
from dledger.cli.local.local_cluster import LocalCluster, LocalNode

from . import genuine

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    additions = BROKER_KIND.prepare(0)
    with LocalCluster.create(
        tmp_path_factory.mktemp("cluster"),
        base_port=0,
        data_file_size=16 << 20,
        settings=additions.settings,
        companions=additions.companions,
        remoting=additions.remoting,
    ) as running:
        running.start()
        master(running)
        yield running


def master(cluster: LocalCluster, other_than: str = "") -> LocalNode:
    def found(nodes: object) -> LocalNode | None:
        assert isinstance(nodes, list)
        return next((n for n in nodes if is_writable_master(n.owner) and n.node_id != other_than), None)

    return cluster.wait_until(found, 60, "a writable master")


@pytest.fixture(scope="module", params=["4.9", "5.5"])
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> genuine.JavaClient:
    genuine.require()
    return genuine.JavaClient(request.param, tmp_path_factory.mktemp("java"))


def servers(cluster: LocalCluster) -> str:
    return cluster.plan.companions[0].remoting_address


def got(lines: list[str]) -> list[list[str]]:
    """Body, queue, offset, tag, times, id and a property of each message that a consumer has got."""
    return [line.split()[1:] for line in lines if line.startswith("got ")]


def test_each_kind_of_message(cluster: LocalCluster, java: genuine.JavaClient) -> None:
    topic, server = f"kinds{java.name}", servers(cluster)
    said = dict(line.split(" ", 1) for line in java.run("kinds", server, topic))
    assert said["compressed"] == said["batch"] == said["delayed"] == "SEND_OK"
    consumed = got(java.run("push", server, topic, f"all{java.name}", "*", "11"))
    bodies = Counter(one[0] for one in consumed)
    wanted = ["plain", "large20000", "b0", "b1", "b2", "oneway", "late", "o0", "o1", "o2", "o3"]
    assert set(bodies) == set(wanted)
    (plain,) = [one for one in consumed if one[0] == "plain"]
    assert plain[3:] == ["a", "0", said["plain"].split()[0], "blue"]
    ordered = [one for one in consumed if one[0].startswith("o") and one[0] != "oneway"]
    assert len({one[1] for one in ordered}) == 1
    assert [one[0] for one in sorted(ordered, key=lambda one: int(one[2]))] == ["o0", "o1", "o2", "o3"]
    tagged = got(java.run("push", server, topic, f"tagged{java.name}", "batch || late", "4"))
    assert {one[0] for one in tagged} == {"b0", "b1", "b2", "late"}
    sql = got(java.run("push", server, topic, f"sql{java.name}", "sql:colour = 'blue'", "1"))
    assert [one[0] for one in sql] == ["plain"]
    inorder = got(java.run("orderly", server, topic, f"orderly{java.name}", "*", "11"))
    mine = [one[0] for one in inorder if one[0].startswith("o") and one[0] != "oneway"]
    assert mine == ["o0", "o1", "o2", "o3"]
    lite = got(java.run("lite", server, topic, f"lite{java.name}", "11"))
    assert {one[0] for one in lite} == set(wanted)


def test_a_message_that_fails_comes_again(cluster: LocalCluster, java: genuine.JavaClient) -> None:
    topic, server = f"retry{java.name}", servers(cluster)
    java.run("send", server, topic, "1", "1")
    consumed = got(java.run("retry", server, topic, f"retry{java.name}"))
    assert [(one[0], one[4]) for one in consumed] == [("0", "0"), ("0", "1"), ("0", "2")]
    dead = got(java.run("push", server, f"%DLQ%retry{java.name}", f"dead{java.name}", "*", "1"))
    assert [one[0] for one in dead] == ["0"]


def test_transactions_end_as_their_producer_says(cluster: LocalCluster, java: genuine.JavaClient) -> None:
    topic, server = f"transactions{java.name}", servers(cluster)
    said = java.run("transactions", server, topic)
    assert said.count("half SEND_OK") == 3
    assert [line.split()[1] for line in said if line.startswith("asked")] == ["UNKNOW"]
    consumed = got(java.run("push", server, topic, f"transactions{java.name}", "*", "2"))
    assert {one[0] for one in consumed} == {"COMMIT_MESSAGE", "UNKNOW"}


def test_mqadmin(cluster: LocalCluster, java: genuine.JavaClient, tmp_path: Path) -> None:
    topic, group, server = f"admin{java.name}", f"admin{java.name}", servers(cluster)
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


def test_no_send_fails_and_nothing_is_lost_while_the_master_is_killed(
    cluster: LocalCluster, java: genuine.JavaClient
) -> None:
    """50 sends a second for 20 s, consumed in order meanwhile; the master is killed in the middle."""
    topic, server, count = f"kill{java.name}", servers(cluster), 1000
    java.run("send", server, topic, "1", "1")
    with java.begin("orderly", server, topic, f"kill{java.name}", "*", str(count)) as consuming:
        consuming.wait_for("ready")
        with java.begin("send", server, topic, str(count), "20") as sending:
            sending.wait_for("sent 300 ")
            killed = master(cluster).node_id
            cluster.kill(killed)
            began = time.monotonic()
            lines = sending.finish()
        consumed = got(consuming.finish())
        took_s = time.monotonic() - began
    cluster.start_node(killed)
    master(cluster)
    failed = [line for line in lines if line.startswith("failed")]
    sent = {line.split()[1] for line in lines if line.startswith("sent")}
    longest_ms = max(int(line.split()[4]) for line in lines if line.startswith("sent"))
    seen = Counter(one[0] for one in consumed)
    reordered, newest = 0, dict[str, int]()
    for body, queue_id, *_ in consumed[1:]:
        reordered += int(body) < newest.get(queue_id, -1) and seen[body] == 1
        newest[queue_id] = max(newest.get(queue_id, -1), int(body))
    print(
        f"{java.name}: of {count} sends {len(failed)} failed, the longest took {longest_ms} ms, "
        f"{len(sent - set(seen))} lost, {reordered} "
        f"reordered, {len(consumed) - len(seen) - 1} duplicates; all consumed {took_s:.1f} s after the kill"
    )
    assert (failed, sent - set(seen), reordered) == ([], set(), 0)
