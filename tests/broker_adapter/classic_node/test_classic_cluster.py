"""A classic master and its slave as processes: what was acknowledged outlives the master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.status_command import query_nodes, table_row
from broker_adapter.client import (
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    SendStatus,
    change_role,
)
from broker_adapter.errors import BrokerError
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from dledger.infra.transport.tls import ClientTls
from tests.node.local import until

pytestmark = [pytest.mark.process]

_WITHIN_S = 60
_QUEUES = 4


def created(folder: Path, *, tls: bool = False) -> LocalCluster:
    choices = {"store": "classic", "role": "sync"} | ({"tls": "tls"} if tls else {})
    additions = BROKER_KIND.prepare(0, choices)
    return LocalCluster.create(
        folder,
        nodes=additions.nodes,
        base_port=0,
        settings=additions.settings,
        companions=additions.companions,
        remoting=True,
        of_node=additions.of_node,
        has_log=False,
        tls=tls,
    )


def writable(cluster: LocalCluster, node_id: str) -> None:
    def found(nodes: list[LocalNode]) -> bool | None:
        return any(one.node_id == node_id and is_writable_master(one.owner) for one in nodes) or None

    cluster.wait_until(found, _WITHIN_S, f"{node_id} a writable master")


async def send(names: str, numbers: range) -> list[str]:
    """Those that were acknowledged in full."""
    acknowledged = []
    async with Producer("makers", names) as producer:
        for number in numbers:
            result = await producer.send(Message("t", str(number).encode()))
            if result.status is SendStatus.SEND_OK:
                acknowledged.append(str(number))
    return acknowledged


async def received(names: str) -> list[str]:
    found = []
    async with PullConsumer("readers", names) as consumer:
        for queue in await consumer.queues("t"):
            offset = 0
            while (result := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
                found += [one.body.decode() for one in result.messages]
                offset = result.next_offset
    return found


async def received_all(names: str, acknowledged: list[str]) -> None:
    """Each of them once, and nothing else; a message is answered before it is in its queue."""
    async with asyncio.timeout(_WITHIN_S):
        while len(found := await received(names)) < len(acknowledged):
            await asyncio.sleep(0)
    assert sorted(found) == sorted(acknowledged)


async def switched(cluster: LocalCluster) -> None:
    """n2 is master, as somebody has decided; it is refused while it takes n1 to be alive."""
    address = cluster.plan.node("n2").remoting_address

    async def changed() -> bool:
        try:
            await change_role(address, to_master=True)
        except BrokerError as error:
            assert "its master is connected" in str(error)
            return False
        return True

    async with asyncio.timeout(_WITHIN_S):
        while not await changed():
            await asyncio.sleep(0)


@pytest.mark.smoke
async def test_what_a_slave_has_acknowledged_outlives_its_master(tmp_path: Path) -> None:
    cluster = created(tmp_path / "cluster")
    names = cluster.plan.companions[0].address
    with cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(writable, cluster, "n1")
        acknowledged = await send(names, range(100))
        assert len(acknowledged) == 100, "the slave was there"
        cluster.kill("n1")
        await switched(cluster)
        await until(lambda: cluster.status()[1].owner.get("writable") is True)
        await received_all(names, acknowledged)
        await asyncio.to_thread(cluster.start_node, "n1")
        await until(lambda: cluster.status()[0].owner.get("broker_role") == "SLAVE")
        await asyncio.to_thread(writable, cluster, "n2")
        acknowledged += await send(names, range(100, 110))
        await received_all(names, acknowledged)


async def test_consumers_go_on_at_the_slave_while_the_master_is_gone(tmp_path: Path) -> None:
    cluster = created(tmp_path / "cluster")
    names = cluster.plan.companions[0].address
    with cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(writable, cluster, "n1")
        acknowledged = await send(names, range(20))
        cluster.kill("n1")
        await received_all(names, acknowledged)
        assert cluster.status()[1].owner.get("broker_role") == "SLAVE"


async def test_the_command_line_shows_brokers_that_registered_as_rocketmqs_do(tmp_path: Path) -> None:
    """Name servers know their port for clients of RocketMQ only, at which no node answers."""
    cluster = created(tmp_path / "cluster")
    with cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(writable, cluster, "n1")
        target = Target([cluster.plan.companions[0].address], [], None, _WITHIN_S)

        async def shown() -> dict[str, tuple[object, ...]]:
            answers = await query_nodes(target, "default")
            return {address: table_row(address, answer) for address, answer in answers.items()}

        addresses = [node.remoting_address for node in cluster.plan.nodes]
        async with asyncio.timeout(_WITHIN_S):
            while (rows := await shown()).keys() != set(addresses):
                pass
        master, slave = (rows[address] for address in addresses)
        assert master == ("", addresses[0], "MASTER", 0, "", "yes", "", "0 B", "1 of 1", "ok")
        assert slave == ("", addresses[1], "SLAVE", 1, "", "no", "", "0 B", "1 of 1", "ok")


async def test_with_tls_they_find_each_other_and_change_places(tmp_path: Path) -> None:
    cluster = created(tmp_path / "cluster", tls=True)
    files = cluster.tls_files
    assert files is not None
    with cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(writable, cluster, "n1")
        for node_id, to_master in (("n1", False), ("n2", True)):
            address = cluster.plan.node(node_id).remoting_address
            await until(lambda: not cluster.status()[1].owner.get("ha", {}).get("lacking_bytes"))
            await changed_over_tls(address, ClientTls(files), to_master=to_master)
        await asyncio.to_thread(writable, cluster, "n2")
        facts = [one.owner for one in cluster.status()]
        assert [owner["broker_role"] for owner in facts] == ["SLAVE", "SYNC_MASTER"]
        assert all(owner["ha_address"] for owner in facts)
        assert all(owner["remoting_address"] for owner in facts)


async def changed_over_tls(address: str, tls: ClientTls, *, to_master: bool) -> None:
    """A slave is refused until it has noticed that its master has ended the connection."""
    async with asyncio.timeout(_WITHIN_S):
        while True:
            try:
                return await change_role(address, to_master=to_master, tls=tls.stream_context())
            except BrokerError as error:
                assert "its master is connected" in str(error)
