"""Brokers and mqadmin of RocketMQ with our NameServer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.namesrv.server import NameServerProcess
from tests.broker_adapter.namesrv.helpers import name_server
from tests.node.local import until
from tests.process.cluster import free_ports

from . import genuine

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    genuine.require()
    async with name_server(tmp_path / "namesrv") as process:
        yield process


def published(process: NameServerProcess) -> dict[int, str]:
    return {entry.broker_id: entry.address for entry in process.info().brokers}


async def test_a_master_and_its_slave_find_each_other(process: NameServerProcess, tmp_path: Path) -> None:
    """One compresses its registrations, and 5.5 denies that; a slave catches up through the HA address."""
    master, _, slave, _ = free_ports(4)
    with (
        genuine.broker(tmp_path / "a", process.address, master, compressedRegister="true") as first,
        genuine.broker(tmp_path / "b", process.address, slave, brokerRole="SLAVE", brokerId=1) as second,
    ):
        await until(lambda: len(published(process)) == 2)
        assert published(process) == {0: f"127.0.0.1:{master}", 1: f"127.0.0.1:{slave}"}
        await asyncio.to_thread(_administer, process, tmp_path / "admin", master)
        first.kill()
        await until(lambda: published(process) == {1: f"127.0.0.1:{slave}"})
        second.terminate()
        await until(lambda: published(process) == {})


def _administer(process: NameServerProcess, home: Path, master: int) -> None:
    def admin(*arguments: str) -> str:
        return genuine.mqadmin(home, process.address, *arguments)

    assert f"127.0.0.1:{master}" in admin("clusterList")
    assert "create topic" in admin("updateTopic", "-b", f"127.0.0.1:{master}", "-t", "orders", "-w", "6")
    assert _route(admin("topicRoute", "-t", "orders"))["queueDatas"][0]["writeQueueNums"] == 6
    assert "orders" in admin("topicList").split()
    assert "OK" in admin("wipeWritePerm", "-b", "java-a")
    assert _route(admin("topicRoute", "-t", "orders"))["queueDatas"][0]["perm"] == 4
    assert "OK" in admin("addWritePerm", "-b", "java-a")
    assert "success" in admin("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "orders", "-v", "java-a:6")
    assert _route(admin("topicRoute", "-t", "orders"))["orderTopicConf"] == "java-a:6"
    assert "success" in admin("deleteTopic", "-t", "orders", "-c", "main")
    assert "listenPort" in admin("getNamesrvConfig")


def _route(printed: str) -> Any:
    """mqadmin prints the numbers of brokers without quotes."""
    text = printed[printed.index("{") : printed.rindex("}") + 1]
    for number in range(2):
        text = text.replace(f"\t{number}:", f'\t"{number}":')
    return json.loads(text)
