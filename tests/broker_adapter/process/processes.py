"""Brokers and NameServers as real processes, for tests that send real signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_adapter.api import TopicConfig
from broker_adapter.client import Admin, ClientOptions, MessageQueue
from broker_adapter.errors import NameServerUnavailable, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger.status.model import NodeStatus
from tests.process.cluster import ProcessCluster, free_ports, toml_of
from tests.process.forked import Forked, start_process

REPO = Path(__file__).resolve().parents[3]
BROKER = "broker_adapter.server.program:broker"
#: A busy machine costs no leadership, and clients have another leader before they give up.
TIMING: dict[str, Any] = {
    "heartbeat_ms": 100,
    "election_min_ms": 1500,
    "election_max_ms": 2500,
    "silence_ms": 0,
}
#: Small enough that files end and checkpoints are made all the time.
SMALL: dict[str, Any] = {
    "units_per_file": 500,
    "index_slots": 500,
    "index_items": 2000,
    "checkpoint_ms": 100,
    "role_change_report_ms": 3000,
}
TOPICS = (TopicConfig("orders", 3, 3), TopicConfig("events", 2, 2))
#: By which routes name all nodes; one of them is named `broker-a-n1`, ...
NAME = "broker-a"
#: A node looks for a master for 3 s before it says that there is none: who waits longer knows more. Routes
#: and heartbeats are for what lasts minutes elsewhere.
OPTIONS = ClientOptions(
    timeout=5.0,
    request_timeout=4.0,
    poll_name_server_s=1.0,
    heartbeat_broker_s=1.0,
    avoid_broker_s=1.0,
)

Seen = dict[str, NodeStatus]


class NameServers:
    """Started and killed one by one; each keeps its address."""

    def __init__(self, folder: Path, count: int, settings: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self._processes: dict[str, Forked | asyncio.subprocess.Process] = {}
        for number, address in enumerate(self.addresses):
            config = {
                "directory": str(folder / f"namesrv-{number}"),
                "listen": address,
                **(settings or {}),
            }
            self._config(address).write_text(toml_of(config))

    def _config(self, address: str) -> Path:
        return self._folder / f"namesrv-{self.addresses.index(address)}.toml"

    async def start(self, *addresses: str) -> None:
        for address in addresses or self.addresses:
            with self._config(address).with_suffix(".log").open("ab") as log:
                config = str(self._config(address))
                self._processes[address] = await start_process(
                    *(sys.executable, "-m", "broker_adapter.namesrv", "--config", config), output=log
                )

    def signal(self, address: str, number: signal.Signals) -> None:
        self._processes[address].send_signal(number)

    async def kill(self, *addresses: str) -> None:
        for address in addresses or list(self._processes):
            process = self._processes.pop(address)
            if process.returncode is None:
                process.kill()
            await process.wait()


class BrokerProcesses:
    """`async with BrokerProcesses(folder) as brokers:` has a writable master and the topics, known to all
    NameServers. `log`: further keys of the nodes' configuration; `broker`: of `[program.settings]`."""

    def __init__(
        self,
        folder: Path,
        *,
        name_servers: int = 1,
        program: str = BROKER,
        broker: Mapping[str, Any] | None = None,
        log: Mapping[str, Any] | None = None,
        data_file_size: int = 4 << 20,
        fault_injection: bool = False,
        topics: Sequence[TopicConfig] = TOPICS,
    ) -> None:
        self.folder = folder
        self.topics = topics
        self.name_servers = NameServers(folder, name_servers)
        shared = {**SMALL, "name": NAME, "namesrv": self.name_servers.addresses, **(broker or {})}
        #: Where a node serves clients of the remoting protocol, started again too.
        self.remoting: dict[str, str] = {}

        def settings(node: str) -> Mapping[str, Any]:
            port, send_port = free_ports(2)
            self.remoting[node] = f"127.0.0.1:{port}"
            listens = {"listen": self.remoting[node], "send_listen": f"127.0.0.1:{send_port}"}
            own = {**shared, "remoting": listens}
            return {"timing": TIMING, **(log or {}), "program": {"factory": program, "settings": own}}

        self.nodes = ProcessCluster(
            folder,
            settings=settings,
            data_file_size=data_file_size,
            fault_injection=fault_injection,
        )

    @property
    def names(self) -> list[str]:
        """Addresses of the NameServers."""
        return self.name_servers.addresses

    def derived(self, node: str) -> Path:
        """Where a node has its ConsumeQueues and indexes."""
        return self.folder / f"{node}-broker"

    async def __aenter__(self) -> BrokerProcesses:
        try:
            await self.name_servers.start()
            await self.nodes.start()
            await self.master(within_s=60)
            async with Admin(self.names, options=replace(OPTIONS, timeout=60.0)) as admin:
                for topic in self.topics:
                    await admin.create_topic(topic.name, queues=topic.write_queues)
            await self.published()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.nodes.__aexit__()
        await self.name_servers.kill()

    async def published(self, within_s: float = 120.0) -> None:
        """Until every NameServer shows all topics and a master."""
        names = [topic.name for topic in self.topics]
        for address in self.name_servers.addresses:
            async with NameServerClient([address]) as client:
                await until_shown(client, names, within_s)

    # -- states -------------------------------------------------------------------------------------------

    async def master(self, *, other_than: str = "", within_s: float = 120.0) -> str:
        """The node whose broker takes messages as the leader of the highest term, followed by a majority."""

        def found(seen: Seen) -> str | None:
            for node, status in seen.items():
                followers = [s for s in seen.values() if s.leader_id == node and s.term == status.term]
                if node != other_than and is_writable(status) and len(followers) >= 2:
                    return node
            return None

        return await self.nodes.wait_for(found, within_s=within_s)

    async def in_step(self, within_s: float = 120.0) -> None:
        """Until all nodes have the same log and have derived everything of it. Nobody may write."""
        await self.nodes.settle(within_s)

        def dispatched(seen: Seen) -> bool:
            return len(seen) == len(self.nodes.members) and all(
                s.applied_index == s.committed_index and s.owner.get("index_pending") == 0
                for s in seen.values()
            )

        await self.nodes.wait_for(dispatched, within_s=within_s)

    def slaves(self, master: str) -> list[str]:
        return [node for node in self.nodes.members if node != master]

    async def kill_master(self) -> str:
        """SIGKILL; who it was. Not before there is one."""
        master = await self.master()
        await self.nodes.kill(master)
        return master

    def signal(self, node: str, number: signal.Signals) -> None:
        self.nodes.signal(node, number)


def queue_of(topic: str, queue_id: int) -> MessageQueue:
    """To read it."""
    return MessageQueue(topic, NAME, queue_id)


def is_writable(status: NodeStatus) -> bool:
    return bool(status.owner.get("writable"))


def step_of(status: NodeStatus) -> str:
    """Of the RoleChangeHandler."""
    return str(status.owner.get("role_change", {}).get("step", ""))


async def until_shown(client: NameServerClient, topics: Sequence[str], within_s: float = 120.0) -> None:
    """Until the NameServer shows all these topics and a master of each."""
    async with asyncio.timeout(within_s):
        for topic in topics:
            while not await _has_master(client, topic):
                pass


async def _has_master(client: NameServerClient, topic: str) -> bool:
    try:
        route = await client.route(topic)
    except (NameServerUnavailable, TopicRefused):
        return False
    return any(MASTER_ID in broker.addresses for broker in route.brokers.values())
