"""Nodes, brokers, NameServer and clients that all show certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.cli.cluster_command import BROKER_KIND
from broker_adapter.cli.connect.options import NAMESRV_VARIABLE
from broker_adapter.cli.connect.target import Target
from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from broker_adapter.client.core.requests import create_topic
from broker_adapter.errors import AnswerMissing, NameServerUnavailable, ResponseCode
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.remoting.client import connect
from dledger import TlsFiles
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from tests.broker_adapter.cli.conftest import BrokerCommand
from tests.broker_adapter.process.processes import SMALL, TIMING

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-tls")]

MESSAGES = 200


def cluster_with_tls(folder: Path) -> LocalCluster:
    additions = BROKER_KIND.prepare(0, {})
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


async def produce_and_consume(cluster: LocalCluster, names: list[str], target: Target) -> None:
    """Through the death of a master."""
    seen: set[bytes] = set()
    done = asyncio.Event()

    async def consume(messages: Sequence[MessageExt]) -> None:
        seen.update(message.body for message in messages)
        if len(seen) == MESSAGES:
            done.set()

    about = {"options": replace(target.options, heartbeat_broker_s=1.0), "tls": target.client_tls}
    begin = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer("readers", names, consume, consume_from=begin, **about)  # type: ignore[arg-type]
    consumer.subscribe("orders")
    async with Producer("p", names, **about) as producer, consumer:  # type: ignore[arg-type]
        for n in range(MESSAGES):
            if n == MESSAGES // 2:
                cluster.kill(await master_of(cluster))
            await producer.send(Message("orders", b"%03d" % n))
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
        await master_of(cluster)
        tls = cluster.tls_files
        assert tls is not None
        address = BROKER_KIND.variables(cluster.plan)[NAMESRV_VARIABLE]
        target = Target([address], [], tls, 60.0)
        names = await target.name_servers()
        async with target.admin() as admin:
            await admin.create_topic("orders", queues=3)
            await produce_and_consume(cluster, names, target)
            stats = (await admin.topic_stats("orders")).values()
            assert sum(one.max_offset - one.min_offset for one in stats) == MESSAGES
            await refused_without_a_certificate(admin, cluster, tls)

        await asyncio.to_thread(commands_with_tls, cluster, address, tls)

        # Nobody without a certificate gets in at the NameServer.
        for files in (None, TlsFiles(tls.ca)):
            async with NameServerClient([address], files) as strangers:
                with pytest.raises(NameServerUnavailable):
                    await strangers.route("orders")
            async with Admin(names, tls=Target([], [], files, 1.0).client_tls) as admin:
                with pytest.raises(NameServerUnavailable):
                    await admin.route("orders")


async def refused_without_a_certificate(admin: Admin, cluster: LocalCluster, tls: TlsFiles) -> None:
    """At a node: certificates decide who is an operator."""
    request = create_topic(TopicConfig("mine", 1, 1))
    address = cluster.plan.node(await master_of(cluster)).remoting_address
    with pytest.raises(AnswerMissing, match="certificate"):
        context = Target([], [], TlsFiles(tls.ca), 1.0).client_tls
        await (await connect(address, timeout_s=20, tls=context)).invoke(replace(request), 20)
    connection = await connect(address, timeout_s=20, tls=Target([], [], tls, 1.0).client_tls)
    assert (await connection.invoke(replace(request), 20)).code == ResponseCode.SUCCESS
    connection.close("done")
    assert "mine" in [config.name for config in await admin.topics()]
