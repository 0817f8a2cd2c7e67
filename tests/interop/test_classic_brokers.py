"""Brokers with classic logs, ours and genuine ones: slaves of each other, and on each other's directories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.client import Admin, Message, Producer, PullConsumer, PullStatus, change_role
from dledger.cli.local.local_cluster import LocalCluster
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

FILE_SIZE = 1 << 20
OURS = {"brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "mappedFileSizeCommitLog": FILE_SIZE}
COUNT = 300


@contextmanager
def our_master(home: Path, **more: object) -> Iterator[tuple[LocalCluster, str]]:
    """One broker of ours with a classic log, and our NameServer: its address for clients. `more`: settings of
    the log."""
    additions = BROKER_KIND.prepare(0, {"store": "classic", "role": "async"})
    classic = {**additions.of_node[0]["classic"], "file_size": FILE_SIZE, **more}
    remoting = dict(additions.settings["program"]["settings"]["remoting"])
    port = free_ports(1)[0]
    remoting.update(listen=f"127.0.0.1:{port}", vip_listen=f"127.0.0.1:{port - 2}")
    with LocalCluster.create(
        home,
        nodes=1,
        base_port=0,
        settings=additions.settings,
        companions=additions.companions,
        remoting=True,
        of_node=[{"classic": classic, "remoting": remoting}],
        has_log=False,
    ) as running:
        running.start()
        running.wait_until(lambda nodes: nodes[0].owner.get("broker_role") or None, 60, "a broker")
        yield running, running.plan.companions[0].address


async def send(names: str, topic: str, begin: int, count: int) -> None:
    async with Producer("makers", names) as producer:
        for number in range(begin, begin + count):
            await producer.send(Message(topic, b"%d." % number + b"x" * 5000, keys=[f"k{number}"], tags="a"))


async def bodies(names: str, topic: str) -> list[int]:
    """The numbers of all messages of a topic."""
    found: list[int] = []
    async with PullConsumer("readers", names) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while True:
                result = await consumer.pull(queue, offset, max_messages=32)
                found += [int(one.body.partition(b".")[0]) for one in result.messages]
                offset = result.next_offset
                if result.status is not PullStatus.FOUND:
                    break
    return sorted(found)


async def until_read(names: str, topic: str, count: int) -> None:
    async def is_read() -> bool:
        try:
            return await bodies(names, topic) == list(range(count))
        except Exception:
            return False  # the broker is still being started

    await eventually(is_read)


def log_of(store: Path) -> bytes:
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files)


def ha_of(running: LocalCluster) -> dict[str, object]:
    found = running.status()[0].owner.get("ha", {})
    assert isinstance(found, dict)
    return found


async def until_followed(running: LocalCluster) -> None:
    async def is_followed() -> bool:
        ha = await asyncio.to_thread(ha_of, running)
        slaves = ha.get("slaves")
        return bool(slaves) and isinstance(slaves, list) and slaves[0]["lag_bytes"] == 0

    await eventually(is_followed)


async def test_a_genuine_slave_of_ours_goes_on_as_master(tmp_path: Path) -> None:
    genuine.require()
    port = free_ports(1)[0]
    home = tmp_path / "java"
    with our_master(tmp_path / "ours") as (running, names):
        with genuine.broker(home, names, port, **OURS, brokerRole="SLAVE", brokerId=1):
            await until_followed(running)
            async with Admin(names) as admin:
                await admin.create_topic("t", queues=2)
            await send(names, "t", 0, COUNT)
            await until_followed(running)
            ours = log_of(running.store_directory("n1"))
            end = len(ours.rstrip(b"\0"))

            async def is_equal() -> bool:
                return (await asyncio.to_thread(log_of, home / "store"))[:end] == ours[:end]

            await eventually(is_equal)

            async def knows_the_topic() -> bool:
                tables = home / "store/config/topics.json"
                return tables.exists() and "t" in json.loads(tables.read_text())["topicConfigTable"]

            await genuine.eventually(knows_the_topic, within_s=180)  # it first looks a minute after its start
            running.kill("n1")
        with genuine.broker(home, names, port, **OURS):
            await until_read(names, "t", COUNT)


async def test_a_slave_of_ours_takes_the_place_of_a_genuine_master(tmp_path: Path) -> None:
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours", broker_role="SLAVE") as (running, names):
        with genuine.broker(tmp_path / "java", names, port, **OURS):

            async def is_followed() -> bool:
                ha = await asyncio.to_thread(ha_of, running)
                return ha.get("state") == "TRANSFER"

            await eventually(is_followed)
            async with Admin(names) as admin:
                await admin.create_topic("t", queues=2)
            await send(names, "t", 0, COUNT)

            async def has_all() -> bool:
                """The bytes, and the topic, which is in none of them."""
                owner = (await asyncio.to_thread(running.status))[0].owner
                ours = await asyncio.to_thread(log_of, running.store_directory("n1"))
                theirs = await asyncio.to_thread(log_of, tmp_path / "java/store")
                return ours.rstrip(b"\0") == theirs.rstrip(b"\0") and owner.get("topics", 0) >= 1

            await eventually(has_all)
        await until_read(names, "t", COUNT)  # from the slave, whose master has stopped
        await change_role(str(running.status()[0].owner["remoting_address"]), to_master=True)

        async def is_writable() -> bool:
            return (await asyncio.to_thread(running.status))[0].owner.get("writable") is True

        await eventually(is_writable)
        await send(names, "t", COUNT, 20)
        await until_read(names, "t", COUNT + 20)


async def test_a_genuine_broker_and_ours_start_on_each_others_directory(tmp_path: Path) -> None:
    """After an orderly stop, and after SIGKILL."""
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        async with Admin(names) as admin:
            await admin.create_topic("t", queues=2)
        await send(names, "t", 0, COUNT)
        running.stop_node("n1")
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_read(names, "t", COUNT)
            async with Admin(names) as admin:
                await admin.create_topic("more", queues=2)
            await send(names, "more", 0, COUNT)
        running.start_node("n1")
        await until_read(names, "t", COUNT)
        await until_read(names, "more", COUNT)
        await send(names, "t", COUNT, 50)
        running.kill("n1")
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_read(names, "t", COUNT + 50)
            await until_read(names, "more", COUNT)
