"""Nodes, brokers, NameServer and clients that all show certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.cli.local_broker import BROKER_KIND, NAMESRV_VARIABLE
from broker_adapter.client import Admin, Consumer, Message, NameServerRoutes, Producer
from broker_adapter.errors import BrokerError, NameServerUnavailable
from broker_adapter.rpc.broker_client import BrokerClient
from dledger import TlsFiles
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from dledger.platform import ClientTls
from tests.broker_adapter.cli.conftest import BrokerCommand
from tests.broker_adapter.process.processes import SMALL, TIMING, until_shown

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-tls")]

MESSAGES = 200


def cluster_with_tls(folder: Path) -> LocalCluster:
    additions = BROKER_KIND.prepare(0)
    settings: dict[str, Any] = {"timing": TIMING, **additions.settings}
    program = settings["program"]
    settings["program"] = {**program, "settings": {**program["settings"], **SMALL}}
    return LocalCluster.create(
        folder,
        base_port=0,
        data_file_size=4 << 20,
        settings=settings,
        tls=True,
        companions=additions.companions,
        remoting=additions.remoting,
    )


def writable(cluster: LocalCluster) -> str | None:
    for node in cluster.node_ids:
        status = cluster.node_status(node)
        if status is not None and status.owner.get("writable"):
            return node
    return None


async def master_of(cluster: LocalCluster) -> str:
    def has_master(_: list[LocalNode]) -> str | None:
        return writable(cluster)

    return await asyncio.to_thread(cluster.wait_until, has_master, 40, "a writable master")


async def produce_and_consume(cluster: LocalCluster, routes: NameServerRoutes, tls: TlsFiles) -> None:
    """Through the death of a master."""
    seen: dict[int, set[bytes]] = {}
    done = asyncio.Event()

    def consume(message: Message) -> None:
        seen.setdefault(message.queue_id, set()).add(message.body)
        if sum(map(len, seen.values())) == MESSAGES:
            done.set()

    async with Producer(routes, timeout=60, retry_indeterminate=True, tls=tls) as producer:
        await producer.send("orders", b"000")
        async with Consumer(routes, "readers", "orders", handler=consume, tls=tls):
            for n in range(1, MESSAGES):
                if n == MESSAGES // 2:
                    cluster.kill(await master_of(cluster))
                await producer.send("orders", b"%03d" % n)
            async with asyncio.timeout(60):
                await done.wait()


def commands_with_tls(cluster: LocalCluster, namesrv: str, tls: TlsFiles) -> None:
    """`dledger broker` with certificates by option and by variable, through NameServer and nodes."""
    options = ["--tls-ca", str(tls.ca), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]
    timeout = ["--timeout", "60"]
    command = BrokerCommand()
    command("broker", "topic", "create", "cli", "--queues", "1", "--namesrv", namesrv, *options, *timeout)
    command(
        "broker", "produce", "--topic", "cli", "--namesrv", namesrv, *options, *timeout, stdin=b"one\ntwo\n"
    )
    variables = {
        "DLEDGER_SERVERS": ",".join(cluster.addresses),
        "DLEDGER_TLS_CA": str(tls.ca),
        "DLEDGER_TLS_CERT": str(tls.certificate),
        "DLEDGER_TLS_KEY": str(tls.key),
    }
    listed = BrokerCommand(variables)("broker", "topic", "list", *timeout)
    assert "cli" in listed.output
    refused = command("broker", "topic", "list", "--namesrv", namesrv, "--timeout", "2", code=None)
    assert refused.exit_code != 0 and "cli" not in refused.stdout.split()


async def test_messages_through_a_failover_with_certificates_everywhere(tmp_path: Path) -> None:
    cluster = cluster_with_tls(tmp_path / "c")
    with cluster:
        await asyncio.to_thread(cluster.start)
        master = await master_of(cluster)
        tls = cluster.tls_files
        assert tls is not None
        address = BROKER_KIND.variables(cluster.plan)[NAMESRV_VARIABLE]
        routes = NameServerRoutes([address], tls=tls)
        async with Admin(routes, timeout=60, tls=tls) as admin:
            await admin.put_topic(TopicConfig("orders", 3, 3))
            await until_shown(routes, ["orders"])
            await produce_and_consume(cluster, routes, tls)
            stats = await admin.topic_stats("orders")
            assert sum(one.max_offset - one.min_offset for one in stats) >= MESSAGES
        await routes.close()

        await asyncio.to_thread(commands_with_tls, cluster, address, tls)

        # Nobody without a certificate gets in, neither here nor there.
        for files in (None, TlsFiles(tls.ca)):
            strangers = NameServerRoutes([address], tls=files)
            with pytest.raises(NameServerUnavailable):
                await strangers.route("orders")
            await strangers.close()
            node = next(n for n in cluster.running() if n != master and n in cluster.node_ids)
            security = None if files is None else ClientTls(files)()
            client = BrokerClient(cluster.plan.node(node).address, security)
            with pytest.raises(BrokerError):
                await client.info(5.0)
            await client.close()
