"""NameServers that die, hang and are flooded while messages flow and masters change."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError
from broker_adapter.namesrv.registration import RemotingRegistrationSession
from broker_adapter.namesrv.values import Registration
from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import BrokerProcesses

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-name-servers")]


async def test_messages_go_on_without_name_servers_and_masters_change_without_them(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path, name_servers=2) as brokers:
        servers = brokers.name_servers
        async with Load(brokers) as load:
            await load.progress(200)
            await servers.kill(servers.addresses[0])
            await load.progress(200)
            old = await brokers.kill_master()
            await load.progress(200)
            await brokers.nodes.start([old])
            await servers.kill()
            await load.progress(200)
            # Nobody can tell clients now but the brokers themselves; and a change of role waits for nobody.
            old = await brokers.kill_master()
            await load.progress(200)
            await servers.start()
            await brokers.published()
            await brokers.nodes.start([old])
            await load.progress(200)
        await check(brokers, load)


def stranger(number: int) -> Registration:
    topics = tuple(TopicConfig(f"topic-{number % 8}-{n}") for n in range(200))
    name = f"stranger-{number % 100}"
    node_id, address = f"node-{number}", f"127.0.0.1:{1 + number % 60_000}"
    return Registration("c", name, node_id, 0, address, number, number, topics=topics)


@asynccontextmanager
async def flood(address: str) -> AsyncIterator[list[int]]:
    """Registrations of strangers without pause. How many were answered, and refused."""
    counts = [0, 0]

    async def register(first: int) -> None:
        session = RemotingRegistrationSession(address, beat_s=1000.0)
        number = first
        try:
            while True:
                number += 8
                try:
                    await session.register(stranger(number))
                except BrokerError:
                    counts[1] += 1
                else:
                    counts[0] += 1
        finally:
            await session.close()

    tasks = [asyncio.create_task(register(n)) for n in range(8)]
    try:
        yield counts
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


async def test_neither_a_flooded_nor_a_hanging_name_server_is_in_the_way_of_a_new_master(
    tmp_path: Path,
) -> None:
    async with BrokerProcesses(tmp_path, name_servers=2) as brokers:
        servers = brokers.name_servers
        async with Load(brokers, consumers=0) as load:
            await load.progress(100)
            async with flood(servers.addresses[0]) as counts:
                await load.progress(100)
                servers.signal(servers.addresses[1], signal.SIGSTOP)
                old = await brokers.kill_master()
                before = sum(counts)
                await brokers.master(other_than=old)
                await load.progress(100)
                assert sum(counts) > before, "the flood went on all the time"
                servers.signal(servers.addresses[1], signal.SIGCONT)
                await brokers.published()
            await brokers.nodes.start([old])
            await load.progress(100)
        await check(brokers, load)
