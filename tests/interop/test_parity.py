"""Requests of RocketMQ's clients and tools to its broker and to ours, with equal answers.

Recalls, ordered pops, queues between the counts of a topic, resets, members of groups, and topics that are
created by the name of a cluster or broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cluster import free_ports

from . import genuine, ours
from .test_java_clients import servers

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

NAMES = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}


def test_clients_and_tools_get_the_answers_of_rocketmq(tmp_path: Path) -> None:
    genuine.require()
    client = genuine.java_client("5.5", tmp_path, "Parity")
    names, port, *_ = free_ports(4)
    at, address = f"127.0.0.1:{names}", f"127.0.0.1:{port}"
    with (
        genuine.name_server(tmp_path / "names", names),
        genuine.broker(tmp_path / "b", at, port, recallMessageEnable="true", **NAMES),
    ):
        (admin := tmp_path / "admin").mkdir()
        genuine.until_registered(admin, at, address)
        theirs = client.run(at, address, *NAMES.values())
    with ours.cluster(tmp_path / "ours") as cluster:
        master = ours.master(cluster).remoting_address
        assert client.run(servers(cluster), master, *NAMES.values()) == theirs
