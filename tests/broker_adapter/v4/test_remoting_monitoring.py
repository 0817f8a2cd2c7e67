"""What monitoring of RocketMQ (rocketmq-exporter, the dashboard) asks a broker, as it parses answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.endpoints.v4 import admin_bodies
from broker_adapter.errors import ResponseCode
from broker_adapter.namesrv.values import Registration
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.server.broker_status import LogFacts, runtime_rows
from tests.broker_adapter.cluster import BrokerCluster, brokers, in_step
from tests.broker_adapter.v4.asker import LISTEN, asking

#: The exporter gives up the whole table for one of these that is not there, or is no number.
WHOLE = (
    *("msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning", "msgGetTotalTodayMorning"),
    *("msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning", "bootTimestamp", "brokerVersion"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills"),
    *("pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize", "pullThreadPoolQueueSize"),
    *("sendThreadPoolQueueSize", "queryThreadPoolQueueCapacity", "sendThreadPoolQueueCapacity"),
    *("pullThreadPoolQueueCapacity", "commitLogMinOffset", "commitLogMaxOffset", "dispatchMaxBuffer"),
    *("pageCacheLockTimeMills", "getMessageEntireTimeMax", "putMessageEntireTimeMax", "putMessageTimesTotal"),
    *("startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp", "remainTransientStoreBufferNumbs"),
    *("dispatchBehindBytes", "putMessageSizeTotal"),
)
DOUBLES = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
RATES = ("putTps", "getMissTps", "getTransferedTps", "getTransferredTps", "getTotalTps", "getFoundTps")
UNITS = "KMGTPE"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        await cluster.master()
        yield cluster


def read_as_the_exporter(table: dict[str, str]) -> dict[str, float]:
    """Numbers by name; KeyError, ValueError or IndexError where BrokerRuntimeStats would throw."""
    found: dict[str, float] = {name: int(table[name]) for name in WHOLE}
    found |= {name: float(table[name]) for name in DOUBLES}
    found |= {name: float(table[name].split(" ")[2]) for name in RATES}
    found["remainHowManyDataToFlush"] = float(table["remainHowManyDataToFlush"].split(" ")[0])
    words = table["commitLogDirCapacity"].split(" ")
    for name, at in (("total", 2), ("free", 6)):
        unit = words[at + 1][:-1]
        found[name] = float(words[at]) * 1024 ** (0 if unit == "B" else UNITS.index(unit[0]) + 1)
    assert table["putMessageDistributeTime"] == "null", "what the exporter takes for nothing"
    assert re.fullmatch(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", table["runtime"])
    return found


async def test_the_table_of_a_brokers_runtime_has_all_that_the_exporter_parses(
    cluster: BrokerCluster,
) -> None:
    master = await cluster.master()
    for program in cluster.programs.values():
        async with asking(program.remoting.address) as asker:
            await asker.send("t", b"x" * 1000, 0)
            await in_step(*cluster.programs.values())
            table = (await asker.body(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        found = read_as_the_exporter(table)
        assert found["commitLogMaxOffset"] > found["commitLogMinOffset"] + 1000
        assert 0 < found["free"] <= found["total"] and 0 < found["commitLogDiskRatio"] < 1
        assert found["dispatchBehindBytes"] == 0
        assert found["sendThreadPoolQueueCapacity"] == master.settings.remoting.max_sends
        assert found["sendThreadPoolQueueSize"] == 0


def test_sizes_and_times_are_written_as_rocketmq_writes_them() -> None:
    facts = LogFacts(5, 17, 3, 2, 3 * 1024**4, 1536, 7, 1000 * (86_400 + 3600 + 61))
    rows = runtime_rows(facts)
    assert rows["commitLogDirCapacity"] == "Total : 3.0 TiB, Free : 1.5 KiB."
    assert rows["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert rows["remainHowManyDataToFlush"] == "3 B"
    assert (rows["commitLogMinOffset"], rows["commitLogMaxOffset"]) == ("5", "17")
    assert (rows["dispatchBehindBytes"], rows["pageCacheLockTimeMills"]) == ("2", "7")
    assert runtime_rows(facts._replace(disk_total=0, disk_free=0))["commitLogDiskRatio"] == "0.0"
    assert runtime_rows(facts._replace(disk_free=900))["commitLogDirCapacity"].endswith("Free : 900.0 B.")


async def test_all_producers_of_a_node_are_told_at_once(cluster: BrokerCluster) -> None:
    address = (await cluster.master()).remoting.address
    async with asking(address) as asker:
        assert await asker.body(RequestCode.GET_ALL_PRODUCER_INFO) == {"data": {}}
        beat = {"clientID": "c1", "consumerDataSet": [], "producerDataSet": [{"groupName": "makers"}]}
        await asker.get(RequestCode.HEART_BEAT, json.dumps(beat).encode())
        data = (await asker.body(RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    (told,) = data["makers"]
    assert told["clientId"] == "c1" and told["remoteIP"].startswith("127.0.0.1:")
    assert told["language"] in admin_bodies.Language.__members__ and told["lastUpdateTimestamp"] > 0


async def test_topics_that_only_name_servers_are_told_of_have_queues_without_messages(
    cluster: BrokerCluster,
) -> None:
    """The exporter asks for the figures of each topic that a NameServer lists."""
    async with asking((await cluster.master()).remoting.address) as asker:
        for topic in ("TBW102", "DefaultCluster_REPLY_TOPIC", "DefaultCluster", "broker-a"):
            answer = await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
            assert answer.code == ResponseCode.SUCCESS, topic
            assert b'"maxOffset":0' in answer.body and b'"minOffset":0' in answer.body
        unknown = await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="unknown")
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_topic_with_the_name_of_the_cluster_is_registered_once_as_its_user_made_it(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Registration] = []
    master = await cluster.master()
    await master.broker.put_topic(TopicConfig("DefaultCluster", 3, 3))
    registrar = SimpleNamespace(update=given.append)
    monkeypatch.setattr(master, "_registrar", registrar)
    master.register()
    monkeypatch.undo()
    assert [one.write_queues for one in given[-1].topics if one.name == "DefaultCluster"] == [3]
