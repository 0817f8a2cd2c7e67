"""Real servers for the fuzzer of calls, as child processes: each kind once, and what must be true of each."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any, ClassVar

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.client.core.admin_bodies import group_body
from broker_adapter.client.core.pulling import pull_request, pull_result
from broker_adapter.client.core.requests import create_topic
from broker_adapter.client.core.subscription import ALL, Subscription
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import ResponseCode
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.remoting.codes import RequestCode
from dledger.infra.transport.channels import open_channel
from dledger.v1 import admin_pb2, log_pb2
from tests.broker_adapter.client.scripted import finish
from tests.broker_adapter.process.processes import BROKER, SMALL, NameServers
from tests.broker_adapter.v4.asker import asking, send_fields
from tests.node.local import until
from tests.process.cluster import GROUP, ProcessCluster, free_ports

#: Resident memory of a server, whatever it was called with, one call at a time.
MEMORY_BYTES = 512 << 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SERVING = re.compile(r'\bevent="?serving\b')
_ALARM = re.compile(r'event="fatal: the node stops" .*code=(409|4\d\d|6\d\d)')
#: A busy machine must not depose a leader.
_TIMING = {"heartbeat_ms": 200, "election_min_ms": 3000, "election_max_ms": 6000, "silence_ms": 0}
_CLIENTS = {"rocketmq_v2": {"min_polling_ms": 100, "max_polling_ms": 500, "min_invisible_ms": 100}}


class Server:
    """One process. `address`: of its gRPC port; `is_served`: whether a good client is."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        self.address = ""
        (http_port,) = free_ports(1)
        self.http_address = f"127.0.0.1:{http_port}"
        self._read_bytes = 0

    async def start(self) -> None: ...

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        raise AssertionError

    async def kill(self) -> None: ...

    @property
    def process(self) -> int:
        raise AssertionError

    @property
    def log(self) -> Path:
        raise AssertionError

    async def is_served(self) -> str:
        """What a good client misses; "" if nothing."""
        raise AssertionError

    def new_log(self) -> str:
        """What the server has logged since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            found = file.read()
        self._read_bytes += len(found)
        return found.decode("utf-8", "replace")

    def is_alarmed(self) -> bool:
        """Whether it has ended as it has to, because members contradict each other (guarantees, rule 6)."""
        return False

    def is_up(self) -> bool:
        try:
            return "Z" not in Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory_bytes(self) -> int:
        for line in Path(f"/proc/{self.process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        return 0

    async def ask(self, method: str, request: Any, answer: Any, seconds: float = 30.0) -> Any:
        async with open_channel(self.address) as channel:
            call = channel.unary_unary(
                method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            return await call(request, timeout=seconds)


class Node(Server):
    """A node of a cluster of its own. `members` of it are configured, and one of them runs."""

    members = 1
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = {"timing": _TIMING, "http_listen": self.http_address, **self.settings}
        self.cluster = ProcessCluster(self.folder, self.members, settings=settings, data_file_size=8 << 20)
        self.address = self.cluster.members["n1"]

    async def start(self) -> None:
        await self.cluster.start(["n1"])
        self.cluster.expect_end("n1")
        await self.cluster.wait_for(self._is_ready, nodes=["n1"], within_s=120)

    def _is_ready(self, seen: dict[str, Any]) -> bool:
        return "n1" in seen and (self.members > 1 or seen["n1"].role == "LEADER")

    async def stop(self) -> int:
        return await self.cluster.stop("n1")

    async def kill(self) -> None:
        if self.cluster.processes and self.cluster.processes["n1"].returncode is None:
            self.cluster.signal("n1", signal.SIGKILL)
            await self.cluster.ended("n1")

    @property
    def process(self) -> int:
        return self.cluster.processes["n1"].pid

    @property
    def log(self) -> Path:
        return self.folder / "n1.log"

    async def is_served(self) -> str:
        request = admin_pb2.GetStatusRequest(group=GROUP)
        answer = await self.ask("/dledger.v1.AdminService/GetStatus", request, admin_pb2.GetStatusResponse)
        return "" if answer.node.node_id == "n1" else f"no status: {answer}"


class LogNode(Node):
    """Alone, so that it leads; without a program, so that clients append."""

    name = "log"

    async def is_served(self) -> str:
        request = log_pb2.AppendRequest(group=GROUP, bodies=[b"good"], timeout_ms=20_000)
        appended = await self.ask("/dledger.v1.LogService/Append", request, log_pb2.AppendResponse)
        if appended.HasField("status") and appended.status.code != 200:
            return f"an append is refused: {appended.status}"
        return await super().is_served()


class BrokerNode(Node):
    """Alone, so that it is master. Good clients come by the remoting protocol."""

    name = "broker"
    settings: ClassVar[dict[str, Any]] = {"program": {"factory": BROKER, "settings": {**SMALL, **_CLIENTS}}}

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.remoting = f"127.0.0.1:{port}"
        own = {**SMALL, **_CLIENTS, "remoting": {"listen": self.remoting, "send_listen": "127.0.0.1:0"}}
        self.settings = {"program": {"factory": BROKER, "settings": own}}  # type: ignore[misc]
        super().__init__(folder)

    def _is_ready(self, seen: dict[str, Any]) -> bool:
        return "n1" in seen and bool(seen["n1"].owner.get("writable"))

    async def start(self) -> None:
        """With the topics and groups that calls know of."""
        await super().start()
        async with asking(self.remoting) as asker:
            for name in ("T", "U"):
                await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **_topic(name, 2))
            for name in ("g", "h"):
                body = group_body(GroupConfig(name))
                await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def is_served(self) -> str:
        """A send and a pull of it, on a topic that is put first."""
        async with asking(self.remoting) as asker:
            put = await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **_topic("good", 1))
            if put.code != ResponseCode.SUCCESS:
                return f"a topic is refused: {put}"
            sent = await asker.ask(RequestCode.SEND_MESSAGE_V2, b"good", **send_fields("good", 0))
            if sent.code != ResponseCode.SUCCESS:
                return f"a send is refused: {sent}"
            at = int(sent.fields["queueOffset"])
            subscription = Subscription("good", ALL, 0)
            queue = MessageQueue("good", "broker-a", 0)
            pull = pull_request("good", queue, at, subscription, max_messages=1, wait_s=10.0)
            pulled = await asker.ask(pull.code, **pull.fields)
            found = finish(pull_result(pulled, queue, subscription, 32))
            return "" if [one.body for one in found.messages] == [b"good"] else f"not pulled: {pulled}"


def _topic(name: str, queues: int) -> dict[str, str]:
    made = create_topic(TopicConfig(name, queues, queues))
    return dict(made.fields)


class MemberNode(Node):
    """Of three, the others of which are the fuzzer: it follows or campaigns, as that says."""

    name = "member"
    members = 3

    def is_alarmed(self) -> bool:
        logged = self.log.read_text()
        return bool(_ALARM.search(logged)) and "Traceback" not in logged

    settings: ClassVar[dict[str, Any]] = BrokerNode.settings


class NameServer(Server):
    name = "namesrv"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.servers = NameServers(self.folder, 1, {"http_listen": self.http_address})
        (self.address,) = self.servers.addresses

    async def start(self) -> None:
        before = self._servings()
        await self.servers.start()
        # All its ports: that for pages is the last to be open.
        await until(lambda: self._servings() > before)

    def _servings(self) -> int:
        """How often it has said that it serves."""
        return len(_SERVING.findall(self.log.read_text())) if self.log.exists() else 0

    async def stop(self) -> int:
        process = self.servers._processes[self.address]
        process.send_signal(signal.SIGTERM)
        return await process.wait()

    async def kill(self) -> None:
        await self.servers.kill()

    @property
    def process(self) -> int:
        return self.servers._processes[self.address].pid

    @property
    def log(self) -> Path:
        return self.folder / "namesrv-0.log"

    async def is_served(self) -> str:
        async with NameServerClient([self.address], timeout_s=30.0) as client:
            answer = await client.cluster_info()
        return "" if answer.pid == self.process else f"no information: {answer}"


SERVERS: dict[str, type[Server]] = {one.name: one for one in (LogNode, BrokerNode, MemberNode, NameServer)}
