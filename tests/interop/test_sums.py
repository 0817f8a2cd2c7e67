"""Tools that add up over the broker names of a route print RocketMQ's numbers with our brokers, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.cluster import free_ports

from . import genuine, ours
from .mqadmin_lines import printed

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

_SEND = "sendMessage -t sums -p hello -k kk -b BROKER -i"
#: A message, which the group then consumes. In one JVM mqadmin sends once.
FIRST = (
    "updateTopic -c CLUSTER -t sums -r 4 -w 4",
    "updateSubGroup -c CLUSTER -g sumg -r 3",
    f"{_SEND} 0",
)
#: Another one, and what tools report of both.
THEN = (
    f"{_SEND} 2",
    "queryMsgByKey -t sums -k kk",
    "topicStatus -t sums",
    "consumerProgress -g sumg",
    "clusterList -m",
    "topicClusterList -t sums",
)


class Sums(NamedTuple):
    messages: int  # that a key finds
    queues: tuple[tuple[str, str, str, str], ...]  # broker, queue, least and greatest offset
    behind: str  # of the group
    brokers: tuple[str, ...]  # names in the cluster
    clusters: str


def sums(folder: Path, name_server: str, address: str) -> Sums:
    printed(folder, name_server, address, FIRST)
    genuine.java_client("5.5.0", folder).run("push", name_server, "sums", "sumg", "*", "1")
    said = printed(folder, name_server, address, THEN)
    found = re.findall(r"^([0-9A-F]{32,})\s", said["queryMsgByKey -t sums -k kk"], re.MULTILINE)
    rows = re.findall(r"^(\S+)\s+(\d+)\s+(\d+)\s+(\d+)", said["topicStatus -t sums"], re.MULTILINE)
    behind = re.search(r"Diff Total: (\d+)", said["consumerProgress -g sumg"])
    assert behind is not None, said["consumerProgress -g sumg"]
    brokers = re.findall(r"^DefaultCluster\s+(\S+)", said["clusterList -m"], re.MULTILINE)
    return Sums(
        len(found),
        tuple(rows),
        behind[1],
        tuple(sorted(set(brokers))),
        said["topicClusterList -t sums"].strip(),
    )


def test_mqadmin_adds_up_the_same_numbers_as_with_rocketmq(tmp_path: Path) -> None:
    """A route of ours has four broker names for one broker, so each message was counted four times."""
    genuine.require()
    names, port, *_ = free_ports(4)
    at, address = f"127.0.0.1:{names}", f"127.0.0.1:{port}"
    own = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
    (tmp_path / "admin").mkdir()
    with (
        genuine.name_server(tmp_path / "names", names),
        genuine.broker(tmp_path / "b", at, port, **own) as one,
    ):
        genuine.until_registered(tmp_path / "admin", at, address)
        theirs = sums(tmp_path / "admin", at, address)
        one.kill()
    with ours.cluster(tmp_path / "cluster") as cluster:
        server = cluster.plan.companions[0].address
        mine = sums(tmp_path / "admin", server, ours.master(cluster).remoting_address)
    print(f"{theirs=}\n  {mine=}")
    assert (theirs.messages, theirs.behind, theirs.brokers) == (2, "1", ("broker-a",))
    assert mine == theirs
