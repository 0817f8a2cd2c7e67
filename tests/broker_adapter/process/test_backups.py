"""A broker of real processes is backed up while producers send, and a new one is made of the backup."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from broker_adapter.client import (
    Admin,
    ClientOptions,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    SendStatus,
)
from broker_adapter.client.transactions import LocalTransactionState, TransactionProducer
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from tests.broker_adapter.cli.conftest import BrokerCommand as Command
from tests.node.local import PATIENT, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-backups")]

_WITHIN_S = 60
OPTIONS = ClientOptions(timeout=20.0, request_timeout=10.0, poll_name_server_s=1.0)
DELAYED, HALF, NEW = b"delayed", b"half", b"new"
#: 10 seconds: not due before the backup is made.
_LEVEL = 3


@contextmanager
def running(cluster: LocalCluster) -> Iterator[str]:
    """The address of the NameServer, once there is a writable master."""

    def writable(nodes: list[LocalNode]) -> LocalNode | None:
        return next((one for one in nodes if is_writable_master(one.owner)), None)

    with cluster:
        cluster.start()
        cluster.wait_until(writable, _WITHIN_S, "a writable master")  # type: ignore[arg-type]
        yield cluster.plan.companions[0].address


def created(folder: Path, store: str) -> LocalCluster:
    added = BROKER_KIND.prepare(0, {"store": store, "role": "sync" if store == "classic" else "async"})
    program: dict[str, Any] = dict(added.settings["program"])
    delivery = {"check_first_ms": 500, "check_again_ms": 500}
    program["settings"] = {**program["settings"], "delivery": delivery}
    return LocalCluster.create(
        folder,
        nodes=added.nodes,
        of_node=added.of_node,
        has_log=added.has_log,
        base_port=0,
        settings={"program": program, "timing": PATIENT},
        companions=added.companions,
        remoting=True,
    )


@dataclass
class Sent:
    """Acknowledged messages of `orders`: key -> body."""

    acknowledged: dict[str, bytes] = field(default_factory=dict)

    async def write(self, producer: Producer, is_done: asyncio.Event, writer: int) -> None:
        number = 0
        while not is_done.is_set():
            key = f"k-{writer}-{number}"
            body = key.encode().ljust(300, b".")
            result = await producer.send(Message("orders", body, keys=[key]))
            assert result.status is SendStatus.SEND_OK
            self.acknowledged[key] = body
            number += 1


async def write_and_back_up(names: str, back_up: Callable[[], None]) -> tuple[dict[str, bytes], int]:
    """The messages that were acknowledged before the backup, and the offset of group `billing` in queue 0."""
    sent, is_done = Sent(), asyncio.Event()
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(Admin(names, options=OPTIONS))
        for topic in ("orders", "later"):
            await admin.create_topic(topic, queues=2)
        await admin.create_group("billing", retry_max_times=7)
        producer = await clients.enter_async_context(Producer("makers", names, options=OPTIONS))
        unknown = LocalTransactionState.UNKNOWN
        halves = await clients.enter_async_context(
            TransactionProducer("halves", names, lambda message: unknown, options=OPTIONS)
        )
        writers = [asyncio.create_task(sent.write(producer, is_done, writer)) for writer in range(4)]
        await until(lambda: len(sent.acknowledged) >= 200)
        consumer = await clients.enter_async_context(PullConsumer("billing", names, options=OPTIONS))
        queue = await queue_of(consumer, "orders", 0)
        committed = (await consumer.pull(queue, 0)).next_offset
        await consumer.commit(queue, committed)
        await producer.send(Message("later", DELAYED, delay_level=_LEVEL))
        await halves.send_in_transaction(Message("later", HALF), lambda message: unknown)
        known = dict(sent.acknowledged)
        await asyncio.to_thread(back_up)
        await until(lambda: len(sent.acknowledged) > len(known))
        is_done.set()
        await asyncio.gather(*writers)
    return known, committed


async def queue_of(consumer: PullConsumer, topic: str, queue_id: int) -> MessageQueue:
    return next(queue for queue in await consumer.queues(topic) if queue.queue_id == queue_id)


async def messages_of(consumer: PullConsumer, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    for queue in await consumer.queues(topic):
        offset = 0
        while (result := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
            found += result.messages
            offset = result.next_offset
    return found


async def check(names: str, known: dict[str, bytes], committed: int) -> None:
    """All that was acknowledged before the backup is served, and what waited then is delivered."""
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(Admin(names, options=OPTIONS))
        commit = LocalTransactionState.COMMIT_MESSAGE
        halves = await clients.enter_async_context(
            TransactionProducer("halves", names, lambda message: commit, options=OPTIONS)
        )
        consumer = await clients.enter_async_context(PullConsumer("billing", names, options=OPTIONS))
        found = await messages_of(consumer, "orders")
        bodies = [message.body for message in found]
        assert len(set(bodies)) == len(bodies) and set(known.values()) <= set(bodies)
        assert {group.name: group.retry_max_times for group in await admin.groups()}["billing"] == 7
        queue = await queue_of(consumer, "orders", 0)
        assert await consumer.committed(queue) == committed
        for key in list(known)[:: len(known) // 5]:
            assert [message.body for message in await admin.query("orders", key)] == [known[key]]
        of_queue = [message for message in found if message.queue.queue_id == 0]
        middle = of_queue[len(of_queue) // 2]
        first = next(one for one in of_queue if one.store_timestamp >= middle.store_timestamp)
        assert await admin.search_offset(queue, middle.store_timestamp) == first.queue_offset
        await halves.send_in_transaction(Message("later", NEW), lambda message: commit)
        producer = await clients.enter_async_context(Producer("makers", names, options=OPTIONS))
        result = await producer.send(Message("orders", NEW))
        assert result.status is SendStatus.SEND_OK
        assert (result.queue.queue_id, result.queue_offset) not in {
            (message.queue.queue_id, message.queue_offset) for message in found
        }
        async with asyncio.timeout(_WITHIN_S):
            while len(waited := await messages_of(consumer, "later")) < 3:
                pass
        assert sorted(message.body for message in waited) == [DELAYED, HALF, NEW]


async def test_a_group_restored_from_a_backup_under_load_serves_everything(tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    old, new = created(tmp_path / "old", "replicated"), created(tmp_path / "new", "replicated")
    with running(old) as names:
        command = Command({"DLEDGER_SERVERS": ",".join(old.addresses)})
        known, committed = await write_and_back_up(names, lambda: command("backup", "--to", backup))
        await asyncio.to_thread(old.stop)
    for node in new.node_ids:
        place, store = new.plan.cluster_id, new.store_directory(node)
        shutil.rmtree(store)
        options = ["--data-dir", str(store), "--cluster-id", place, "--node-id", node]
        command("restore", backup, *options)
    with running(new) as names:
        await check(names, known, committed)


async def test_a_classic_master_restored_from_a_backup_under_load_serves_everything(tmp_path: Path) -> None:
    """And its slave copies the restored log."""
    backup, command = str(tmp_path / "backup"), Command()
    old, new = created(tmp_path / "old", "classic"), created(tmp_path / "new", "classic")
    store = str(old.store_directory("n1"))
    with running(old) as names:
        known, committed = await write_and_back_up(
            names, lambda: command("broker", "backup", "--from", store, "--to", backup)
        )
        await asyncio.to_thread(old.stop)
    command("broker", "restore", backup, "--data-dir", str(new.store_directory("n1")))
    with running(new) as names:
        await check(names, known, committed)
