"""mqadmin 5.5.0 and 4.9.8: each sub-command ends with our brokers as it ends with RocketMQ's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from tests.process.cluster import free_ports

from . import genuine, mqadmin_lines, ours
from .mqadmin_lines import outcome, printed

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/remoting.md"


@pytest.mark.long
@pytest.mark.parametrize("lib", [genuine.LIB, genuine.CLIENT_49], ids=["5.5.0", "4.9.8"])
def test_each_sub_command_ends_as_with_rocketmq_itself(tmp_path: Path, lib: Path) -> None:
    genuine.require()
    lines = mqadmin_lines.LINES_49 if lib == genuine.CLIENT_49 else mqadmin_lines.LINES
    names, port, *_ = free_ports(4)
    at, address = f"127.0.0.1:{names}", f"127.0.0.1:{port}"
    own = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
    (tmp_path / "admin").mkdir()
    with (
        genuine.name_server(tmp_path / "names", names),
        genuine.broker(tmp_path / "b", at, port, **own) as one,
    ):
        genuine.until_registered(tmp_path / "admin", at, address)
        theirs = printed(tmp_path / "admin", at, address, lines, lib)
        one.kill()
    with ours.cluster(tmp_path / "cluster") as cluster:
        server = cluster.plan.companions[0].address
        mine = printed(tmp_path / "admin", server, ours.master(cluster).remoting_address, lines, lib)
    ends = {line: (outcome(mine[line]), outcome(theirs[line])) for line in lines}
    if lib == genuine.CLIENT_49:  # it fails at RocketMQ 5.5, which sends that number under its new name alone
        mine_ended, theirs_ended = ends.pop("clusterList")
        assert mine_ended == "done"
        assert "getTransferedTps" in theirs_ended
    assert not {line: both for line, both in ends.items() if both[0] != both[1]}
    first_words = {line: (mine[line].split()[:3], theirs[line].split()[:3]) for line in _SAME_TABLE}
    assert not {line: both for line, both in first_words.items() if both[0] != both[1]}


#: Those that print a table: its columns are the same.
_SAME_TABLE = (
    *("topicStatus -t admt", "topicList -c", "clusterList", "clusterList -m", "statsAll -t admt"),
    *("consumerProgress", "skipAccumulatedMessage -g admg -t admt", "queryMsgByKey -t admt -k kk"),
    *("sendMessage -t admt -p hello -k kk -c tagA", "checkMsgSendRT -t admt -a 3 -s 10"),
)


@pytest.mark.long
@pytest.mark.parametrize("lib", [genuine.LIB, genuine.CLIENT_49], ids=["5.5.0", "4.9.8"])
def test_offsets_are_cloned_to_a_group_that_was_reset_on_a_new_master(tmp_path: Path, lib: Path) -> None:
    """A master refuses commits of strangers to such a group for a minute."""
    genuine.require()
    (tmp_path / "admin").mkdir()
    with ours.cluster(tmp_path / "cluster") as cluster:
        server = cluster.plan.companions[0].address
        address = ours.master(cluster).remoting_address
        consumed = asyncio.run(_consume_and_reset(server))
        line = "cloneGroupOffset -s source -d target -t cloned -o false"
        said = printed(tmp_path / "admin", server, address, [line], lib)[line]
        assert "clone group offset success" in said
        assert asyncio.run(_offsets(server, "target")) == consumed


async def _consume_and_reset(server: str) -> dict[MessageQueue, int]:
    """The offsets of `source` after that; `target` is at the begin."""
    queues = [MessageQueue("cloned", "broker-a", queue) for queue in range(2)]
    async with Admin(server) as admin, Producer("p", server) as producer:
        await admin.create_topic("cloned", queues=len(queues))
        for number in range(5):
            await producer.send(Message("cloned", b"%d" % number), queue=queues[number % 2])
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        got: list[MessageExt] = []
        consumer = PushConsumer("source", server, got.extend, consume_from=first)
        consumer.subscribe("cloned")
        async with consumer:
            await genuine.eventually(lambda: _has(got, 5), 60)
        for queue in queues:
            await admin.reset_offset("target", queue, 0)
    assert await _offsets(server, "target") == dict.fromkeys(queues, 0)
    return await _offsets(server, "source")


async def _has(got: list[MessageExt], count: int) -> bool:
    return len(got) >= count


async def _offsets(server: str, group: str) -> dict[MessageQueue, int]:
    async with Admin(server) as admin:
        found = await admin.group_offsets(group)
    return {queue: offset for queue, offset in found.items() if queue.topic == "cloned"}


def test_the_page_names_each_sub_command() -> None:
    page = DOCUMENT.read_text()
    assert not [line for line in mqadmin_lines.LINES if f"`{line.split()[0]}`" not in page]
