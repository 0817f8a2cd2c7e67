"""The system under test: a cluster with a broker on every node, a NameServer and clients."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.broker import start
from benchmarks.common import BODY, BenchError, Operation, cpu_seconds
from benchmarks.ours import BATCH, BATCHES_IN_FLIGHT, DATA_FILE_SIZE
from broker_adapter.cli.cluster_command import is_writable_master
from broker_adapter.client import (
    Admin,
    ClientOptions,
    Message,
    MessageQueue,
    Producer,
    QueueNumber,
)
from dledger.cli.local.cluster_plan import PLAN_FILE
from dledger.cli.local.local_cluster import LocalCluster

TOPIC = "BenchTopic"
TAG = "TagA"
QUEUES = BATCHES_IN_FLIGHT
_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 60.0
#: Name of the broker group that the nodes form.
BROKER = "broker-a"
OPTIONS = ClientOptions(timeout=30.0, request_timeout=30.0, poll_name_server_s=1.0)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Dispatch progress of one node, from its own status."""

    index: int  # the last entry visible to readers; -1: unknown
    behind_bytes: int
    index_pending: int  # messages that the IndexFile lags behind


class Brokers:
    """Produces through one client of the remoting protocol.

    Each queue has at most one batch in flight, so that messages of a queue keep their order. The number of
    queues therefore equals the number of batches in flight.
    """

    def __init__(self, cluster: LocalCluster, admin: Admin, producer: Producer, master_id: str) -> None:
        self.cluster = cluster
        self._admin = admin
        self.producer = producer
        self.master_id = master_id
        self._batch = [Message(TOPIC, BODY, tags=TAG)] * BATCH
        self._free_queues = deque(range(QUEUES))
        self._numbers = count()

    @property
    def bulk(self) -> Operation:
        """Operation: send a batch whose messages have a tag and a UNIQ_KEY, but no key."""
        return self._send_batch

    @property
    def keyed_bulk(self) -> Operation:
        """Operation: send a batch whose messages have a tag, a UNIQ_KEY and one key."""
        return self._send_keyed_batch

    @property
    def single(self) -> Operation:
        """Operation: send a message with a tag and a UNIQ_KEY to the next queue through the next node."""
        return self._send_one

    async def _send_one(self) -> int:
        await self.producer.send(Message(TOPIC, BODY, tags=TAG))
        return 1

    async def _send_batch(self) -> int:
        return await self._send(self._batch)

    async def _send_keyed_batch(self) -> int:
        message = Message(TOPIC, BODY, tags=TAG, keys=[f"order-{next(self._numbers)}"])
        return await self._send([message] * BATCH)

    async def _send(self, messages: list[Message]) -> int:
        queue_id = self._free_queues.popleft()
        await self.producer.send_batch(messages, selector=QueueNumber(queue_id))
        self._free_queues.append(queue_id)
        return len(messages)

    async def wait_for_master(self) -> None:
        """Wait until a node is a writable master, which is then `master_id`."""
        self.master_id = await asyncio.to_thread(_wait_for_master, self.cluster)

    async def create_topic(self, topic: str, queues: int) -> None:
        await self._admin.create_topic(topic, queues=queues)

    def node_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds that each running node has used so far."""
        pids = {node: self.cluster.process(node).pid for node in self.cluster.node_ids}
        return {node: cpu_seconds(pid) for node, pid in pids.items() if pid is not None}

    def shown(self, node_id: str) -> Mapping[str, Any]:
        """Return the broker status of a node; empty if the node does not respond. Blocks."""
        status = self.cluster.node_status(node_id)
        return {} if status is None else status.owner

    def dispatch(self) -> dict[str, Dispatch]:
        """Return the dispatch progress of all nodes. Blocks."""
        return {node: _dispatch_of(self.shown(node)) for node in self.cluster.node_ids}

    def wait_in_step(self) -> float:
        """Wait until the master is writable and every node has dispatched and indexed all entries committed
        at the call. Return the seconds that this took. Blocks.
        """
        began = time.perf_counter()
        target = -1
        while time.perf_counter() - began < _SETTLE_SECONDS:
            if target < 0:
                statuses = [self.cluster.node_status(node) for node in self.cluster.node_ids]
                if all(s is not None for s in statuses):
                    target = max(s.committed_index for s in statuses if s is not None)
            found = self.dispatch()
            writable = any(self.shown(node).get("writable") for node in self.cluster.node_ids)
            if target >= 0 and writable and all(_is_level(one, target) for one in found.values()):
                return time.perf_counter() - began
            time.sleep(_POLL_SECONDS)
        raise BenchError(f"the brokers have not dispatched all entries after {_SETTLE_SECONDS:g} s")


class DispatchWatch:
    """Samples the greatest dispatch lag of any node twice a second, and records it under the current load."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.load = ""
        self.behind_bytes: dict[str, list[int]] = defaultdict(list)
        self.index_pending: dict[str, list[int]] = defaultdict(list)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            load = self.load
            found = (await asyncio.to_thread(self._brokers.dispatch)).values()
            if load == self.load:
                self.behind_bytes[load].append(max(one.behind_bytes for one in found))
                self.index_pending[load].append(max(one.index_pending for one in found))


def _dispatch_of(shown: Mapping[str, Any]) -> Dispatch:
    return Dispatch(
        shown.get("dispatched_index", -1),
        shown.get("dispatch_behind_bytes", 0),
        shown.get("index_pending", 0),
    )


def _is_level(found: Dispatch, index: int) -> bool:
    return found.index >= index and not found.behind_bytes and not found.index_pending


def _wait_for_master(cluster: LocalCluster) -> str:
    deadline = time.perf_counter() + _SETTLE_SECONDS
    while time.perf_counter() < deadline:
        for node in cluster.node_ids:
            status = cluster.node_status(node)
            if status is not None and is_writable_master(status.owner):
                return node
        time.sleep(_POLL_SECONDS)
    raise BenchError(f"no broker is writable after {_SETTLE_SECONDS:g} s")


def names_of(cluster: LocalCluster) -> list[str]:
    """Return the addresses of the NameServers."""
    return [companion.address for companion in cluster.plan.companions]


def queue_of(queue_id: int) -> MessageQueue:
    """Return the queue of the benchmark topic with this id."""
    return MessageQueue(TOPIC, BROKER, queue_id)


@contextmanager
def _cluster(directory: Path, store: str, python: str, data_file_size: int) -> Iterator[LocalCluster]:
    command = [python, "-P", str(Path(start.__file__)), str(directory), store, str(data_file_size)]
    try:
        started = subprocess.run(command, capture_output=True, text=True, check=False)
        if started.returncode:
            raise BenchError(f"the brokers did not start: {started.stderr[-2000:].strip()}")
        yield LocalCluster(directory)
    finally:
        if (directory / PLAN_FILE).exists():
            LocalCluster(directory).stop()


@asynccontextmanager
async def running(
    folder: Path,
    *,
    store: str = "replicated",
    python: str = sys.executable,
    data_file_size: int = DATA_FILE_SIZE,
) -> AsyncIterator[Brokers]:
    """Start nodes with brokers and a NameServer in `folder`, and create one topic. The context stops all
    processes. `python`: of the version whose servers are started.
    """
    with _cluster(folder / "brokers", store, python, data_file_size) as cluster:
        master = await asyncio.to_thread(_wait_for_master, cluster)
        names = names_of(cluster)
        async with (
            Admin(names, options=OPTIONS) as admin,
            Producer("bench", names, options=OPTIONS) as producer,
        ):
            await admin.create_topic(TOPIC, queues=QUEUES)
            for _ in range(3 * QUEUES):  # connects the producer to each node
                await producer.send(Message(TOPIC, BODY))
            yield Brokers(cluster, admin, producer, master)
