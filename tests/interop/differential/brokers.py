"""The brokers that are compared: started once, restarted by a step, each at one address."""

from __future__ import annotations

import asyncio
import itertools
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.tables import parse_table, table_at
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from dledger.cli.local.local_cluster import LocalCluster
from tests.interop import genuine
from tests.process.cluster import free_ports

CLUSTER, BROKER = "DefaultCluster", "broker-a"
REPLICATED, CLASSIC, GENUINE = "replicated", "classic", "genuine"
FILE_SIZE = 16 << 20
#: The first check of a half message, and the time between two checks; RocketMQ's defaults are 6 s and 30 s.
CHECK_FIRST_MS, CHECK_AGAIN_MS = 3_000, 2_000
_READY_S, _STOP_S = 120, 40
_OFFSET_TABLES = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: "consumerOffset.json",
    RequestCode.GET_ALL_DELAY_OFFSET: "delayOffset.json",
}
_ready_topics = itertools.count()


class ComparedBroker(ABC):
    """One broker at `address` (host:port)."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _stop(self, number: signal.Signals) -> None: ...

    async def start(self) -> None:
        """Start it and wait until it changes topics, which needs a writable master."""
        await asyncio.to_thread(self._start)
        await genuine.eventually(self._is_writable, within_s=_READY_S)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        await asyncio.to_thread(self._stop, number)

    async def _is_writable(self) -> bool:
        fields = {
            "topic": f"ready{next(_ready_topics)}",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        with suppress(BrokerError):
            connection = await connect(self.address, timeout_s=2)
            try:
                command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
                return (await connection.invoke(command, 10)).code == 0
            finally:
                connection.close("ready")
        return False


class OurBroker(ComparedBroker):
    """A single node of ours, and the NameServer that it registers with."""

    def __init__(self, name: str, home: Path) -> None:
        port, vip_port, ha_port = free_ports(3)
        super().__init__(name, port)
        store = "classic" if name == CLASSIC else "replicated"
        additions = BROKER_KIND.prepare(0, {"store": store, "role": "async"})
        program: Any = additions.settings["program"]
        remoting = {**program["settings"]["remoting"], "listen": self.address}
        remoting["vip_listen"] = f"127.0.0.1:{vip_port}"
        delivery = {"check_first_ms": CHECK_FIRST_MS, "check_again_ms": CHECK_AGAIN_MS}
        own: dict[str, Any] = {"remoting": remoting, "delivery": delivery}
        if store == "classic":
            own["classic"] = {
                **additions.of_node[0]["classic"],
                "file_size": FILE_SIZE,
                "ha_listen": f"127.0.0.1:{ha_port}",
            }
        self.cluster = LocalCluster.create(
            home,
            nodes=1,
            base_port=0,
            data_file_size=FILE_SIZE,
            settings=additions.settings,
            companions=additions.companions,
            remoting=True,
            of_node=[own],
            has_log=store != "classic",
        )

    @property
    def store(self) -> Path:
        return self.cluster.store_directory("n1")

    @property
    def name_server(self) -> str:
        return self.cluster.plan.companions[0].address

    async def wait_for_tables(self) -> None:
        """Until RocketMQ's tables have the offsets that this classic broker answers: RocketMQ goes by them,
        and they are written once a second."""
        connection = await connect(self.address, timeout_s=10)

        async def are_written() -> bool:
            for code, name in _OFFSET_TABLES.items():
                answer = await connection.invoke(RemotingCommand(code), 10)
                written = await asyncio.to_thread(table_at, self.store / "config" / name)
                if parse_table(answer.body).get("offsetTable") != written.get("offsetTable"):
                    return False
            return True

        try:
            await genuine.eventually(are_written)
        finally:
            connection.close("compared")

    def _start(self) -> None:
        self.cluster.start()

    def _stop(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self.cluster.kill("n1")
        else:
            assert self.cluster.stop_node("n1", seconds=_STOP_S)


class GenuineBroker(ComparedBroker):
    """RocketMQ 5.5 on a classic store, with times that match those of `OurBroker`."""

    def __init__(self, home: Path, name_server: str) -> None:
        (port,) = free_ports(1)
        super().__init__(GENUINE, port)
        self._home, self._port, self._name_server = home, port, name_server
        self._running = ExitStack()
        self._process: Any = None
        self.store = home / "store"

    def _start(self) -> None:
        self._running = ExitStack()
        broker = genuine.broker(
            self._home,
            self._name_server,
            self._port,
            brokerClusterName=CLUSTER,
            brokerName=BROKER,
            mappedFileSizeCommitLog=FILE_SIZE,
            storePathRootDir=self.store,
            storePathCommitLog=self.store / "commitlog",
            flushDiskType="SYNC_FLUSH",
            transactionTimeOut=CHECK_FIRST_MS,
            transactionCheckInterval=CHECK_AGAIN_MS,
            enablePropertyFilter="true",
        )
        self._process = self._running.enter_context(broker)

    def _stop(self, number: signal.Signals) -> None:
        """By SIGTERM, whatever `number` is: a killed RocketMQ loses the offsets of the last 5 s."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_S)
            self._running.close()
            self._process = None


class BrokerSet:
    """All compared brokers; RocketMQ is the last one."""

    def __init__(self, home: Path, stores: tuple[str, ...]) -> None:
        self.ours = [OurBroker(name, home / name) for name in stores]
        self.genuine = GenuineBroker(home / GENUINE, self.ours[0].name_server)

    @property
    def all(self) -> list[ComparedBroker]:
        return [*self.ours, self.genuine]

    async def restart(self, number: signal.Signals, exchange: bool = False) -> None:
        """Stop and start all. `exchange`: the classic broker and RocketMQ get each other's directory."""
        classic = next((one for one in self.ours if one.name == CLASSIC and exchange), None)
        if classic is not None and number is signal.SIGKILL:
            await classic.wait_for_tables()
        await asyncio.gather(*(broker.stop(number) for broker in self.all))
        if classic is not None:
            aside = classic.store.with_name("aside")
            classic.store.rename(aside)
            self.genuine.store.rename(classic.store)
            aside.rename(self.genuine.store)
        await asyncio.gather(*(broker.start() for broker in self.all))


@asynccontextmanager
async def running_brokers(home: Path, stores: tuple[str, ...]) -> AsyncIterator[BrokerSet]:
    brokers = BrokerSet(home, stores)
    async with AsyncExitStack() as stack:
        for ours in brokers.ours:  # RocketMQ registers with the NameServer of the first one
            stack.push_async_callback(asyncio.to_thread, ours.cluster.stop)
            await ours.start()
        stack.push_async_callback(brokers.genuine.stop)
        await brokers.genuine.start()
        yield brokers
