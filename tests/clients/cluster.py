"""Three nodes with brokers, as `dledger cluster up --broker` makes them, for released clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from broker_adapter.client import Admin, ClientOptions
from dledger import Client, DLedgerError
from dledger.cli.local.local_cluster import LocalCluster, LocalNode

#: Small files are made quickly; clients that find nothing come back soon.
BROKER: dict[str, Any] = {
    "units_per_file": 1000,
    "index_slots": 1000,
    "index_items": 10_000,
    "rocketmq_v2": {"min_polling_ms": 500, "max_polling_ms": 4_000, "min_invisible_ms": 1_000},
    "delivery": {"check_first_ms": 1_000, "check_again_ms": 2_000},
}
#: The largest body, with default limits: RocketMQ's own.
MAX_BODY = 4 << 20


class ClientCluster:
    def __init__(self, local: LocalCluster) -> None:
        self.local = local

    def address(self, node: str) -> str:
        return self.local.plan.node(node).address

    @property
    def first(self) -> str:
        """The node with the lowest address, which clients that have all addresses in one place use first."""
        return min(self.local.node_ids, key=self.address)

    @property
    def last(self) -> str:
        return max(self.local.node_ids, key=self.address)

    def master(self, *, other_than: str = "", seconds: float = 120.0) -> str:
        """The node whose broker takes messages; waits for it."""

        def found(nodes: object) -> LocalNode | None:
            assert isinstance(nodes, list)
            return next((n for n in nodes if is_writable_master(n.owner) and n.node_id != other_than), None)

        return self.local.wait_until(found, seconds, "a writable master").node_id

    def restart(self, node: str) -> None:
        """By SIGTERM; until all nodes are back, and one of them takes messages."""
        assert self.local.stop_node(node, seconds=30), f"{node} did not end when asked"
        self.local.start_node(node)
        self.local.wait_for_all(60)
        self.master()

    def put(self, *configs: TopicConfig | GroupConfig) -> None:
        asyncio.run(self._put(configs))

    async def _put(self, configs: tuple[TopicConfig | GroupConfig, ...]) -> None:
        names = self.local.plan.companions[0].address
        async with Admin(names, options=ClientOptions(timeout=30.0)) as admin:
            for config in configs:
                if isinstance(config, TopicConfig):
                    assert config.read_queues == config.write_queues
                    message_type = {"+message.type": config.message_type} if config.message_type else {}
                    await admin.create_topic(
                        config.name,
                        queues=config.write_queues,
                        permission=config.perm,
                        attributes=message_type,
                    )
                else:
                    await admin.create_group(
                        config.name,
                        consume_enable=config.consume_enable,
                        consume_orderly=config.consume_orderly,
                        retry_max_times=config.retry_max_times,
                    )

    def reset(self, group: str, topic: str) -> None:
        """To the begin of all queues."""
        asyncio.run(self._reset(group, topic))

    async def _reset(self, group: str, topic: str) -> None:
        names = self.local.plan.companions[0].address
        async with Admin(names, options=ClientOptions(timeout=30.0)) as admin:
            for queue in await admin.topic_stats(topic):
                await admin.reset_offset(group, queue, 0)

    def lead_with(self, node: str) -> None:
        """Until this node's broker takes messages."""
        with Client(self.local.addresses, group=self.local.plan.group) as client:

            def found(nodes: object) -> bool | None:
                assert isinstance(nodes, list)
                if any(n.node_id == node and is_writable_master(n.owner) for n in nodes):
                    return True
                with suppress(DLedgerError):  # the node may have to catch up before
                    client.transfer_leadership(node, timeout=30)
                return None

            self.local.wait_until(found, 60, f"{node} as the master")


@contextmanager
def client_cluster(
    directory: Path,
    broker: Mapping[str, Any] = BROKER,
    prepare: Callable[[LocalCluster], None] = lambda _: None,
) -> Iterator[ClientCluster]:
    """Running; `last` is the master: calls to `first` are forwarded. `broker`: further `[program.settings]`;
    `prepare` may change the nodes' configurations before they start."""
    additions = BROKER_KIND.prepare(0, {})
    settings = {key: dict(value) for key, value in additions.settings.items()}
    settings["program"]["settings"] = {**settings["program"]["settings"], **broker}
    with LocalCluster.create(
        directory,
        nodes=3,
        base_port=0,
        data_file_size=16 << 20,
        settings=settings,
        companions=additions.companions,
        remoting=additions.remoting,
    ) as local:
        cluster = ClientCluster(local)
        prepare(local)
        local.start()
        cluster.master()
        cluster.lead_with(cluster.last)
        yield cluster
