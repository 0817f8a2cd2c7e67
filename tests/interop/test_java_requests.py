"""Request and reply, and POP, of Java clients, unmodified, with three nodes of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.cli.local.local_cluster import LocalCluster

from . import genuine, ours
from .test_java_clients import got, java, servers

__all__ = ["java"]

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]


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


def test_a_consumer_pops_and_what_failed_comes_again(cluster: LocalCluster, tmp_path: Path) -> None:
    client = genuine.java_client("5.5", tmp_path)
    server = servers(cluster)
    client.run("send", server, "popped", "8", "1")
    lines = got(client.run("pop", server, "popped", "popping", "8"))
    assert {(one[0], one[-1]) for one in lines} == {(str(number), "true") for number in range(8)}
    assert [one[4] for one in lines if one[0] == "0"] == ["0", "1"]
    assert len(lines) == 9
