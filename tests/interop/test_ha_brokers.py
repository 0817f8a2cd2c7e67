"""Whole brokers as master and slave: a genuine one and ours, either way round, and both ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_adapter.client import Admin, ConsumeFromWhere, Message, Producer, PullConsumer
from broker_adapter.client.core.values import SendStatus
from broker_adapter.config.settings import parse_settings
from broker_adapter.errors import BrokerError
from broker_adapter.server.program import BrokerProgram
from dledger.node.setup.config import parse_config
from tests.broker_adapter.cluster import SMALL
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually
from .test_ha import FILE_SIZE, until_equal

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

CLUSTER, NAME, TOPIC = "main", "broker-a", "orders"
COUNT = 60


class BrokerSite(NamedTuple):
    """Of one broker. `store`: with its commitlog."""

    folder: Path
    names: str
    port: int
    is_sync: bool

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


Runner = Callable[[BrokerSite, bool], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def of_java(site: BrokerSite, is_master: bool) -> AsyncIterator[None]:
    role = ("SYNC_MASTER" if site.is_sync else "ASYNC_MASTER") if is_master else "SLAVE"
    settings = {
        "brokerClusterName": CLUSTER,
        "brokerName": NAME,
        "brokerRole": role,
        "brokerId": 0 if is_master else 1,
        "mappedFileSizeCommitLog": FILE_SIZE,
        "registerNameServerPeriod": 10_000,
        "haSendHeartbeatInterval": 500,
        "slaveReadEnable": "true",  # else it rejects pulls, whether its master is there or not
        "storePathRootDir": site.store,
    }
    with genuine.broker(site.folder, site.names, site.port, **settings):
        yield


@asynccontextmanager
async def of_ours(site: BrokerSite, is_master: bool) -> AsyncIterator[None]:
    role = ("SYNC_MASTER" if site.is_sync else "ASYNC_MASTER") if is_master else "SLAVE"
    member, ha_port, _ = free_ports(3)
    config = parse_config(
        {
            "directory": str(site.store),
            "node_id": "n1",
            "cluster_id": CLUSTER,
            "group": "g",
            "members": {"n1": f"127.0.0.1:{member}"},
        }
    )
    settings = {
        **SMALL,
        "cluster": CLUSTER,
        "name": NAME,
        "store": "classic",
        "namesrv": [site.names],
        "remoting": {
            "listen": site.address,
            "vip_listen": f"127.0.0.1:{site.port - 2}",  # where RocketMQ's slave asks for topics
        },
        "classic": {
            "broker_role": role,
            "waits_for_slaves": site.is_sync,
            "file_size": FILE_SIZE,
            "ha_listen": f"127.0.0.1:{ha_port}",
        },
    }
    program = BrokerProgram(config, parse_settings(settings))
    await program.make_node().start()
    await program.start()
    try:
        yield
    finally:
        await program.stop()
        await program.node.stop()


KINDS: dict[str, Runner] = {"java": of_java, "ours": of_ours}


async def until_known(names: str, address: str, *, is_master: bool) -> None:
    """To the NameServer, as the one or the other."""

    async def is_known() -> bool:
        try:
            async with Admin(names) as admin:
                clusters = await admin.clusters()
        except BrokerError:
            return False
        found = [one for one in clusters.get(CLUSTER, ()) if one.name == NAME]
        return any((one.master if is_master else one.addresses.get(1)) == address for one in found)

    await eventually(is_known)


async def send(names: str, numbers: range, accepted: set[SendStatus]) -> None:
    """Each until the broker says that it is where its settings want it."""
    async with Producer("makers", names) as producer:
        for number in numbers:
            message = Message(TOPIC, b"%d." % number + b"z" * 2000, keys=[f"k{number}"])

            async def is_sent(one: Message = message) -> bool:
                try:
                    return (await producer.send(one)).status in accepted
                except BrokerError:
                    return False

            await eventually(is_sent)


async def numbers_from(names: str) -> set[int]:
    """Of the messages that a consumer gets."""
    found: set[int] = set()
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    async with PullConsumer("auditors", names, consume_from=first) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = 0
            while (pulled := await consumer.pull(queue, offset, timeout=0)).messages:
                found |= {int(one.body.split(b".")[0]) for one in pulled.messages}
                offset = pulled.next_offset
    return found


async def reads(names: str, wanted: set[int]) -> None:
    async def are_there() -> bool:
        try:
            return await numbers_from(names) == wanted
        except BrokerError:
            return False

    await eventually(are_there)


async def made(names: str) -> None:
    async def is_made() -> bool:
        try:
            async with Admin(names) as admin:
                await admin.create_topic(TOPIC, queues=2)
        except BrokerError:
            return False
        return True

    await eventually(is_made)


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize(("master", "slave"), [("java", "ours"), ("ours", "java"), ("ours", "ours")])
async def test_a_slave_has_all_and_gives_it_when_its_master_is_gone(
    tmp_path: Path, master: str, slave: str, is_sync: bool
) -> None:
    genuine.require()
    names_port, master_port, _, slave_port, _ = free_ports(5)
    names = f"127.0.0.1:{names_port}"
    first = BrokerSite(tmp_path / "master", names, master_port, is_sync)
    second = BrokerSite(tmp_path / "slave", names, slave_port, is_sync)
    any_status = set(SendStatus)
    wanted = {SendStatus.SEND_OK}
    with genuine.name_server(tmp_path / "names", names_port):
        async with AsyncExitStack() as slaves:
            async with KINDS[master](first, True):
                await until_known(names, first.address, is_master=True)
                await made(names)
                await send(names, range(COUNT), any_status)
                await slaves.enter_async_context(KINDS[slave](second, False))
                await until_known(names, second.address, is_master=False)
                await send(names, range(COUNT, COUNT + 1), wanted)  # as soon as the slave is in step
                await send(names, range(COUNT + 1, 2 * COUNT), wanted)
                await reads(names, set(range(2 * COUNT)))
                await until_same_end(first.store, second.store)
                if slave == "java":
                    await until_java_knows_the_topic(second.store)
            await reads(names, set(range(2 * COUNT)))


async def until_java_knows_the_topic(store: Path) -> None:
    """It asks its master for the first time a minute after its start."""

    async def is_known() -> bool:
        path = store / "config/topics.json"
        return path.exists() and TOPIC in json.loads(path.read_text())["topicConfigTable"]

    await eventually(is_known, within_s=180)


async def until_same_end(original: Path, copy: Path) -> None:
    """All files of the slave are those of the master, as far as the master's reach."""
    await until_equal(copy, original, 1 << 40)
